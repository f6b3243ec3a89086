"""The commands as functions: `from ptq4vit_onnx import export, evaluate, check_parity`.

A mistake of the caller raises UserError, an exported model that does not compute what it should ParityError
(both in ptq4vit_onnx.errors). Only `export` imports torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ptq4vit_onnx.errors import UserError
from ptq4vit_onnx.evaluation.evaluate import Evaluation, Evaluations, evaluate_files
from ptq4vit_onnx.graph.model_file import ModelFile, is_float, read_model_file, require_reference_of
from ptq4vit_onnx.images.stream import ImageSource, Where
from ptq4vit_onnx.limits import require_running
from ptq4vit_onnx.models.specs import DEFAULT
from ptq4vit_onnx.plan.file_layout import InputType, Target
from ptq4vit_onnx.plan.options import Preset
from ptq4vit_onnx.plan.plan_json import read_plan
from ptq4vit_onnx.plan.scale_plan import ScalePlan
from ptq4vit_onnx.progress import Progress, silent
from ptq4vit_onnx.proof.openvino_kernels import audit_in
from ptq4vit_onnx.proof.parity_gate import check_files
from ptq4vit_onnx.proof.parity_result import Check, Limits, ParityResult
from ptq4vit_onnx.request import AnyPath, AnySize, AskedKind, resolve_request
from ptq4vit_onnx.runtime.engines import EngineName, is_own_format, require_engine
from ptq4vit_onnx.tasks.task import Tasks

if TYPE_CHECKING:
    from ptq4vit_onnx.images.preprocessing import Preprocessing
    from ptq4vit_onnx.model_loading.given_module import Module
    from ptq4vit_onnx.report.data import Report

__all__ = ["Check", "Evaluation", "Evaluations", "ParityResult", "check_parity", "evaluate", "export"]


def export(
    model: str | Module = DEFAULT,
    bits: int | None = None,
    *,
    preprocessing: Preprocessing | Mapping[str, Any] | None = None,
    name: str | None = None,
    output_kind: AskedKind = "auto",
    num_classes: int | None = None,
    weight_bits: int | None = None,
    activation_bits: int | None = None,
    data: AnyPath | None = None,
    output: AnyPath | None = None,
    checkpoint: AnyPath | None = None,
    random_weights: bool = False,
    plan: AnyPath | None = None,
    batch: int | None = None,
    force: bool = False,
    img_size: AnySize | None = None,
    force_data: bool = False,
    input: InputType = "float",
    allow_float: bool = False,
    target: Target = "onnxruntime",
    method: Preset | None = None,
    max_size: int | str | None = None,
    max_kl: float | None = None,
    max_drop: float | None = None,
    average_weight_bits: float | None = None,
    progress: Progress = silent,
    **options: Any,
) -> Report:
    """Quantise a model, prove it, and write float.onnx, model.onnx, plan.json and the reports to a folder.

    torch's settings, logging, warnings and the environment are restored. Two settings stay: torch's threads sleep while
    they wait, if this is the first import of torch, and glibc keeps freed memory for the next tensor.

    Args:
        model: A name of `ptq4vit-onnx models`, as "vit_digits" (the default), a timm name, "transformers:NAME",
            "torchvision:NAME", a folder with a config.json, or any torch.nn.Module whose forward takes images
            [n, C, H, W] and returns a tensor or a tuple of tensors. A module is not changed.
        bits: Bits of weights and of activations, 2 to 8; None: 8.
        preprocessing: How the images of a module are prepared: a Preprocessing, or a mapping with size, mean, std, and
            perhaps interpolation ("bicubic"), crop_pct (1.0) and crop_mode ("center" or "squash").
        name: What a module is called in files and reports; None: the name of its class.
        output_kind: What the model returns: "logits", "embedding" or "features"; "auto" tells it from the model.
        num_classes: 0 takes the classifier off; None: the model's own head.
        weight_bits: Bits of weights alone.
        activation_bits: Bits of activations alone.
        data: Images to calibrate on: a folder, an ImageFolder tree, .npy or .npz. Those that calibration leaves are
            measured on. None: crops of photos that ship with the package; embedded models have images of their own.
        output: The folder to write to; None: ./MODEL_wKaK.
        checkpoint: A file of weights: .safetensors, .pth, .pt or .bin.
        random_weights: A dry run without any weights.
        plan: A plan.json that is applied instead of calibrating. It decides the bits, the method and most options.
        batch: A fixed batch size; None: any.
        force: Replace an earlier export.
        img_size: Of the images, 384 or (height, width); the position table is resampled to it. None: the model's own.
        force_data: Calibrate also on images that are all equal or of one colour, which is an error otherwise.
        input: Of model.onnx: "float", normalised floats [n, C, H, W], or "uint8", the bytes [n, H, W, C] of a decoder.
        allow_float: Leave products that cannot be computed in integers (depthwise convolutions, stems of few channels)
            in float and name them, which is an error otherwise.
        target: The engine that model.onnx is to be fastest in; both compute either file.
        method: "ptq4vit" (the default), exactly as published ("paper"), or the paper's Base PTQ ("base").
        max_size: A budget in the place of a width: the best file of at most so many bytes, 4000000 or "4MB". Within a
            budget, bits are chosen for every weight.
        max_kl: A budget: the smallest file within this KL from the float model.
        max_drop: A budget: the smallest file that loses at most so many points of top-1; needs labels.
        average_weight_bits: A budget: the best file of so many bits per weight.
        progress: Shows how far the work is; handed the items of a loop and a title, it hands the items on.
        options: Other fields of Options by name, as images=32 or seed=0.

    Returns:
        What was measured; its `to_data()` is what report.json holds.

    Raises:
        UserError: For a mistake that you can mend. Nothing has been written under a final name.
        ParityError: If the file does not compute what it should.

    Examples:
        >>> export("vit_digits", bits=6, output="digits").against_float.agreement
        >>> export(backbone, preprocessing=dict(size=224, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5)), name="backbone")
    """
    from ptq4vit_onnx.model_loading.given_module import name_or_module
    from ptq4vit_onnx.pipeline import export as run

    called, given = name_or_module(model, preprocessing, name)
    request = resolve_request(
        called, bits, weight_bits=weight_bits, activation_bits=activation_bits, data=data, output=output,
        checkpoint=checkpoint, random_weights=random_weights, plan=plan, batch=batch, force=force, img_size=img_size,
        force_data=force_data, input=input, output_kind=output_kind, num_classes=num_classes, given=given,
        allow_float=allow_float, target=target, method=method, max_size=max_size, max_kl=max_kl, max_drop=max_drop,
        average_weight_bits=average_weight_bits, **options,
    )  # fmt: skip
    return run(request, progress)


def evaluate(
    models: AnyPath | Sequence[AnyPath],
    data: AnyPath | None = None,
    *,
    reference: AnyPath | None = None,
    images: int | None = None,
    where: str | None = None,
    skip_unreadable: bool = False,
    gallery: AnyPath | None = None,
    threads: int = 0,
    batch: int = 8,
    engine: EngineName = "onnxruntime",
    progress: Progress = silent,
    tasks: Tasks | None = None,
) -> Evaluations:
    """Accuracy of ONNX models on the same images, and their distance from a reference, by their output kind.

    Images are prepared as each model's metadata says.

    Args:
        models: One or several ONNX files of an export.
        data: An ImageFolder tree, a folder with labels.csv, a folder of images, .npy or .npz. None: the test images of
            an embedded model; for a model of RGB photographs, crops of photos that ship with the package and were not
            calibrated on, as the plan.json next to the model tells. Those have no labels.
        reference: A float file of the same model; None: the first of the models.
        images: Use only so many, picked at random but always alike.
        where: "COLUMN=VALUE" keeps some rows of a labels.csv.
        skip_unreadable: Do without images that are damaged or missing, which is an error otherwise.
        gallery: Labelled images, as `data`, in which the neighbours of an embedding are looked up. None: those of `data`
            itself, each without itself.
        threads: Of the engine; 0: all cores.
        batch: Images at once.
        engine: What all models run in. "openvino" also takes files of OpenVINO's own format, and counts each model's
            products in integers.
        progress: As of `export`.
        tasks: Of `ptq4vit_onnx.tasks.start.opened`, to share the images out among processes or machines. The figures
            are the same.

    Returns:
        The figures of each model and of the reference.

    Raises:
        UserError: For a mistake that you can mend, as a file that is not of an export.

    Examples:
        >>> evaluate(["float.onnx", "model.onnx"], "validation").models[1].drop
    """
    named = [models] if isinstance(models, (str, Path)) else list(models)
    if not named:
        raise UserError("no models to evaluate; expected at least one")
    require_running(threads, batch)
    require_engine(engine)
    compared = read_model_file(Path(named[0] if reference is None else reference))
    files = [read_model_file(Path(model), compared) for model in named]
    for file in files if reference is not None else ():
        require_reference_of(file, compared)
    plans = tuple(_plan_beside(file) for file in files if data is None and not (file.embedded or is_float(file)))
    source = _source(data, images, where, skip_unreadable, plans)
    looked_up = None if gallery is None else _source(gallery, None, None, skip_unreadable, ())
    found = evaluate_files(files, source, compared, threads, batch, progress, looked_up, engine, tasks)
    return found if engine == "onnxruntime" else _with_integer_products(found)


def _with_integer_products(found: Evaluations) -> Evaluations:
    counted = (replace(m, integer_products=audit_in(found.engine, Path(m.path)).fraction) for m in found.models)
    return replace(found, models=tuple(counted))


def check_parity(
    model: AnyPath,
    reference: AnyPath,
    data: AnyPath | None = None,
    *,
    plan: AnyPath | None = None,
    require_plan: bool = False,
    min_agreement: float | None = None,
    max_drop: float | None = None,
    max_kl: float | None = None,
    min_cosine: float | None = None,
    min_worst_cosine: float | None = None,
    images: int | None = None,
    where: str | None = None,
    skip_unreadable: bool = False,
    threads: int = 0,
    batch: int = 8,
    engine: EngineName = "onnxruntime",
    progress: Progress = silent,
) -> ParityResult:
    """Check that a quantised model is what export writes, runs in integers, and agrees with its float model.

    Limits fit the output kind of the model, and None is the kind's default; a limit of another kind is an error.

    Args:
        model: The quantised file.
        reference: The float.onnx of the same export.
        data: As of `evaluate`.
        plan: The plan.json of the export; None: the one next to `model`, if any. Without a plan much cannot be checked,
            as the result says.
        require_plan: Fail where there is no plan.
        min_agreement: A share of the images, 0 to 1: of equal predictions (logits, 0.99), or of those that keep their
            nearest neighbour (embedding, no limit).
        max_drop: Points of top-1 (logits) or of k-NN accuracy (embedding); needs labels. No limit by default.
        max_kl: Mean KL from the float model in nats (logits). No limit by default.
        min_cosine: To the float outputs, the mean over images or tokens (embedding, features; 0.99).
        min_worst_cosine: Of the worst image or token (embedding, features). No limit by default.
        images: As of `evaluate`.
        where: As of `evaluate`.
        skip_unreadable: As of `evaluate`.
        threads: As of `evaluate`.
        batch: Images at once.
        engine: What `model` runs in where outputs are compared. With "openvino" its kernels are audited as well; all
            else is ONNX Runtime's.
        progress: As of `export`.

    Returns:
        All checks with a sentence each. A check that fails is no exception: ask `passed`.

    Raises:
        UserError: For a mistake that you can mend, as a limit of another output kind.

    Examples:
        >>> check_parity("model.onnx", "float.onnx", "validation").passed
    """
    limits = Limits(min_agreement, max_drop, max_kl, min_cosine, min_worst_cosine)
    require_running(threads, batch)
    require_engine(engine)
    for path in (model, reference):
        if is_own_format(Path(path)):
            raise UserError(f"parity reads ONNX files, {path} is of OpenVINO's own format; use eval --engine openvino")
    file, compared = read_model_file(Path(model)), read_model_file(Path(reference))
    beside = file.path.with_name("plan.json")
    chosen = Path(plan) if plan is not None else (beside if beside.is_file() else None)
    known = None if chosen is None else read_plan(chosen)
    source = _source(data, images, where, skip_unreadable, (known,))
    return check_files(file, compared, source, known, limits, threads, batch, progress, engine, require_plan)


def _plan_beside(file: ModelFile) -> ScalePlan | None:
    """The plan.json next to a model, if it is one of this model with these weights."""
    path = file.path.with_name("plan.json")
    plan = read_plan(path) if path.is_file() else None
    return plan if plan is not None and (plan.model, plan.weights) == (file.model, file.weights) else None


def _source(
    data: AnyPath | None, images: int | None, where: str | None, skip_unreadable: bool,
    plans: tuple[ScalePlan | None, ...],
) -> ImageSource:  # fmt: skip
    rows = None if where is None else Where.parse(where)
    return ImageSource(None if data is None else Path(data), images, rows, skip_unreadable=skip_unreadable, plans=plans)
