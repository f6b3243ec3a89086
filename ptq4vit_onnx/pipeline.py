"""The spine: the steps from the name of a model to an integer ONNX file with proof, in their order."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ptq4vit_onnx.files.leftovers import journal_of, real_place
from ptq4vit_onnx.files.outputs import claimed, require_free, require_outside, whole_folder
from ptq4vit_onnx.files.scratch import scratch_folder
from ptq4vit_onnx.graph.model_proto import load as read_proto
from ptq4vit_onnx.graph.model_proto import save_model
from ptq4vit_onnx.images.choice import ChosenImages, choose_images, require_images
from ptq4vit_onnx.images.inspection import inspect_images, require_usable
from ptq4vit_onnx.model_loading.batch_norms import with_batch_norms_folded
from ptq4vit_onnx.model_loading.load import LoadedModel, channels_of, load_for, spec_for
from ptq4vit_onnx.model_loading.trial import outside_modes
from ptq4vit_onnx.models.specs import ModelSpec
from ptq4vit_onnx.network.plan_fit import load_plan, request_of, require_channels_fold, require_plan_fits
from ptq4vit_onnx.plan.plan_json import write_plan
from ptq4vit_onnx.plan.scale_plan import ScalePlan
from ptq4vit_onnx.progress import Progress, silent
from ptq4vit_onnx.proof.float_parity import float_parity
from ptq4vit_onnx.report.data import FileSizes, Inputs, Report
from ptq4vit_onnx.report.page import render
from ptq4vit_onnx.request import ExportRequest
from ptq4vit_onnx.runtime import process

if TYPE_CHECKING:
    from ptq4vit_onnx.planning.make_plan import Made

logger = logging.getLogger(__name__)
Array = np.ndarray[Any, Any]
_ONE_AT_A_TIME = threading.RLock()  # torch's exporter, the environment and logging belong to the whole process
LATENCY_RUNS = 10  # of each model, in turns; `bench` measures longer and more


def export(request: ExportRequest, progress: Progress = silent) -> Report:
    """Export, calibrate, quantise, prove, write; on UserError or ParityError nothing is written.

    Exports in several threads of one process run one after the other.
    """
    with (
        _ONE_AT_A_TIME,
        outside_modes(),
        process.prepared(),
    ):  # before torch is imported, if the caller has not imported it
        return _export(request, progress)


def _export(request: ExportRequest, progress: Progress) -> Report:
    spec = spec_for(request)
    known_plan = None if request.plan is None else load_plan(request.plan, spec)
    if known_plan is not None:
        request = request_of(known_plan, request)
    require_outside(request.folder, {"--data": request.data, "--checkpoint": request.checkpoint})
    require_free(request.folder, request.force)
    with claimed(request.folder, request.force):
        return _export_claimed(spec, request, known_plan, progress)


def _export_claimed(
    spec: ModelSpec, request: ExportRequest, known_plan: ScalePlan | None, progress: Progress
) -> Report:
    clock = Clock()
    if request.advice:
        logger.warning("%s", request.advice)
    with clock("load"):
        model, images = load_inputs(spec, request, known_plan, progress)
    with whole_folder(request.folder, request.force) as staging:
        report = _run(request, model, images, known_plan, staging, clock, progress)
    _journal_path(request).unlink(missing_ok=True)  # only here: an export that failed later resumes as well
    return report


def load_inputs(
    spec: ModelSpec, request: ExportRequest, known_plan: ScalePlan | None, progress: Progress
) -> tuple[LoadedModel, ChosenImages]:
    """The model, and the images that it is calibrated, rounded, chosen and measured on."""
    from ptq4vit_onnx.planning.make_plan import more_images

    options = request.options
    require_images(spec, request.data, options.images, channels_of(spec) if request.data is None else None)
    model = load_for(request, spec)
    rounding, choosing = more_images(request, model)  # also of a known plan: it may have been made on these images
    images = choose_images(
        spec, request.data, model.preprocessing, options.images, options.seed, progress, rounding, choosing
    )
    images = images.for_plan(known_plan.images) if known_plan else images
    findings = inspect_images(images.calibration.images, model.preprocessing)
    return model, images.with_warnings(require_usable(findings, request.force_data or known_plan is not None))


def _run(
    request: ExportRequest, model: LoadedModel, images: ChosenImages, known_plan: ScalePlan | None, staging: Path,
    clock: Clock, progress: Progress,
) -> Report:  # fmt: skip
    from ptq4vit_onnx.planning.make_plan import Made

    calibration, loaded = images.calibration, model
    model = with_batch_norms_folded(model, calibration.images[:1])
    with clock("float export"):
        float_path, names, floats = export_float_model(model, images, request, staging, known_plan)
    with clock("float parity"):
        parity = float_parity(loaded, float_path, calibration.images)
    with clock("calibrate"):
        made = Made(known_plan) if known_plan else _make(request, model, images, names, floats, float_path, progress)
        plan = replace(made.plan, floats=floats)
        write_plan(plan, staging / "plan.json")
    from ptq4vit_onnx.proof.prove import prove, quantize_model
    from ptq4vit_onnx.runtime.bench import bench

    with clock("passes"):
        path, passes = quantize_model(
            read_proto(float_path), plan, staging / "model.onnx", request.input, request.target
        )
    with clock("prove"):
        proof = prove(path, float_path, plan, model, images, progress)
    with clock("time"):
        latency = bench({"float": float_path, "model": path}, batches=(request.batch or 1,), runs=LATENCY_RUNS)
    report = Report(
        request.folder, Inputs.of(model, request, calibration, plan), plan, made.evidence, float_parity=parity,
        proof=proof, passes=passes, latency=latency, sizes=FileSizes.of(float_path, path), seconds=clock.seconds,
        allocation=made.allocation,
    )  # fmt: skip
    report.save(staging)
    # names of images need not be UTF-8
    (staging / "report.html").write_text(render(report), encoding="utf-8", errors="backslashreplace")
    return report


def export_float_model(
    model: LoadedModel, images: ChosenImages, request: ExportRequest, staging: Path,
    known_plan: ScalePlan | None = None,
) -> tuple[Path, list[str], dict[str, str]]:  # fmt: skip
    """(float.onnx, the names of its sites, its products that stay in float with the reasons).

    Refuses a model that no export can be made of, and a plan that does not fit it.
    """
    from ptq4vit_onnx.float_export.exporter import export_float
    from ptq4vit_onnx.network.discovery import discover_products, require_all_integer

    image = images.calibration.images[:1]
    products = discover_products(model.module, image)
    sites, floats = products.sites, {item.name: item.reason for item in products.floats}
    if not (request.allow_float or (known_plan and known_plan.floats)):
        require_all_integer(products)
    if known_plan is not None:
        require_plan_fits(known_plan, model, sites, floats)
        require_channels_fold(known_plan, model, sites, image)
    path = save_model(export_float(model, products.found, request.batch), staging / "float.onnx")
    return path, [site.name for site in sites], floats


def _make(
    request: ExportRequest, model: LoadedModel, images: ChosenImages, names: list[str], floats: Mapping[str, str],
    float_path: Path, progress: Progress,
) -> Made:  # fmt: skip
    from ptq4vit_onnx.planning.make_plan import make_plan, make_plan_within

    if request.budget is None:
        return make_plan(request, model, images, names, floats, progress)
    with scratch_folder() as folder:
        return make_plan_within(request.budget, request, model, images, names, floats, float_path, folder, progress)


def _journal_path(request: ExportRequest) -> Path:
    return journal_of(real_place(request.folder))


class Clock:
    """Seconds by stage. What a stage has freed goes back to the system at its end: the next one needs other sizes."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        process.give_back_freed_memory()
        self.seconds[stage] = time.perf_counter() - started
