"""Many budgets from one calibration: files between the smallest and the largest width, measured side by side.

Which file is made for a size is decided on images that took no part in calibration (`within_budget`); what the table
says is measured on others, and the times are of all files in turns. Other tools' files of the same model can be put
beside them.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from ptq4vit_onnx import __version__
from ptq4vit_onnx.errors import UserError
from ptq4vit_onnx.files.inputs import require_file
from ptq4vit_onnx.files.leftovers import journal_of, real_place
from ptq4vit_onnx.files.outputs import claimed, require_free, require_outside, whole_folder
from ptq4vit_onnx.files.scratch import scratch_folder
from ptq4vit_onnx.images.choice import ChosenImages
from ptq4vit_onnx.model_loading.batch_norms import with_batch_norms_folded
from ptq4vit_onnx.model_loading.load import LoadedModel, spec_for
from ptq4vit_onnx.model_loading.trial import outside_modes
from ptq4vit_onnx.pipeline import export_float_model, load_inputs
from ptq4vit_onnx.plan.budget import Budget, Point
from ptq4vit_onnx.plan.plan_json import write_plan
from ptq4vit_onnx.plan.quantizers import MAX_BITS
from ptq4vit_onnx.plan.scale_plan import ScalePlan, SitePlan
from ptq4vit_onnx.planning.make_plan import calibrate_widths, plan_of
from ptq4vit_onnx.planning.trial_files import TrialFiles
from ptq4vit_onnx.planning.within_budget import Measured, Workshop, spend
from ptq4vit_onnx.progress import Progress, silent
from ptq4vit_onnx.report.pareto_page import pareto_svg, render_pareto
from ptq4vit_onnx.report.pareto_rows import Group, ParetoAbout, ParetoRow, pareto_csv
from ptq4vit_onnx.request import ExportRequest
from ptq4vit_onnx.runtime import process
from ptq4vit_onnx.runtime.bench import Timing, bench
from ptq4vit_onnx.runtime.session import session

logger = logging.getLogger(__name__)
LEAST_SHOWN_BITS = 3  # the smallest size that is tried unless sizes are given: two bits are of little use
RUNS = 20  # of each file, in turns


@dataclass(frozen=True)
class Study:
    """What is asked for. export: the model, the images and the options; its budget does not matter. sizes: in bytes;
    empty: `count` of them, evenly spaced. others: files of the same model, by other tools."""

    export: ExportRequest
    sizes: tuple[int, ...] = ()
    count: int = 8
    others: tuple[Path, ...] = ()

    @property
    def folder(self) -> Path:
        return self.export.output or Path(f"{self.export.model.replace('/', '_').replace(':', '_')}_pareto")


@dataclass(frozen=True)
class Found:
    """rows: the float model, all files of ours by size, then the others."""

    folder: Path
    rows: list[ParetoRow]
    about: ParetoAbout


@dataclass(frozen=True)
class Ours:
    """A file of ours. title: its width, or the mean of its bits."""

    path: Path
    title: str
    point: Point

    @property
    def is_single(self) -> bool:
        return len(set(self.point.bits.values())) == 1


def pareto(study: Study, progress: Progress = silent) -> Found:
    """Calibrate once, make a file for every size and for every single width, measure all, and write the folder."""
    for other in study.others:
        require_file(other, "model", "give ONNX files of the same model by --with")
        session(other)  # or it would fail after the calibration
    # Any budget: it asks for images to round and to choose on, and for all widths.
    request = replace(study.export, output=study.folder, budget=Budget("average_weight_bits", MAX_BITS))
    spec = spec_for(request)
    require_outside(study.folder, {"--data": request.data, "--checkpoint": request.checkpoint})
    require_free(study.folder, request.force)
    with outside_modes(), process.prepared(), claimed(study.folder, request.force):
        model, images = load_inputs(spec, request, None, progress)
        with whole_folder(study.folder, request.force) as staging:
            found = _run(replace(study, export=request), model, images, staging, progress)
        journal_of(real_place(study.folder)).unlink(missing_ok=True)
    return found


def _run(study: Study, model: LoadedModel, images: ChosenImages, staging: Path, progress: Progress) -> Found:
    request = study.export
    model = with_batch_norms_folded(model, images.calibration.images[:1])
    float_path, names, floats = export_float_model(model, images, request, staging)
    plans = calibrate_widths(request, model, images, len(names), progress)

    def complete(sites: Mapping[str, SitePlan], size: float = 0) -> ScalePlan:
        within = replace(request, budget=Budget("max_size", size))
        return plan_of(within, model, images.calibration, {name: sites[name] for name in names}, floats)

    with scratch_folder() as scratch:
        trial = TrialFiles(float_path, complete, model.kind, images.chosen_on, scratch, request.input, request.target)
        points = _points(study, images, Workshop(plans, trial.make, progress), model.kind.measured_by, progress)
    ours = []
    for point in points:
        path = _free_name(staging, point.size)
        plan = complete(plans.sites_at(point.bits), point.size)
        trial.write(plan, path)
        write_plan(plan, path.with_suffix(".json"))
        ours.append(Ours(path, point.title, point))
    judge = TrialFiles(float_path, complete, model.kind, images.measured, staging, request.input, request.target)
    rows, cpu = _rows(study, judge, ours, progress)
    about = ParetoAbout(model.name, model.kind.measured_by, str(images.measured_on), cpu, __version__)
    _write(staging, rows, about)
    return Found(study.folder, rows, about)


def _points(study: Study, images: ChosenImages, shop: Workshop, distance: str, progress: Progress) -> list[Point]:
    """The single widths, and what each size became, by size."""
    chosen: dict[tuple[tuple[str, int], ...], Point] = {}
    for size in progress(study.sizes or _sizes(shop, study.count), "budgets"):
        try:
            point = spend(Budget("max_size", size), shop, len(images.chosen_on), distance).choice
        except UserError as error:  # of one size; the others are there to be had
            logger.warning(f"--sizes: {error}")
            continue
        chosen[tuple(point.bits.items())] = point
    singles = [point for point in shop.points() if len(set(point.bits.values())) == 1]
    wanted = {**{tuple(point.bits.items()): point for point in singles}, **chosen}
    return sorted(wanted.values(), key=lambda item: item.size)


def _sizes(shop: Workshop, count: int) -> list[int]:
    """Evenly between the files of LEAST_SHOWN_BITS and of eight bits."""
    least = min(bits for bits in shop.singles if bits >= LEAST_SHOWN_BITS)
    low, high = shop.singles[least].size, shop.singles[MAX_BITS].size
    return [round(low + (high - low) * step / (count + 1)) for step in range(1, count + 1)]


def _free_name(folder: Path, size: int) -> Path:
    """3.40MB.onnx, with more digits where two files are nearly alike."""
    names = (folder / f"{size / 1e6:.{digits}f}MB.onnx" for digits in range(2, 7))
    return next(path for path in names if not path.exists())


def _rows(study: Study, judge: TrialFiles, ours: Sequence[Ours], progress: Progress) -> tuple[list[ParetoRow], str]:
    """(a row for each file, the CPU that the times are of)"""
    files = {"float": judge.float_path, **{item.path.stem: item.path for item in ours}}
    for path in study.others:
        files[_name(path, files)] = path
    judged = {name: _judged(judge, name, path) for name, path in progress(list(files.items()), "measuring")}
    timed = bench(files, batches=(study.export.batch or 1,), runs=RUNS, progress=progress)
    times = {timing.model: timing for timing in timed.timings}
    points = {item.path.stem: item for item in ours}
    rows = [_row(name, path, judged[name], times[name], points.get(name)) for name, path in files.items()]
    return rows, timed.cpu


def _name(path: Path, taken: Mapping[str, Path]) -> str:
    """Of another tool's file: its own, or with its folder's where that is taken."""
    names = (path.stem, f"{path.parent.name}/{path.stem}", str(path))
    return next((name for name in names if name not in taken), str(path))


def _judged(judge: TrialFiles, name: str, path: Path) -> Measured:
    try:
        return judge.measure(path)
    except (ValueError, RuntimeError) as error:
        raise UserError(
            f"{path} cannot be compared with the float model: {' '.join(str(error).split())[:200]}; give files of the "
            "same model, which take the same images and return the same outputs"
        ) from error


def _row(name: str, path: Path, judged: Measured, timing: Timing, ours: Ours | None) -> ParetoRow:
    is_float = name == "float"
    group: Group = "float" if is_float else "peer" if ours is None else "single" if ours.is_single else "mixed"
    return ParetoRow(
        title=name if ours is None else ours.title,
        group=group,
        file=str(path) if ours is None and not is_float else path.name,
        size=judged.size,
        average_bits=None if ours is None else ours.point.average,
        distance=judged.distance,
        predicted=None if ours is None else ours.point.predicted,
        agreement=judged.agreement,
        top1_drop=judged.drop,
        drop_error=judged.drop_error,
        milliseconds=timing.median,
        speed=timing.speed,
    )


def _write(folder: Path, rows: list[ParetoRow], about: ParetoAbout) -> None:
    texts = {
        "pareto.csv": pareto_csv(rows),
        "pareto.svg": pareto_svg(rows, about),
        "pareto.html": render_pareto(rows, about),
        "pareto.json": json.dumps({"about": asdict(about), "rows": [asdict(row) for row in rows]}, indent=1) + "\n",
    }
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8", errors="backslashreplace")
