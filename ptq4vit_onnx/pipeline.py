"""The spine: the steps from the name of a model to an integer ONNX file with proof, in their order."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ptq4vit_onnx import __version__
from ptq4vit_onnx.calibration.journal import Journal
from ptq4vit_onnx.files.leftovers import journal_of, real_place
from ptq4vit_onnx.files.outputs import claimed, require_free, require_outside, whole_folder
from ptq4vit_onnx.files.provenance import versions
from ptq4vit_onnx.graph.model_proto import load as read_proto
from ptq4vit_onnx.graph.model_proto import save_model
from ptq4vit_onnx.images.builtin import BUILT_IN, IMAGES_FROM
from ptq4vit_onnx.images.choice import ChosenImages, choose_images, require_images
from ptq4vit_onnx.images.inspection import inspect_images, require_usable
from ptq4vit_onnx.images.loading import ImageSet
from ptq4vit_onnx.model_loading.batch_norms import with_batch_norms_folded
from ptq4vit_onnx.model_loading.load import LoadedModel, channels_of, load_for, spec_for
from ptq4vit_onnx.model_loading.trial import outside_modes
from ptq4vit_onnx.models.specs import ModelSpec
from ptq4vit_onnx.network.plan_fit import load_plan, request_of, require_channels_fold, require_plan_fits
from ptq4vit_onnx.plan.evidence import SiteEvidence
from ptq4vit_onnx.plan.options import Options
from ptq4vit_onnx.plan.plan_json import plain, write_plan
from ptq4vit_onnx.plan.scale_plan import ScalePlan, SitePlan
from ptq4vit_onnx.progress import Progress, silent
from ptq4vit_onnx.proof.float_parity import float_parity
from ptq4vit_onnx.report.data import FileSizes, Inputs, Report
from ptq4vit_onnx.report.page import render
from ptq4vit_onnx.request import IMG_SIZE, NUM_CLASSES, OUTPUT_KIND, ExportRequest, size_text
from ptq4vit_onnx.runtime import process

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
    clock, options = _Clock(), request.options
    require_images(spec, request.data, options.images, channels_of(spec) if request.data is None else None)
    from ptq4vit_onnx.planning.sites import rounding_images

    with clock("load"):
        model = load_for(request, spec)
        rounding = rounding_images(model, options) if known_plan is None else 0
        images = choose_images(
            spec, request.data, model.preprocessing, options.images, options.seed, progress, rounding
        )
        images = images.for_plan(known_plan.images) if known_plan else images
        findings = inspect_images(images.calibration.images, model.preprocessing)
        images = images.with_warnings(require_usable(findings, request.force_data or known_plan is not None))
    with whole_folder(request.folder, request.force) as staging:
        report = _run(request, model, images, known_plan, staging, clock, progress)
    _journal_path(request).unlink(missing_ok=True)  # only here: an export that failed later resumes as well
    return report


def _run(
    request: ExportRequest, model: LoadedModel, images: ChosenImages, known_plan: ScalePlan | None, staging: Path,
    clock: _Clock, progress: Progress,
) -> Report:  # fmt: skip
    from ptq4vit_onnx.float_export.exporter import export_float
    from ptq4vit_onnx.network.discovery import discover_products, require_all_integer

    calibration, loaded = images.calibration, model
    model = with_batch_norms_folded(model, calibration.images[:1])
    products = discover_products(model.module, calibration.images[:1])
    sites, floats = products.sites, {item.name: item.reason for item in products.floats}
    if not (request.allow_float or (known_plan and known_plan.floats)):
        require_all_integer(products)
    if known_plan is not None:
        require_plan_fits(known_plan, model, sites, floats)
        require_channels_fold(known_plan, model, sites, calibration.images[:1])
    with clock("float export"):
        float_path = save_model(export_float(model, products.found, request.batch), staging / "float.onnx")
    with clock("float parity"):
        parity = float_parity(loaded, float_path, calibration.images)
    with clock("calibrate"):
        names = [site.name for site in sites]
        plan, evidence = (known_plan, {}) if known_plan else make_plan(request, model, images, names, progress)
        plan = replace(plan, floats=floats)
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
        request.folder, Inputs.of(model, request.options, calibration, plan), plan, evidence, float_parity=parity,
        proof=proof, passes=passes, latency=latency, sizes=FileSizes.of(float_path, path), seconds=clock.seconds,
    )  # fmt: skip
    report.save(staging)
    # names of images need not be UTF-8
    (staging / "report.html").write_text(render(report), encoding="utf-8", errors="backslashreplace")
    return report


def make_plan(
    request: ExportRequest, model: LoadedModel, chosen: ChosenImages, order: list[str], progress: Progress
) -> tuple[ScalePlan, dict[str, SiteEvidence]]:
    """Record all sites, search their scales, round weights, and collect the evidence that the report shows.

    Sites that the journal of an interrupted run with the same inputs holds are not searched again.
    """
    from ptq4vit_onnx.calibration.measure_evidence import collect
    from ptq4vit_onnx.network.recording import Recording
    from ptq4vit_onnx.planning.sites import plan_sites

    options, images = request.options, chosen.calibration
    journal = Journal(
        _journal_path(request),
        {
            "weights": model.fingerprint,
            "images": images.fingerprint,
            "options": options.to_data(),
            "pixels": plain(model.pixel_grid),
            OUTPUT_KIND: model.kind.name,
            "v": __version__,
        },
    )
    known = journal.read()
    journal.start(known)
    evidence: dict[str, SiteEvidence] = {}

    def keep(recording: Recording, plan: SitePlan) -> None:
        if recording.site.name not in known:
            journal.add(recording.site.name, plan)

    def show(recording: Recording, plan: SitePlan) -> None:
        evidence[recording.site.name] = collect(recording, plan, options)

    found = plan_sites(
        model, images.images, options, rounded_on=chosen.rounded_on.images, known=known, on_search=keep, on_site=show,
        count=len(order), progress=progress,
    )  # fmt: skip
    settings = {**options.to_data(), "weights_from": model.origin, IMAGES_FROM: _images_from(images)}
    settings[OUTPUT_KIND] = model.kind.name
    if request.img_size is not None:
        settings[IMG_SIZE] = size_text(request.img_size)
    if request.num_classes is not None:
        settings[NUM_CLASSES] = request.num_classes
    sites = {name: found[name] for name in order}
    settings["pixels_as"] = pixels_as(options, model, sites)
    return ScalePlan(model.name, model.fingerprint, images.fingerprint, settings, versions(), sites), evidence


def pixels_as(options: Options, model: LoadedModel, sites: Mapping[str, SitePlan]) -> str:
    """Whether the image's bytes are what the first product reads; if they might have been, why they are not."""
    readers = [name for name, site in sites.items() if site.lhs.colours]
    if readers or options.pixels == "searched":
        return f"bytes, read by {', '.join(readers)}" if readers else "rounded as any other input"
    if model.pixel_grid is None:
        return "rounded as any other input: its preprocessing is not that of 8-bit images by mean and std"
    return "rounded as any other input: no patch embedding reads values on the grid of 8-bit images"


def _journal_path(request: ExportRequest) -> Path:
    return journal_of(real_place(request.folder))


def _images_from(images: ImageSet) -> str:
    return BUILT_IN if images.built_in else f"{len(images)} images"


class _Clock:
    """Seconds by stage. What a stage has freed goes back to the system at its end: the next one needs other sizes."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        process.give_back_freed_memory()
        self.seconds[stage] = time.perf_counter() - started
