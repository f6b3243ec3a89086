"""The spine: one model goes down this page, from a name to an integer ONNX file with proof."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from ptq4vit_onnx import __version__
from ptq4vit_onnx.bounds import MAX_BATCH, require_whole
from ptq4vit_onnx.errors import ParityError, UserError
from ptq4vit_onnx.html_report import render
from ptq4vit_onnx.images import ImageSet, embedded_digits, load_images, require_source, synthetic_images
from ptq4vit_onnx.known_plan import load_plan, options_of, require_channels_fold, require_plan_fits
from ptq4vit_onnx.loading import LoadedModel, load, resolve
from ptq4vit_onnx.models.specs import ModelSpec
from ptq4vit_onnx.options import Options
from ptq4vit_onnx.outputs import require_free, require_outside, whole_folder
from ptq4vit_onnx.plan import ScalePlan, SitePlan
from ptq4vit_onnx.report import Report
from ptq4vit_onnx.resume import Journal
from ptq4vit_onnx.site_evidence import SiteEvidence

Array = np.ndarray[Any, Any]
Progress = Callable[[Iterable[Any], str], Iterable[Any]]
FLOAT_TOLERANCE = 1e-4  # of the logits' largest magnitude: float32 rounding through a deep network stays far below
SITE_IMAGES = 2  # images on which every product is held against the integer oracle
LATENCY_RUNS = 10  # of each model, in turns; `bench` measures longer and more


@dataclass(frozen=True)
class ExportRequest:
    """What the user asked for. output None: ./MODEL_wKaK. batch None: dynamic. plan: skip calibration."""

    model: str = "vit_digits"
    options: Options = field(default_factory=Options)
    output: Path | None = None
    checkpoint: Path | None = None
    random_weights: bool = False
    data: Path | None = None
    plan: Path | None = None
    batch: int | None = None
    force: bool = False

    def __post_init__(self) -> None:
        if self.batch is not None:
            require_whole("batch", self.batch, 1, MAX_BATCH)

    @property
    def folder(self) -> Path:
        safe = "".join(c if c.isalnum() or c in "._-" else "_" for c in self.model)
        mark = "_random" if self.random_weights else ""
        return self.output or Path(f"{safe}{mark}_{self.options.label}")


@dataclass(frozen=True)
class FloatParity:
    """ONNX Runtime against torch, both float: largest difference of logits over their largest magnitude."""

    images: int
    error: float
    tolerance: float = FLOAT_TOLERANCE

    @property
    def passed(self) -> bool:
        return self.error <= self.tolerance


def export(request: ExportRequest, progress: Progress = lambda items, _title: items) -> Report:
    """Export, calibrate, quantise, prove, write; on UserError or ParityError nothing is written."""
    spec = resolve(request.model)
    known_plan = None if request.plan is None else load_plan(request.plan, spec)
    if known_plan is not None:
        request = replace(request, options=options_of(known_plan))
    require_outside(request.folder, {"--data": request.data, "--checkpoint": request.checkpoint})
    require_free(request.folder, request.force)
    if request.data is not None:
        require_source(request.data)
    clock = _Clock()
    with clock("load"):
        model = load(spec, request.checkpoint, request.random_weights, request.options.seed)
        images = calibration_images(spec, model, request, progress)
    with whole_folder(request.folder, request.force) as staging:
        report = _run(request, spec, model, images, known_plan, staging, clock, progress)
    _journal_path(request).unlink(missing_ok=True)  # only here: an export that failed later resumes as well
    return report


def _run(
    request: ExportRequest, spec: ModelSpec, model: LoadedModel, images: ImageSet, known_plan: ScalePlan |
    None, staging: Path, clock: _Clock, progress: Progress,
) -> Report:  # fmt: skip
    import torch

    from ptq4vit_onnx.float_export import export_float
    from ptq4vit_onnx.products import discover

    sites = discover(model.module, torch.from_numpy(images.images[:1]))
    if known_plan is not None:
        require_plan_fits(known_plan, model, sites)
        require_channels_fold(known_plan, model, sites, torch.from_numpy(images.images[:1]))
    with clock("float export"):
        float_model = export_float(model, sites, request.batch)
        float_path = save_model(float_model, staging / "float.onnx")
    with clock("float parity"):
        parity = float_parity(model, float_path, images.images)
    with clock("calibrate"):
        names = [site.name for site in sites]
        plan, evidence = (known_plan, {}) if known_plan else make_plan(request, model, images, names, progress)
        plan.save(staging / "plan.json")
    from ptq4vit_onnx.bench import bench
    from ptq4vit_onnx.prove import prove, quantize_model

    with clock("passes"):
        path, passes = quantize_model(float_model, plan, staging / "model.onnx")
        del float_model
    with clock("prove"):
        test = evaluation_images(spec, model, images)
        proof = prove(path, float_path, plan, model, test, images.images[:SITE_IMAGES], progress)
    with clock("time"):
        latency = bench({"float": float_path, "model": path}, batches=(request.batch or 1,), runs=LATENCY_RUNS)
    report = Report.build(
        request, model, images, plan, parity, proof, passes, path, float_path, latency, clock.seconds
    )  # fmt: skip
    report.save(staging)
    (staging / "report.html").write_text(render(report.data, plan, evidence), encoding="utf-8")
    return report


def calibration_images(spec: ModelSpec, model: LoadedModel, request: ExportRequest, progress: Progress) -> ImageSet:
    options, preprocessing = request.options, model.preprocessing
    if request.data is not None:
        return load_images(request.data, preprocessing, options.images, options.seed, options.images,
                           progress=progress)  # fmt: skip
    if spec.embedded:
        return embedded_digits(preprocessing, "calibration", options.images, options.seed)
    if request.random_weights:
        return synthetic_images(preprocessing, options.images, options.seed)
    raise UserError(
        f"no images to calibrate {spec.name} on; give --data FOLDER with at least {options.images} images "
        "(--images sets how many are used)"
    )


def evaluation_images(spec: ModelSpec, model: LoadedModel, calibration: ImageSet) -> ImageSet:
    """What parity is shown on: the embedded test split, else the calibration images."""
    return embedded_digits(model.preprocessing, "test") if spec.embedded else calibration


def float_parity(model: LoadedModel, path: Path, images: Array, count: int = 8) -> FloatParity:
    """ONNX Runtime against torch on the first images; raises ParityError beyond the tolerance."""
    from ptq4vit_onnx.runtime import run
    from ptq4vit_onnx.simulate import simulate

    chosen = images[:count]
    expected = simulate(model.module, None, chosen, batch=4)
    got = run(path, chosen, batch=4, threads=0)
    parity = FloatParity(len(chosen), float(np.abs(got - expected).max() / max(np.abs(expected).max(), 1e-12)))
    if not parity.passed:
        raise ParityError(
            f"the float ONNX model differs from torch by {parity.error:.2g} of the logits' scale on "
            f"{parity.images} images (limit {parity.tolerance:g})"
        )
    return parity


def make_plan(
    request: ExportRequest, model: LoadedModel, images: ImageSet, order: list[str], progress: Progress
) -> tuple[ScalePlan, dict[str, SiteEvidence]]:
    """Record and search all sites, and keep what the report shows of them.

    Sites of an interrupted run with the same inputs are taken over.
    """
    import torch

    from ptq4vit_onnx.calibrate import calibrate
    from ptq4vit_onnx.evidence import collect
    from ptq4vit_onnx.tape import Recording, record

    options = request.options
    journal = Journal(
        _journal_path(request),
        {
            "weights": model.fingerprint,
            "images": images.fingerprint,
            "options": options.to_data(),
            "v": __version__,
        },
    )
    known = journal.read()
    journal.start(known)
    tape = record(model.module, torch.from_numpy(images.images), options.seed, options.labels)
    evidence: dict[str, SiteEvidence] = {}

    def keep(recording: Recording, plan: SitePlan) -> None:
        name = recording.site.name
        if name not in known:
            journal.add(name, plan)
        evidence[name] = collect(recording, plan, options)

    found = calibrate(progress(_Sized(tape, len(order)), "calibrating"), options, known, keep)
    settings = {**options.to_data(), "weights_from": model.origin, "images_from": _images_from(images)}
    sites = {name: found[name] for name in order}
    return ScalePlan(model.name, model.fingerprint, images.fingerprint, settings, versions(), sites), evidence


def _journal_path(request: ExportRequest) -> Path:
    return request.folder.with_name(f".{request.folder.name}.resume.jsonl")


def _images_from(images: ImageSet) -> str:
    return "synthetic" if images.synthetic else f"{len(images)} images"


class _Sized:
    """An iterator with a length, so that a progress bar knows the time left."""

    def __init__(self, items: Iterator[Any], length: int) -> None:
        self.items, self.length = items, length

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[Any]:
        return self.items


def versions() -> dict[str, str]:
    names = ("torch", "timm", "onnx", "onnxruntime", "onnx-graphsurgeon", "numpy")
    return {
        "ptq4vit-onnx": __version__, "python": platform.python_version(),
        **{name: metadata.version(name) for name in names},
    }  # fmt: skip


def save_model(model: Any, path: Path) -> Path:
    """One file below 2 GB; above it the weights lie next to it in NAME.data."""
    import onnx

    large = model.ByteSize() >= onnx.checker.MAXIMUM_PROTOBUF
    onnx.save(model, path, save_as_external_data=large, all_tensors_to_one_file=True,
              location=f"{path.name}.data" if large else None)  # fmt: skip
    onnx.checker.check_model(str(path), full_check=True)
    return path


class _Clock:
    """Seconds by stage."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.seconds[stage] = time.perf_counter() - started
