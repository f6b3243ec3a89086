"""Rounds lie where they are planned to lie; the clock is made up, so nothing waits."""

from __future__ import annotations

from typing import Any

import pytest

from ptq4vit_onnx.runtime import bench as module
from ptq4vit_onnx.runtime import schedule as schedule_module
from ptq4vit_onnx.runtime.modes import Run
from ptq4vit_onnx.runtime.schedule import ROUNDS_A_SECOND, SPREAD_SECONDS, Schedule, schedule


class Clock:
    """time.perf_counter and time.sleep of a machine on which a run takes `cost` seconds."""

    def __init__(self, cost: float) -> None:
        self.now, self.cost = 100.0, cost
        self.runs: list[tuple[str, float]] = []

    def perf_counter(self) -> float:
        return self.now

    def process_time(self) -> float:
        return 1.5 * self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def execute(self, runner: str, _feed: object) -> None:
        self.runs.append((runner, self.now - 100))
        self.now += self.cost


def measured(clock: Clock, planned: Schedule, monkeypatch: pytest.MonkeyPatch) -> tuple[dict[str, list[Run]], int]:
    ticks: list[int] = []
    monkeypatch.setattr(schedule_module, "time", clock)
    monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(module, "execute", clock.execute)
    names: dict[str, Any] = {"a": "a", "b": "b"}
    return module._interleaved(names, {"a": {}, "b": {}}, planned, 0, ticks.append), sum(ticks)


def test_one_thread_is_measured_without_pauses_several_are_spread() -> None:
    assert schedule(20, threads=1) == Schedule(20, 20, 0.0)
    assert schedule(20, threads=2) == Schedule(int(SPREAD_SECONDS * ROUNDS_A_SECOND), 20, SPREAD_SECONDS)
    assert schedule(20, threads=2, seconds=0) == Schedule(20, 20, 0)
    assert schedule(5000, threads=2).rounds == 5000, "--runs is a lower bound"


def test_short_rounds_are_spread_evenly_and_a_pause_ends_with_an_untimed_run(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(cost=0.01)
    times, ticked = measured(clock, Schedule(rounds=10, least=3, seconds=5.0), monkeypatch)
    assert "".join(name for name, _ in clock.runs) == "ab" + 9 * "bab", "the first model is not the one that wakes up"
    begun = [at for name, at in clock.runs if name == "a"]
    assert begun == pytest.approx([0] + [0.5 * done + 0.01 for done in range(1, 10)])
    assert {name: len(values) for name, values in times.items()} == {"a": 10, "b": 10}
    assert [run.milliseconds for run in times["a"]] == pytest.approx([10.0] * 10)
    assert [run.cores for run in times["a"]] == pytest.approx([1.5] * 10)
    assert ticked == 20


def test_long_rounds_stop_when_the_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    times, ticked = measured(Clock(cost=0.5), Schedule(rounds=100, least=3, seconds=9.5), monkeypatch)
    assert len(times["a"]) == 10
    assert ticked == 200, "the bar is full all the same"


def test_very_long_rounds_are_as_many_as_were_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    times, _ = measured(Clock(cost=60.0), Schedule(rounds=100, least=3, seconds=20.0), monkeypatch)
    assert len(times["b"]) == 3
