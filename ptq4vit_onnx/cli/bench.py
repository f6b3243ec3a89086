"""`ptq4vit-onnx bench`: arguments, and timings as text."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ptq4vit_onnx.cli.arguments import (
    Outcome,
    add_images,
    batch_size,
    engine_name,
    run_count,
    second_count,
    several,
    thread_count,
)
from ptq4vit_onnx.cli.tables import shown, table
from ptq4vit_onnx.errors import UserError
from ptq4vit_onnx.files.scratch import scratch_folder

if TYPE_CHECKING:
    from ptq4vit_onnx.progress import Progress
    from ptq4vit_onnx.runtime.bench import BenchResult, Profile, Timing
    from ptq4vit_onnx.studies.peers import JudgedModel

PEER_NAMES = (
    "ort-static",
    "ort-static-minmax",
    "ort-static-percentile",
)  # the keys of studies.peers.PEERS, which imports ONNX
SITES_SHOWN = 15
CORES = "busy cores"
SLOW_COLUMNS = ("runs fast / slow", "slow ms", "slow quartiles", "slow speed", "slow cores")
TWO_MODES = (
    "Some models had two speeds: their threads were on processors of their own, or shared one, for a while each.\n"
    "Median, quartiles, speed and busy cores are of the fast mode, the columns behind them of the slow one."
)


def add_bench(commands: Any) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(
        "bench", help="speed of ONNX models, side by side",
        description="Interleaved runs; medians, quartiles, and the speed relative to the first model. With several "
        "threads a model may have two speeds for seconds or minutes each: then both modes are shown, and a speed "
        "compares times of the same mode.",
    )  # fmt: skip
    parser.add_argument("model", nargs="+", type=Path, metavar="MODEL", help="ONNX files; the first is 1x")
    parser.add_argument(
        "--threads", type=several(thread_count), default=(1,), metavar="N,N", help="threads of the engine (1)"
    )
    parser.add_argument("--batch", type=several(batch_size), default=(1,), metavar="N,N", help="images at once (1)")
    parser.add_argument(
        "--runs", type=run_count, default=20, metavar="N", help="runs of each model at each setting (20)"
    )
    parser.add_argument(
        "--seconds", type=second_count, metavar="N",
        help="spread the rounds of a setting over so long (20 with several threads, else 0)",
    )  # fmt: skip
    parser.add_argument(
        "--engine", type=several(engine_name), default=("onnxruntime",), metavar="NAME,NAME",
        help="onnxruntime, openvino, or both: every model runs in each of them (onnxruntime)",
    )  # fmt: skip
    parser.add_argument("--profile", action="store_true", help="where the time goes, by operator and by site")
    parser.add_argument("--json", action="store_true", help="print JSON on standard output")
    peers = parser.add_argument_group("peers")
    peers.add_argument(
        "--against", action="append", default=[], choices=PEER_NAMES,
        help="also ONNX Runtime's quantize_static: its defaults, or its best settings; may be repeated",
    )  # fmt: skip
    peers.add_argument(
        "--reference", type=Path, metavar="FLOAT", help="the float model (float.onnx next to the first model)"
    )
    peers.add_argument("--calibration", type=Path, metavar="PATH", help="images to calibrate peers on (--data)")
    add_images(parser)
    return parser


def run_bench(parsed: argparse.Namespace, progress: Progress) -> Outcome:
    from ptq4vit_onnx.runtime.bench import bench, profile
    from ptq4vit_onnx.runtime.engines import in_engines

    if parsed.calibration is not None and not parsed.against:
        raise UserError("--calibration is for peers; give --against ort-static, or leave it out")
    with scratch_folder() as folder:
        models: dict[str, Path] = {str(path): path for path in parsed.model}
        in_engines(models, parsed.engine)  # refuses what cannot run before anything does
        calibrated_on = ""
        judged: list[JudgedModel] = []
        if any((parsed.against, parsed.data, parsed.reference, parsed.where, parsed.images)):
            calibrated_on, judged = _judge(parsed, models, folder, progress)
        settings = (parsed.threads, parsed.batch, parsed.runs)
        result = bench(models, *settings, progress=progress, engines=parsed.engine, seconds=parsed.seconds)
        first = (parsed.threads[0], parsed.batch[0])
        profiled = in_engines(models, parsed.engine) if parsed.profile else {}
        profiles = {name: profile(item.path, *first, engine=item.engine) for name, item in profiled.items()}
    if parsed.json:
        return Outcome(json.dumps(_data(result, judged, profiles, calibrated_on)))
    return Outcome("\n\n".join(_parts(result, judged, profiles, calibrated_on, first)))


def _judge(
    parsed: argparse.Namespace, models: dict[str, Path], folder: Path, progress: Progress
) -> tuple[str, list[JudgedModel]]:
    """Add the peers to `models` and evaluate all of them; returns also what the peers were calibrated on."""
    from ptq4vit_onnx.images.stream import ImageSource, Where
    from ptq4vit_onnx.studies import peers

    where = None if parsed.where is None else Where.parse(parsed.where)
    judged_on = ImageSource(parsed.data, parsed.images, where, skip_unreadable=True)
    reference = peers.float_file(parsed.model[0], parsed.reference)
    peers.require_same_model(parsed.model, reference)
    calibrated_on = ""
    if parsed.against:
        source = ImageSource(parsed.calibration or parsed.data, where=None if parsed.calibration else where)
        images = peers.calibration_images(reference, source)
        calibrated_on = f"{len(images)} images of {images.source}"
        names = list(dict.fromkeys(parsed.against))
        models.update(peers.build_peers(names, reference, images, folder, progress))
    has_images = parsed.data is not None or reference.embedded
    return calibrated_on, peers.judge(models, reference, judged_on if has_images else None, progress, parsed.engine)


def _data(
    result: BenchResult,
    judged: Sequence[JudgedModel],
    profiles: Mapping[str, Profile],
    calibrated_on: str,
) -> dict[str, Any]:
    return {
        **result.to_data(),
        "models": [item.to_data() for item in judged],
        "peers_calibrated_on": calibrated_on or None,
        "profiles": {name: found.to_data() for name, found in profiles.items()},
    }


def _parts(
    result: BenchResult, judged: Sequence[JudgedModel], profiles: Mapping[str, Profile],
    calibrated_on: str, setting: tuple[int, int],
) -> list[str]:  # fmt: skip
    parts = [f"measured on {result.cpu}", table(_timing_rows(result))]
    if any(timing.modes for timing in result.timings):
        parts.append(TWO_MODES)
    if judged:
        parts.append(table(_judged_rows(judged)))
    if calibrated_on:
        parts.append(f"quantize_static was calibrated on {calibrated_on}")
    return parts + [_profile_text(name, found, setting) for name, found in profiles.items()]


def _timing_rows(result: BenchResult) -> list[tuple[str, ...]]:
    """Processors in use are told where there are several threads, the slow mode where there is one."""
    several = any(timing.threads > 1 for timing in result.timings)
    two = any(timing.modes for timing in result.timings)
    more = (CORES,) * several + SLOW_COLUMNS * two
    rows = [("model", "threads", "batch", "median ms", "quartiles", "speed", *more)]
    for timing in result.timings:
        quartiles = f"{timing.low:.2f} .. {timing.high:.2f}"
        setting = (str(timing.threads), str(timing.batch))
        cells = (timing.model, *setting, f"{timing.median:.2f}", quartiles, f"{timing.speed:.2f}x")
        rows.append((*cells, *(shown(timing.cores, ".1f"),) * several, *_slow_cells(timing) * two))
    return rows


def _slow_cells(timing: Timing) -> tuple[str, ...]:
    if not timing.modes:
        return ("",) * len(SLOW_COLUMNS)
    fast, slow = timing.modes
    shares = f"{fast.share:.0%} / {slow.share:.0%}"
    return (
        shares,
        f"{slow.median:.2f}",
        f"{slow.low:.2f} .. {slow.high:.2f}",
        f"{slow.speed:.2f}x",
        f"{slow.cores:.1f}",
    )


def _judged_rows(judged: Sequence[JudgedModel]) -> list[tuple[str, ...]]:
    columns = judged[0].kind.columns
    rows: list[tuple[str, ...]] = [
        ("model", "MB", "products in integers", "images", *(column.title for column in columns))
    ]
    for item in judged:
        data = item.to_data()
        rows.append((
            item.name, f"{item.bytes / 1e6:.2f}", item.kernels.fraction, shown(data["images"], "d"),
            *(column.cell(data) for column in columns),
        ))  # fmt: skip
    return rows


def _profile_text(name: str, found: Profile, setting: tuple[int, int]) -> str:
    threads, batch = setting
    title = f"{name}: {found.total:.2f} ms in kernels (threads {threads}, batch {batch})"
    sites = list(found.by_site.items())
    rest = sites[SITES_SHOWN:]
    if rest:
        sites = [*sites[:SITES_SHOWN], (f"{len(rest)} more", sum(value for _, value in rest))]
    parts = [title]
    for what, sums in (("operator", list(found.by_op.items())), ("site", sites)):
        rows = [(what, "ms", "%")]
        rows += [(key, f"{value:.3f}", f"{100 * value / found.total:.1f}") for key, value in sums]
        parts.append(table(rows))
    return "\n\n".join(parts)
