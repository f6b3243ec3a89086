"""How fast models run, measured so that the figures can be compared: interleaved, in one process, medians.

A machine's speed drifts. So all models take turns, run by run, and their threads sleep between runs; a ratio
then compares what happened within the same seconds.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ptq4vit_onnx.errors import UserError
from ptq4vit_onnx.graph.model_proto import Array
from ptq4vit_onnx.progress import Progress, silent, ticks
from ptq4vit_onnx.runtime.cpu import cpu_features
from ptq4vit_onnx.runtime.feeding import BYTES
from ptq4vit_onnx.runtime.session import execute, image_input, session, static_batch


@dataclass(frozen=True)
class Timing:
    """One model at one setting. Times in milliseconds per run; low and high are the quartiles.

    speed: the first model's median over this one's, so above 1 is faster than the first.
    """

    model: str
    threads: int
    batch: int
    median: float
    low: float
    high: float
    runs: int
    speed: float

    def __str__(self) -> str:
        quartiles = f"{self.low:.2f}-{self.high:.2f}"
        return (
            f"{self.model}: {self.median:.2f} ms ({quartiles}), {self.speed:.2f}x, "
            f"{self.threads} threads, batch {self.batch}"
        )


@dataclass(frozen=True)
class BenchResult:
    """All timings, and the CPU they hold for."""

    timings: tuple[Timing, ...]
    cpu: str

    def to_data(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Profile:
    """ONNX Runtime's own node times of one run (each node's median over runs), in milliseconds, largest first.

    by_site: summed over nodes named `SITE/...`; nodes without such a name are counted under "other".
    """

    by_op: Mapping[str, float]
    by_site: Mapping[str, float]
    total: float
    runs: int

    def to_data(self) -> dict[str, Any]:
        return asdict(self)


def bench(
    models: Mapping[str, Path],
    threads: Sequence[int] = (1,),
    batches: Sequence[int] = (1,),
    runs: int = 20,
    warmup: int = 3,
    progress: Progress = silent,
) -> BenchResult:
    """Time all models at each number of threads and batch size. models: name -> file; the first is 1x."""
    if not models:
        raise UserError("no models to measure, expected at least one")
    _require_positive(runs=runs, threads=min(threads), batch=min(batches))
    timings: list[Timing] = []
    tick = ticks(progress, runs * len(models) * len(threads) * len(batches), "measuring")
    for count in threads:
        sessions = {name: session(path, count) for name, path in models.items()}
        for batch in batches:
            feeds = {name: _feed(name, runner, batch) for name, runner in sessions.items()}
            times = _interleaved(sessions, feeds, runs, warmup, tick)
            timings += _timings(times, count, batch)
    return BenchResult(tuple(timings), str(cpu_features()))


def profile(model: Path, threads: int = 1, batch: int = 1, runs: int = 10, warmup: int = 2) -> Profile:
    """Where the time goes, by kernel and by site, from ONNX Runtime's profiler."""
    _require_positive(runs=runs, threads=threads, batch=batch)
    with tempfile.TemporaryDirectory(prefix="ptq4vit_onnx_") as folder:
        runner = session(model, threads, profile_prefix=Path(folder) / "profile")
        feed = _feed(str(model), runner, batch)
        for _ in range(warmup + runs):
            runner.run(None, feed)
        events = json.loads(Path(runner.end_profiling()).read_text(encoding="utf-8"))
    return summarise(events, warmup, runs)


def summarise(events: list[dict[str, Any]], warmup: int, runs: int) -> Profile:
    """Each node's median over its runs, all but the first `warmup`, summed by op and by site.

    Of means, one run in which another program took the CPU would put whatever node ran then on top.
    """
    times: dict[tuple[str, str], list[int]] = {}
    for name, op, duration in _kernel_events(events):
        times.setdefault((name, op), []).append(duration)
    by_op: defaultdict[str, float] = defaultdict(float)
    by_site: defaultdict[str, float] = defaultdict(float)
    for (name, op), durations in times.items():
        milliseconds = float(np.median(durations[warmup:])) / 1000
        by_op[op] += milliseconds
        by_site[_site_of(name)] += milliseconds
    return Profile(_largest_first(by_op), _largest_first(by_site), sum(by_op.values()), runs)


def _site_of(node: str) -> str:
    """blocks.0.mlp.fc1.outliers/lhs/QuantizeLinear -> blocks.0.mlp.fc1"""
    site, slash, _ = node.partition("/")
    return site.removesuffix(".outliers") if slash else "other"


def _kernel_events(events: list[dict[str, Any]]) -> Iterator[tuple[str, str, int]]:
    for event in events:
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time"):
            yield event["name"].removesuffix("_kernel_time"), event["args"]["op_name"], event["dur"]


def _largest_first(times: Mapping[str, float]) -> dict[str, float]:
    return dict(sorted(times.items(), key=lambda item: -item[1]))


def _interleaved(
    sessions: Mapping[str, Any],
    feeds: Mapping[str, dict[str, Array]],
    runs: int,
    warmup: int,
    tick: Callable[[int], None],
) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in sessions}
    for turn in range(warmup + runs):
        for name, runner in sessions.items():
            start = time.perf_counter()
            execute(runner, feeds[name])
            elapsed = time.perf_counter() - start
            if turn >= warmup:
                times[name].append(elapsed * 1000)
        if turn >= warmup:
            tick(len(sessions))
    return times


def _timings(times: Mapping[str, list[float]], threads: int, batch: int) -> list[Timing]:
    first = float(np.median(next(iter(times.values()))))
    found = []
    for name, values in times.items():
        low, median, high = (float(value) for value in np.percentile(values, (25, 50, 75)))
        found.append(Timing(name, threads, batch, median, low, high, len(values), first / median))
    return found


def _feed(name: str, runner: Any, batch: int) -> dict[str, Array]:
    """Random images of the model's size; kernels' times do not depend on the values."""
    entry = image_input(runner)
    fixed = static_batch(runner)
    if fixed not in {None, batch}:
        raise UserError(f"{name} has a fixed batch of {fixed}, got --batch {batch}; measure it with {fixed}")
    if not all(isinstance(length, int) for length in entry.shape[1:]):
        raise UserError(f"{name} has no fixed image size: its input {entry.name!r} is {entry.shape}")
    random, shape = np.random.default_rng(0), (batch, *entry.shape[1:])
    if entry.type == BYTES:
        return {entry.name: random.integers(0, 256, shape, np.uint8)}
    return {entry.name: random.standard_normal(shape, np.float32)}


def _require_positive(**values: int) -> None:
    for name, value in values.items():
        if value < 1:
            raise UserError(f"{name} is {value}, expected at least 1")
