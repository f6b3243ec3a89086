"""Replace weights by the int8 codes that ship."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_graphsurgeon as gs

from ptq4vit_onnx.passes.pass_interface import Pass
from ptq4vit_onnx.passes.product_invariants import done_sides_carry_codes
from ptq4vit_onnx.passes.tensors import Array, maker_of, values_of
from ptq4vit_onnx.passes.work import Product, Violation, Work, invariant
from ptq4vit_onnx.plan.saturation_safe_weights import ship_weight


@invariant("every weight is read from a DequantizeLinear of constant int8 codes", until="PackWeights")
def weights_are_codes(work: Work) -> Iterator[Violation]:
    for product in work.weight_products:
        dequantize = maker_of(product.node.inputs[1])
        codes = dequantize.inputs[0] if dequantize is not None else product.node.inputs[1]
        if dequantize is None or dequantize.op != "DequantizeLinear" or not isinstance(codes, gs.Constant):
            yield product.violation(f"its weight is {codes.name}, no DequantizeLinear of a constant")
        elif codes.dtype != np.int8 or codes.values is not product.codes:
            yield product.violation(f"{codes.name} does not hold the int8 codes that were recorded")


@invariant("every weight code lies within the plan's bits", until="FoldHeadScales")
def codes_fit_their_bits(work: Work) -> Iterator[Violation]:
    for product in work.weight_products:
        assert product.codes is not None
        low, high = int(product.codes.min()), int(product.codes.max())
        if low < product.rhs.low or high > product.rhs.high:
            yield product.violation(f"codes {low}..{high} do not fit {product.rhs.bits} bits")


class QuantizeWeights(Pass):
    """Replace every planned weight by its codes and a DequantizeLinear.

        MatMul(x, W)     becomes     MatMul(x, DequantizeLinear(codes, scale))

    The codes are pair-safe: no two neighbouring u8 x s8 products overflow int16, on any CPU. One scale
    stays one scale; groups of output columns become one scale per column. Refuses scales that do not divide the
    columns.
    """

    requires = ("EmbedPatches", "UnifyProducts", "FoldChannels", "ShapeBiases", "SplitOutliers")
    ensures = (weights_are_codes, codes_fit_their_bits, done_sides_carry_codes)

    def apply(self, work: Work) -> int:
        for product in work.weight_products:
            self._quantize(work, product)
        return len(work.weight_products)

    def _quantize(self, work: Work, product: Product) -> None:
        weight, rhs = values_of(product.node.inputs[1]).astype(np.float32), product.rhs
        outputs = weight.shape[1]
        if outputs % len(rhs.scale):
            raise self.refuse(
                product.site,
                product.node.name,
                f"{len(rhs.scale)} weight scales do not divide {outputs} outputs",
            )
        codes, moved = ship_weight(weight, product.lhs, rhs)
        work.moved_weights[product.site] = work.moved_weights.get(product.site, 0) + moved
        scale = np.asarray(rhs.scale, np.float32)
        scale = scale.reshape(()) if len(scale) == 1 else np.repeat(scale, outputs // len(scale))
        product.node.inputs[1] = self._dequantize(work, product, codes, scale)
        product.rhs_done = True

    def _dequantize(self, work: Work, product: Product, codes: Array, scale: Array) -> gs.Variable:
        name = f"{product.name}/weight"
        stored = work.constant(name, codes)
        product.codes = stored.values
        axis = {"axis": 1} if scale.ndim else {}
        return work.add(
            "DequantizeLinear", f"{name}/DequantizeLinear", [stored, work.constant(f"{name}/scale", scale)], **axis
        )
