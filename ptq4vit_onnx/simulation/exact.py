"""The plan in integers, on the torch model: every product as a sum of codes, rounded to float as the runtime does.

The simulator (`fake.Simulator`) multiplies decoded values in float32: good for accuracy, but its last bits are
its own. This one computes each product exactly and goes back to float32 in the same few steps as the file:

    acc * (lhs scale * rhs scale)  [+ the twin's other branch]  [+ outliers]  [+ bias]  [* the heads' scales]

With the runtime's own LayerNorm, softmax and GELU in between (`ort_kernels`), its outputs are the file's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ptq4vit_onnx.network.calls import Call
from ptq4vit_onnx.plan.exact_product import exact_product
from ptq4vit_onnx.plan.file_layout import FileLayout
from ptq4vit_onnx.plan.outlier_split import COLUMNS, ROWS, only_channels, without_channels
from ptq4vit_onnx.plan.quantizers import Quantizer, Uniform
from ptq4vit_onnx.plan.saturation_safe_weights import ship_weight, unit_bias
from ptq4vit_onnx.plan.scale_plan import ScalePlan, SitePlan
from ptq4vit_onnx.plan.sites import Attention

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class _Weight:
    """Codes [.., inputs, outputs] as float32, and what one step of the sums is worth next to a left scale of 1."""

    codes: Tensor
    scale: Tensor


@dataclass(frozen=True)
class _Linear:
    """A linear as it ships. units: where it is folded, what a step of each output column is worth; else None."""

    main: _Weight
    outliers: _Weight | None
    bias: Tensor | None
    units: Tensor | None


class ExactSimulator:
    """A handler that computes each planned product in integers, and rounds to float as a file of `layout` does."""

    def __init__(self, plan: ScalePlan, layout: FileLayout) -> None:
        self.plan, self.layout = plan, layout
        self.linears: dict[str, _Linear] = {}

    def __call__(self, call: Call) -> Tensor:
        plan = self.plan.sites[call.site.name]
        return self._of_activations(call, plan) if plan.kind == "matmul" else self._linear(call, plan)

    def _linear(self, call: Call, plan: SitePlan) -> Tensor:
        name = call.site.name
        if name not in self.linears:
            self.linears[name] = self._prepare(call, plan)
        linear = self.linears[name]
        out = self._product(name, plan.lhs, call.lhs, linear.main)
        if plan.outliers is not None and linear.outliers is not None:
            picked = only_channels(call.lhs, plan.outliers.channels, COLUMNS)
            out = out + self._product(name, plan.outliers.lhs, picked, linear.outliers)
        if linear.bias is not None:
            out = out + linear.bias
        return call.arrange(out if linear.units is None else self._as_bytes(name, out) * linear.units)

    def _as_bytes(self, name: str, out: Tensor) -> Tensor:
        """What leaves a folded qkv: the codes of q, k and v. Times their units they round to these codes again."""
        q, k, v = out.chunk(3, -1)
        scores, values = self._attention(name)
        sides = zip((q, k, v), (scores.lhs, scores.rhs, values.rhs), strict=True)
        limits = ((part, side.branches[0]) for part, side in sides)
        return torch.cat([part.round().clamp(branch.low, branch.high) for part, branch in limits], -1)

    def _of_activations(self, call: Call, plan: SitePlan) -> Tensor:
        name = call.site.name
        folded = Attention.around(name).qkv in self.layout.folded
        left, right = plan.lhs, plan.rhs
        heads, inner = _head_scales(right, folded)
        weight = _Weight(right.units(call.rhs)[0], torch.tensor(inner))
        if len(left.branches) == 1:
            more, outer = _head_scales(left, folded and plan.lhs_source != "softmax")
            heads = more if heads is None else heads if more is None else more * heads
            out = self._kernel(name, left.units(call.lhs)[0], weight, outer)
        else:
            out = self._product(name, left, call.lhs, weight)
        return call.arrange(out if heads is None else out * torch.from_numpy(heads).reshape(-1, 1, 1))

    def _product(self, name: str, lhs: Quantizer, x: Tensor, weight: _Weight) -> Tensor:
        """The branches as one product in fine steps, where the file does so, or each by itself, added up in order."""
        steps = [branch.steps[0] for branch in lhs.branches]
        units = lhs.units(x)
        if name in self.layout.merged:
            in_fine_steps = sum(part * (step / steps[0]) for part, step in zip(units, steps, strict=True))
            return self._kernel(name, torch.as_tensor(in_fine_steps), weight, steps[0])
        first, *others = (self._kernel(name, part, weight, step) for part, step in zip(units, steps, strict=True))
        return sum(others, first)

    def _kernel(self, name: str, codes: Tensor, weight: _Weight, scale: float) -> Tensor:
        """A kernel that returns codes divides by their scale before it multiplies; times the scale they round to
        these codes again."""
        step = self.layout.requantised.get(name)
        if step is None:
            return kernel(codes, weight, scale)
        return kernel(codes, weight, scale, step).round() * step

    def _prepare(self, call: Call, plan: SitePlan) -> _Linear:
        name, weight = call.site.name, call.rhs.numpy()
        attention = self.layout.folded.get(name)
        factors = None if attention is None else self._factors(name, attention, weight.shape[1])
        outliers = None
        if plan.outliers is not None:
            channels = plan.outliers.channels
            narrow = only_channels(weight, channels, ROWS)
            outliers = _weight(narrow, plan.outliers.lhs, plan.outliers.rhs, factors)
            weight = without_channels(weight, channels, ROWS)
        main, constant = _weight(weight, plan.lhs, plan.rhs, factors), None
        if plan.lhs.colours:
            constant = unit_bias(main.codes.numpy(), plan.lhs, plan.rhs)
        inverse = None if factors is None else torch.from_numpy((1 / factors).astype(np.float32))
        bias = _bias(call.bias, plan.bias_correction, factors, weight.shape[1], constant)
        return _Linear(main, outliers, bias, inverse)

    def _factors(self, name: str, attention: float, outputs: int) -> Array:
        """What turns each output column of a qkv into units of its consumer, in float64."""
        scores, values = self._attention(name)
        parts = ((scores.lhs, attention), (scores.rhs, 1.0), (values.rhs, 1.0))
        scales = [(np.asarray(side.branches[0].steps, np.float64), factor) for side, factor in parts]
        return np.concatenate([np.repeat(factor / scale, outputs // 3 // len(scale)) for scale, factor in scales])

    def _attention(self, name: str) -> tuple[SitePlan, SitePlan]:
        attention = Attention.around(name)
        return self.plan.sites[attention.qk], self.plan.sites[attention.pv]


def kernel(codes: Tensor, weight: _Weight, scale: float, step: float = 1.0) -> Tensor:
    """An integer product: its exact sums become float32 and are multiplied by the product of both scales.

    step: what the result is counted in.
    """
    return exact_product(codes, weight.codes).float() * (weight.scale * scale / step)


def _head_scales(quantizer: Quantizer, folded: bool) -> tuple[Array | None, float]:
    """(one factor per head for behind the product, the scale inside it): a kernel takes one scale per side."""
    scales = np.asarray(quantizer.branches[0].steps, np.float32)
    one = len(scales) == 1 or (folded and bool((scales == scales[0]).all()))
    return (None, float(scales[0])) if one else (scales, 1.0)


def _weight(weight: Array, lhs: Quantizer, rhs: Uniform, factors: Array | None) -> _Weight:
    codes, _ = ship_weight(np.ascontiguousarray(weight), lhs, rhs)
    scale = np.repeat(np.asarray(rhs.scale, np.float32), weight.shape[1] // len(rhs.scale))
    if factors is not None:
        scale = (scale.astype(np.float64) * factors).astype(np.float32)
    return _Weight(torch.from_numpy(codes).float(), torch.from_numpy(scale))


def _bias(
    bias: Tensor | None, correction: tuple[float, ...] | None, factors: Array | None, outputs: int,
    constant: Array | None,
) -> Any:  # fmt: skip
    """constant: what the units' zeros add, in float64; never next to factors."""
    if bias is None and correction is None and constant is None:
        return None
    whole = np.zeros(outputs, np.float32) if bias is None else bias.numpy()
    if correction is not None:
        whole = whole + np.asarray(correction, np.float32)
    if constant is not None:
        whole = (whole + constant).astype(np.float32)
    if factors is not None:
        whole = (whole.astype(np.float64) * factors).astype(np.float32)
    return torch.from_numpy(whole)
