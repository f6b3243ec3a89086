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
from ptq4vit_onnx.graph.integer_products import parse_name
from ptq4vit_onnx.graph.model_proto import Array
from ptq4vit_onnx.progress import Progress, silent, ticks
from ptq4vit_onnx.runtime.cpu import cpu_features
from ptq4vit_onnx.runtime.engines import EngineName, in_engines, open_model, require_engine, require_runs_in
from ptq4vit_onnx.runtime.runner import BYTES, Runner
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
    """An engine's own node times of one run (each node's median over runs; in OpenVINO the
    mean), in milliseconds, largest first.

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
    engines: Sequence[EngineName] = ("onnxruntime",),
) -> BenchResult:
    """Time all models in all engines at each number of threads and batch size. models: name -> file.

    The first model in the first engine is 1x.
    """
    if not models:
        raise UserError("no models to measure, expected at least one")
    _require_positive(runs=runs, threads=min(threads), batch=min(batches))
    timings: list[Timing] = []
    entrants = in_engines(models, engines)
    tick = ticks(progress, runs * len(entrants) * len(threads) * len(batches), "measuring")
    for count in threads:
        sessions = {name: open_model(item.path, item.engine, count) for name, item in entrants.items()}
        for batch in batches:
            feeds = {name: _feed(name, runner, batch) for name, runner in sessions.items()}
            times = _interleaved(sessions, feeds, runs, warmup, tick)
            timings += _timings(times, count, batch)
    return BenchResult(tuple(timings), str(cpu_features()))


def profile(
    model: Path, threads: int = 1, batch: int = 1, runs: int = 10, warmup: int = 2, engine: EngineName = "onnxruntime"
) -> Profile:
    """Where the time goes, by kernel and by site, from the engine's own profiler."""
    _require_positive(runs=runs, threads=threads, batch=batch)
    require_engine(engine)
    if engine == "openvino":
        return _openvino_profile(model, threads, batch, runs, warmup)
    require_runs_in(model, engine)
    with tempfile.TemporaryDirectory(prefix="ptq4vit_onnx_") as folder:
        runner: Any = session(model, threads, profile_prefix=Path(folder) / "profile")
        feed = _feed(str(model), runner, batch)
        for _ in range(warmup + runs):
            runner.run(None, feed)
        events = json.loads(Path(runner.end_profiling()).read_text(encoding="utf-8"))
    return summarise(events, warmup, runs)


def _openvino_profile(model: Path, threads: int, batch: int, runs: int, warmup: int) -> Profile:
    """Means, since OpenVINO keeps no more; those of the first runs are taken off again."""
    from ptq4vit_onnx.runtime import openvino_engine

    runner = openvino_engine.load(model, threads, timed=True)
    feed = _feed(str(model), runner, batch)
    origins = {layer.name: layer.origins for layer in runner.layers()}
    for _ in range(warmup):
        execute(runner, feed)
    before = runner.layer_times()
    for _ in range(runs):
        execute(runner, feed)
    times: dict[tuple[str, str, str], list[float]] = {}
    for (name, op), mean in runner.layer_times().items():
        measured = ((warmup + runs) * mean - warmup * before.get((name, op), 0.0)) / runs
        times[_node_of(origins.get(name, ()), name), name, op] = [max(measured, 0.0)]
    return _summed({key: [time] for key, (time,) in times.items() if time > 0}, 0, runs)


def _node_of(origins: Sequence[str], layer: str) -> str:
    """The file's node whose site a fused layer counts for: its product, else the first that has a site."""
    products = [name for name in origins if parse_name(name) is not None]
    return next(iter(products + [name for name in origins if "/" in name]), layer)


def summarise(events: list[dict[str, Any]], warmup: int, runs: int) -> Profile:
    """Each node's median over its runs, all but the first `warmup`, summed by op and by site."""
    times: dict[tuple[str, str, str], list[float]] = {}
    for name, op, duration in _kernel_events(events):
        times.setdefault((name, name, op), []).append(duration)
    return _summed(times, warmup, runs)


def _summed(times: Mapping[tuple[str, str, str], list[float]], warmup: int, runs: int) -> Profile:
    """times: (the node whose site counts, the kernel's own name, its op) -> microseconds, run by run.

    Of means, one run in which another program took the CPU would put whatever node ran then on top.
    """
    by_op: defaultdict[str, float] = defaultdict(float)
    by_site: defaultdict[str, float] = defaultdict(float)
    for (name, _, op), durations in times.items():
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
    sessions: Mapping[str, Runner],
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


def _feed(name: str, runner: Runner, batch: int) -> dict[str, Array]:
    """Random images of the model's size; kernels' times do not depend on the values."""
    entry = image_input(runner)
    fixed = static_batch(runner)
    if fixed not in {None, batch}:
        raise UserError(f"{name} has a fixed batch of {fixed}, got --batch {batch}; measure it with {fixed}")
    sizes = [length for length in entry.shape[1:] if isinstance(length, int)]
    if len(sizes) != len(entry.shape) - 1:
        raise UserError(f"{name} has no fixed image size: its input {entry.name!r} is {entry.shape}")
    random, shape = np.random.default_rng(0), (batch, *sizes)
    if entry.type == BYTES:
        return {entry.name: random.integers(0, 256, shape, np.uint8)}
    return {entry.name: random.standard_normal(shape, np.float32)}


def _require_positive(**values: int) -> None:
    for name, value in values.items():
        if value < 1:
            raise UserError(f"{name} is {value}, expected at least 1")
