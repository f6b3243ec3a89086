"""Every form a file can take, made quickly: embedded models, calibrated in haste, and their plans at all widths."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx

from ptq4vit_onnx.passes import quantize
from ptq4vit_onnx.plan.file_layout import InputType, Target
from ptq4vit_onnx.plan.options import Options
from ptq4vit_onnx.plan.quantizers import Affine, Quantizer, TwinGelu, TwinSoftmax, Uniform, as_float32
from ptq4vit_onnx.plan.scale_plan import Outliers, ScalePlan, SitePlan
from tests.passes.small_models import convolution_model, scale_plan
from tests.passes.small_transformer import transformer_model, transformer_plan

Array = np.ndarray[Any, Any]
TARGETS: tuple[Target, ...] = ("onnxruntime", "openvino")
HASTY: dict[str, Any] = {"metric": "mse", "twin": "none", "images": 8, "candidates": 4}
# weight bits, activation bits, which inputs are twins
WIDTHS = (
    *((bits, 8, "none") for bits in (8, 7, 6, 5, 4, 3, 2)),
    (6, 6, "none"),
    (4, 4, "none"),
    (8, 8, "softmax"),
    (8, 8, "gelu"),
    (6, 8, "both"),
    (6, 6, "both"),
    (4, 4, "both"),
)


@dataclass(frozen=True)
class Form:
    """A quantised model, and images for it: photographs' digits, and such as no photograph has."""

    name: str
    model: onnx.ModelProto
    images: Array


def forms(float_export: Callable[..., Any], digits: Array) -> Iterator[Form]:
    """float_export, digits: the fixtures."""
    for name in ("vit_digits", "swin_digits"):
        made = float_export(name)
        plans = dict(_plans(made))
        for target in TARGETS:
            for title, plan in plans.items():
                model = quantize(made.proto, plan, target=target)[0]
                yield Form(f"{name} {title} for {target}", model, stressed(digits))
        plan = plans["W6A8 both"]
        yield _of_bytes(f"{name} of bytes", made.proto, plan, digits)
        fixed = quantize(float_export(name, 3).proto, plan)[0]
        yield Form(f"{name} for three images", fixed, stressed(digits)[:3])
    for target in TARGETS:
        yield from _small_forms(target)


def stressed(images: Array) -> Array:
    """Two of the images, and two whose pixels are far beyond what calibration saw, or all alike."""
    wild = np.random.default_rng(0).standard_normal((1, *images.shape[1:])) * 100
    return np.concatenate([images[:2], wild, np.zeros_like(wild)]).astype(np.float32)


def _plans(made: Any) -> Iterator[tuple[str, ScalePlan]]:
    """The default options' plan at every width, and plans with options of their own."""
    default = _calibrated(made)
    for weights, activations, twins in WIDTHS:
        yield f"W{weights}A{activations} {twins}", at_widths(default, weights, activations, twins)
    yield "as in the paper", _calibrated(made, weights="per-tensor", activations="symmetric", pixels="searched")
    yield "with outliers", _with_outliers(default)


def _calibrated(made: Any, **options: Any) -> ScalePlan:
    import torch

    from ptq4vit_onnx.calibration.calibrate import calibrate
    from ptq4vit_onnx.images.embedded import embedded_digits
    from ptq4vit_onnx.network.tape import record

    images = embedded_digits(made.model.preprocessing, "calibration", HASTY["images"]).images
    tape = record(made.model.module, torch.from_numpy(images))
    found = calibrate(tape, Options(**HASTY, **options), pixels=made.model.pixel_grid)
    sites = {site.name: found[site.name] for site in made.sites}
    return ScalePlan(made.model.name, made.model.fingerprint, "", {}, {}, sites)


def at_widths(plan: ScalePlan, weights: int, activations: int, twins: str) -> ScalePlan:
    """The plan with other bits and the same ranges; twins: none, softmax, gelu or both."""
    sites = {}
    for name, site in plan.sites.items():
        lhs = _narrowed(site.lhs, activations)
        if site.lhs_source in ("softmax", "gelu") and twins in (site.lhs_source, "both"):
            lhs = _twin(site.lhs_source, lhs)
        sites[name] = replace(site, lhs=lhs, rhs=_narrowed(site.rhs, weights if site.kind != "matmul" else activations))
    return replace(plan, sites=sites)


def _twin(source: str, lhs: Quantizer) -> Quantizer:
    assert isinstance(lhs, (Uniform, Affine))
    gelu = TwinGelu.covering_negatives(lhs.bits, lhs.scale[0])
    return TwinSoftmax(lhs.bits, 3) if source == "softmax" else gelu


def _narrowed(quantizer: Any, bits: int) -> Any:
    """Pixels stay the bytes they are."""
    if not isinstance(quantizer, (Uniform, Affine)) or bits == quantizer.bits:
        return quantizer
    wider = 2.0 ** (quantizer.bits - bits)
    changes: dict[str, Any] = {"bits": bits, "scale": tuple(as_float32(step * wider) for step in quantizer.scale)}
    if isinstance(quantizer, Affine):
        changes["zero_point"] = tuple(int(zero / wider) for zero in quantizer.zero_point)
    return replace(quantizer, **changes)


def _with_outliers(plan: ScalePlan) -> ScalePlan:
    """Channels 1 and 5 of every linear behind GELU have scales of their own."""
    sites: Mapping[str, SitePlan] = {
        name: replace(site, outliers=Outliers((1, 5), Uniform(8, (0.03125,)), Uniform(8, (0.0078125,))))
        if site.lhs_source == "gelu"
        else site
        for name, site in plan.sites.items()
    }
    return replace(plan, sites=sites)


def _of_bytes(name: str, model: onnx.ModelProto, plan: ScalePlan, digits: Array) -> Form:
    taken: InputType = "uint8"
    bytes_of = np.random.default_rng(1).integers(0, 256, (4, *digits.shape[2:], digits.shape[1]))
    return Form(name, quantize(model, plan, input=taken)[0], bytes_of.astype(np.uint8))


def _small_forms(target: Target) -> Iterator[Form]:
    """The transformer that gives every pass something to do, and convolutions that become products."""
    draw, eight = np.random.default_rng(2), Uniform(8, (0.03125,))
    model = transformer_model()
    images = (draw.standard_normal((2, *lengths(model)[1:])) * 10).astype(np.float32)
    for title, plan in (("small transformer", transformer_plan()), ("keys of six bits", _six_bit_keys())):
        yield Form(f"{title} for {target}", quantize(model, plan, target=target)[0], images)
    shapes: tuple[tuple[int, dict[str, Any]], ...] = (
        (3, {"pads": [1, 1, 1, 1]}),
        (3, {"strides": [2, 2]}),
        (1, {"strides": [2, 2]}),
    )
    for kernel, attributes in shapes:
        for lhs in (eight, Affine(8, (0.03125,), (100,))):
            plan = scale_plan({"conv": SitePlan("conv", "other", lhs, eight)})
            model = convolution_model(kernel, **attributes)
            images = (draw.standard_normal((2, *lengths(model)[1:])) * 10).astype(np.float32)
            title = f"convolution {kernel} {attributes} {type(lhs).__name__} for {target}"
            yield Form(title, quantize(model, plan, target=target)[0], images)


def _six_bit_keys() -> ScalePlan:
    """Next to queries of eight bits, as in a plan that was edited by hand."""
    plan = transformer_plan()
    scores = plan.sites["attn.qk"]
    six = Uniform(6, tuple(4 * step for step in scores.rhs.scale), -3)
    return replace(plan, sites={**plan.sites, "attn.qk": replace(scores, rhs=six)})


def lengths(model: onnx.ModelProto) -> list[int]:
    return [axis.dim_value for axis in model.graph.input[0].type.tensor_type.shape.dim]
