"""How fast models run, measured so that the figures can be compared: interleaved, in one process, medians.

A machine's speed drifts. So all models take turns, run by run, and their threads sleep between runs; a ratio
then compares what happened within the same seconds. With several threads a model may have two speeds, each for
seconds or minutes (runtime/modes.py): there the rounds are spread over time, and both modes are reported.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ptq4vit_onnx.errors import UserError
from ptq4vit_onnx.files.scratch import scratch_folder
from ptq4vit_onnx.graph.integer_products import parse_name
from ptq4vit_onnx.graph.model_proto import Array
from ptq4vit_onnx.progress import Progress, silent, ticks
from ptq4vit_onnx.runtime.cpu import cpu_features
from ptq4vit_onnx.runtime.engines import EngineName, Opened, in_engines, open_model, require_engine, require_runs_in
from ptq4vit_onnx.runtime.modes import Mode, Run, modes_of
from ptq4vit_onnx.runtime.runner import BYTES, Runner
from ptq4vit_onnx.runtime.schedule import Schedule, schedule
from ptq4vit_onnx.runtime.session import execute, image_input, session, static_batch


@dataclass(frozen=True)
class Timing:
    """One model at one setting. Times in milliseconds per run; low and high are the quartiles.

    speed: the first model's median over this one's, so above 1 is faster than the first.
    modes: the fast and the slow one where there were two; all other figures are then the fast one's.
    cores: how many processors were busy during a run; far below `threads`, several threads shared one.
    """

    model: str
    threads: int
    batch: int
    median: float
    low: float
    high: float
    runs: int
    speed: float
    modes: tuple[Mode, ...] = ()
    cores: float | None = None

    def __str__(self) -> str:
        quartiles = f"{self.low:.2f}-{self.high:.2f}"
        return (
            f"{self.model}: {self.median:.2f} ms ({quartiles}), {self.speed:.2f}x, "
            f"{self.threads} threads, batch {self.batch}{self.modes_note}"
        )

    @property
    def modes_note(self) -> str:
        """What stands behind the figures where there are two modes; empty where there is one."""
        if not self.modes:
            return ""
        fast, slow = self.modes
        return (
            f"; fast mode, {fast.share:.0%} of the runs (slow mode: {slow.median:.2f} ms, "
            f"{slow.low:.2f} .. {slow.high:.2f}, {slow.speed:.2f}x)"
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
    models: Mapping[str, Path | Opened],
    threads: Sequence[int] = (1,),
    batches: Sequence[int] = (1,),
    runs: int = 20,
    warmup: int = 3,
    progress: Progress = silent,
    engines: Sequence[EngineName] = ("onnxruntime",),
    seconds: float | None = None,
) -> BenchResult:
    """Time all models at each number of threads and batch size. The first model in the first engine is 1x.

    models: name -> file, which is run in all `engines`, or -> file and engine, which is run in that one.
    seconds: how long the rounds of one setting are spread; None: 20 with several threads, else not at all.
    """
    if not models:
        raise UserError("no models to measure, expected at least one")
    _require_positive(runs=runs, threads=min(threads), batch=min(batches))
    timings: list[Timing] = []
    entrants: dict[str, Opened] = {}
    for name, model in models.items():
        entrants |= {name: model} if isinstance(model, Opened) else in_engines({name: model}, engines)
    schedules = {count: schedule(runs, count, seconds) for count in threads}
    rounds = sum(planned.rounds for planned in schedules.values())
    tick = ticks(progress, rounds * len(entrants) * len(batches), "measuring")
    for count in threads:
        sessions = {name: open_model(item.path, item.engine, count) for name, item in entrants.items()}
        for batch in batches:
            feeds = {name: _feed(name, runner, batch) for name, runner in sessions.items()}
            times = _interleaved(sessions, feeds, schedules[count], warmup, tick)
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
    with scratch_folder() as folder:
        runner: Any = session(model, threads, profile_prefix=folder / "profile")
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
    planned: Schedule,
    warmup: int,
    tick: Callable[[int], None],
) -> dict[str, list[Run]]:
    """A run of each model in each round."""
    done: dict[str, list[Run]] = {name: [] for name in sessions}
    *_, last = sessions
    for _ in range(warmup):
        for name, runner in sessions.items():
            execute(runner, feeds[name])
    start, rounds = time.perf_counter(), 0
    while not planned.is_over(start, rounds):
        if planned.wait(start, rounds):
            execute(sessions[last], feeds[last])  # else the first model alone would wake the processor up
        for name, runner in sessions.items():
            done[name].append(_timed(runner, feeds[name]))
        rounds += 1
        tick(len(sessions))
    tick(len(sessions) * (planned.rounds - rounds))
    return done


def _timed(runner: Runner, feed: dict[str, Array]) -> Run:
    start, busy = time.perf_counter(), time.process_time()
    execute(runner, feed)
    seconds, busy = time.perf_counter() - start, time.process_time() - busy
    return Run(1000 * seconds, busy / seconds)


def _timings(runs: Mapping[str, list[Run]], threads: int, batch: int) -> list[Timing]:
    found = []
    for name, modes in modes_of(runs).items():
        fast = modes[0]
        figures = (fast.median, fast.low, fast.high, fast.runs, fast.speed)
        found.append(Timing(name, threads, batch, *figures, modes if len(modes) > 1 else (), fast.cores))
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
