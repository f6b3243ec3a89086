"""A machine at two speeds, told apart: which runs of a model were made in its fast mode, which in its slow one.

The threads of a model may be put on one processor by the system, or two virtual processors on one core by the host.
Then several threads take up to twice as long, until they are moved again, seconds or minutes later. The same file has
two times, and a median over both is neither.

The rule, for one model at one setting. Each model is judged by itself: every model has threads of its own, and they
were seen to be moved separately, so models that take turns are not all fast or all slow at once.

1. The logarithms of the times are split where the distances to the medians of the two sides sum to the least
   (2-medians). Absolute distances: a few runs that another program interrupted do not draw the split to themselves.
2. The sides are two modes if each holds MIN_SHARE of the runs and MIN_RUNS, their medians lie MIN_SEPARATION times the
   sum of both quartile ranges apart, and the slow one takes MIN_SLOWDOWN times as long. Else there is one mode.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ptq4vit_onnx.graph.model_proto import Array

MIN_SHARE = 0.1
MIN_RUNS = 5
# Halves of a normal distribution reach 0.8, of a uniform one 1.0.
MIN_SEPARATION = 2.0
MIN_SLOWDOWN = 1.1


@dataclass(frozen=True)
class Run:
    """milliseconds: by the clock. cores: how many processors were busy meanwhile, processor time over time."""

    milliseconds: float
    cores: float


@dataclass(frozen=True)
class Mode:
    """One model's times in one mode, in milliseconds per run; low and high are the quartiles.

    share: of all runs. cores: the median; with two threads and 1.0 both had one processor. speed: the first model's
    median in the same mode over this one's; where the first has one mode, its only median.
    """

    median: float
    low: float
    high: float
    runs: int
    share: float
    cores: float
    speed: float


def modes_of(runs: Mapping[str, Sequence[Run]]) -> dict[str, tuple[Mode, ...]]:
    """By model: its one mode, or the fast one and the slow one. The first model's speed is 1."""
    sides = {name: _sides(of_model) for name, of_model in runs.items()}
    firsts = [_median(side) for side in next(iter(sides.values()))]
    return {
        name: tuple(
            _mode(side, len(runs[name]), first)
            for side, first in zip(found, (firsts[0], firsts[-1]), strict=False)
        )
        for name, found in sides.items()
    }  # fmt: skip


def slow_runs(times: Array) -> Array:
    """True for runs in the slow mode, for none where there is one mode. times: [runs], all above 0."""
    order = np.argsort(times, kind="stable")
    ordered = np.log(times[order])
    least = max(MIN_RUNS, int(np.ceil(MIN_SHARE * len(ordered))))
    slow = np.zeros(len(ordered), dtype=bool)
    if len(ordered) < 2 * least:
        return slow
    split = min(range(least, len(ordered) - least + 1), key=lambda at: _spread(ordered[:at]) + _spread(ordered[at:]))
    if _apart(ordered[:split], ordered[split:]):
        slow[order[split:]] = True
    return slow


def _spread(values: Array) -> float:
    return float(np.abs(values - np.median(values)).sum())


def _apart(fast: Array, slow: Array) -> bool:
    ranges = sum(float(np.subtract(*np.percentile(side, (75, 25)))) for side in (fast, slow))
    distance = float(np.median(slow) - np.median(fast))
    return bool(distance >= max(MIN_SEPARATION * ranges, np.log(MIN_SLOWDOWN)))


def _sides(runs: Sequence[Run]) -> list[list[Run]]:
    slow = slow_runs(np.array([run.milliseconds for run in runs]))
    sides = [[run for run, is_slow in zip(runs, slow, strict=True) if is_slow == wanted] for wanted in (False, True)]
    return [side for side in sides if side]


def _median(runs: Sequence[Run]) -> float:
    return float(np.median([run.milliseconds for run in runs]))


def _mode(runs: Sequence[Run], of: int, first: float) -> Mode:
    low, median, high = (float(value) for value in np.percentile([run.milliseconds for run in runs], (25, 50, 75)))
    cores = float(np.median([run.cores for run in runs]))
    return Mode(median, low, high, len(runs), len(runs) / of, cores, first / median)
