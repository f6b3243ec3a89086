"""Put a quantise/dequantise pair in front of activations."""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs

from ptq4vit_onnx.passes.byte_codes import (
    ByteCodes,
    add_dequantize,
    add_quantize,
    add_signed,
    bytes_of,
    centred_bytes,
    fits_signed,
)
from ptq4vit_onnx.passes.pass_interface import Pass
from ptq4vit_onnx.passes.product_invariants import done_sides_carry_codes, plain_sides_are_done
from ptq4vit_onnx.passes.twin_codes import largest_byte
from ptq4vit_onnx.passes.work import Product, Work
from ptq4vit_onnx.plan.quantizers import Affine, Uniform

SOFTMAX_REACH = 1.00001  # probabilities end at 1; a little more, because softmax rounds its quotients


class QuantizeActivations(Pass):
    """Put a quantise/dequantise pair in front of every planned activation that is not quantised yet.

        x -> MatMul      becomes      x -> QuantizeLinear -> DequantizeLinear -> MatMul

    One scale per head: x is divided by the heads' scales first and the product's output multiplied by them,
    because ONNX Runtime fuses only a DequantizeLinear with one scale into the product. Twins have passes of
    their own.
    """

    requires = ("SplitOutliers", "QuantizeWeights", "QuantizePixels", "FoldHeadScales")
    ensures = (plain_sides_are_done, done_sides_carry_codes)

    def apply(self, work: Work) -> int:
        sides = 0
        for product in work.products:
            if not product.rhs_done:
                self._quantize(work, product, 1)
                product.rhs_done = True
                sides += 1
            if not product.lhs_done and isinstance(product.lhs, (Uniform, Affine)):
                self._quantize(work, product, 0)
                product.lhs_done = True
                sides += 1
        return sides

    def _quantize(self, work: Work, product: Product, side: int) -> None:
        quantizer = product.rhs if side else product.lhs
        name = f"{product.name}/{'rhs' if side else 'lhs'}"
        assert isinstance(quantizer, (Uniform, Affine))
        scale, x = quantizer.scale[0], product.node.inputs[side]
        softmax = side == 0 and product.plan.lhs_source == "softmax"
        reach = SOFTMAX_REACH if softmax else np.inf
        if len(quantizer.scale) > 1:
            scale, x = 1.0, self._divide(work, product, quantizer, x, name)
            reach /= min(quantizer.scale)
        codes = bytes_of(quantizer, scale, never_negative=softmax)
        centred = is_centred(work, product, side, codes)
        codes = centred_bytes(codes) if centred else codes
        x = add_quantize(work, x, codes, name, reach)
        if side and not centred:
            x, codes = choose_sign(work, product, x, codes, name)
        product.node.inputs[side] = add_dequantize(work, x, codes, name)

    def _divide(self, work: Work, product: Product, quantizer: Uniform | Affine, x: gs.Tensor, name: str) -> gs.Tensor:
        """x [.., heads, rows, columns] in units of its heads' scales."""
        if quantizer.axis != -3 or (isinstance(quantizer, Affine) and len(set(quantizer.zero_point)) > 1):
            raise self.refuse(
                product.site,
                product.node.name,
                "several scales must be one per head (axis -3) with one zero point",
            )
        heads = np.asarray(quantizer.scale, np.float32)
        product.scale_output(heads)
        return work.add("Div", f"{name}/Div", [x, work.constant(f"{name}/head_scales", heads.reshape(-1, 1, 1))])


def choose_sign(work: Work, product: Product, x: gs.Tensor, codes: ByteCodes, name: str) -> tuple[gs.Tensor, ByteCodes]:
    """The right side of a product of two activations: int8 where that is exact on every CPU, else uint8."""
    softmax = product.plan.lhs_source == "softmax"
    largest = largest_byte(product.lhs, None, never_negative=softmax)
    return add_signed(work, x, codes, name) if fits_signed(largest, codes) else (x, codes)


def is_centred(work: Work, product: Product, side: int, codes: ByteCodes) -> bool:
    """Is a side of two activations quantised as int8 without a zero point?

    OpenVINO computes such a product in integers only where neither side has a zero point; probabilities have none
    anyway. ONNX Runtime reads a QuantizeLinear and its DequantizeLinear of int8 as unsigned on x86, where full signed
    codes might saturate; elsewhere they cannot.
    """
    probabilities = side == 0 and product.plan.lhs_source == "softmax"
    return work.target == "openvino" and not product.has_weight and not probabilities and centred_bytes(codes).fits
