"""Quantizers: frozen values that round a tensor onto the points k bits can hold, and answer for themselves.

Adding one takes a dataclass here, in QUANTIZERS, and a pass that emits it: plan JSON, search, simulators, report and
proof ask the quantizer and need not know it (tests/test_new_quantizer.py adds one and takes it the whole way).
"""

from __future__ import annotations

from ptq4vit_onnx.plan.quantizers.affine import Affine
from ptq4vit_onnx.plan.quantizers.compensated import Compensated
from ptq4vit_onnx.plan.quantizers.pixels import Pixels
from ptq4vit_onnx.plan.quantizers.quantizer import Branch, Colour, Points, Quantizer
from ptq4vit_onnx.plan.quantizers.rounding import MAX_BITS, MIN_BITS, Tensor, along_axis, as_float32, require_scales
from ptq4vit_onnx.plan.quantizers.twins import GELU_MINIMUM, Twin, TwinGelu, TwinSoftmax
from ptq4vit_onnx.plan.quantizers.uniform import Diffused, Uniform
from ptq4vit_onnx.plan.quantizers.weight_codes import WeightCodes

__all__ = [
    "GELU_MINIMUM",
    "MAX_BITS",
    "MIN_BITS",
    "QUANTIZERS",
    "Affine",
    "Branch",
    "Colour",
    "Compensated",
    "Diffused",
    "Pixels",
    "Points",
    "Quantizer",
    "Tensor",
    "Twin",
    "TwinGelu",
    "TwinSoftmax",
    "Uniform",
    "WeightCodes",
    "along_axis",
    "as_float32",
    "forms_for",
    "require_scales",
]

# Every quantizer by the name it has in plan.json.
QUANTIZERS: dict[str, type[Quantizer]] = {
    form.kind: form for form in (Uniform, Diffused, Compensated, Affine, TwinSoftmax, TwinGelu, Pixels)
}


def forms_for(source: str) -> list[type[Quantizer]]:
    """The quantizers made for what comes out of `source` alone: softmax or gelu."""
    return [form for form in QUANTIZERS.values() if form.source == source]
