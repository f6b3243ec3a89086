"""When the rounds of a measurement take place, so that a machine that changes its speed is seen in all its modes."""

from __future__ import annotations

import time
from dataclasses import dataclass

SPREAD_SECONDS = 20.0  # of one setting, with several threads
ROUNDS_A_SECOND = 5  # at most, of rounds that are spread


@dataclass(frozen=True)
class Schedule:
    """When the rounds of one setting take place: `rounds` at even distances within `seconds`.

    Where a round takes longer than its distance, as many as fit into `seconds`, but at least `least`.
    """

    rounds: int
    least: int
    seconds: float

    def wait(self, start: float, done: int) -> bool:
        """Sleep until the round behind `done` others is due; whether there was anything to wait for."""
        pause = start + self.seconds * done / self.rounds - time.perf_counter()
        if pause > 0:
            time.sleep(pause)
        return pause > 0

    def is_over(self, start: float, done: int) -> bool:
        return done >= self.rounds or (done >= self.least and time.perf_counter() - start > self.seconds)


def schedule(runs: int, threads: int, seconds: float | None = None) -> Schedule:
    """At least `runs` rounds; more where they are spread, since each mode then has a part of them."""
    if seconds is None:
        seconds = SPREAD_SECONDS if threads > 1 else 0.0
    return Schedule(max(runs, int(ROUNDS_A_SECOND * seconds)), runs, seconds)
