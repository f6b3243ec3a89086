"""Quantise GELU's output as a twin: negatives and positives take steps of their own."""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs

from ptq4vit_onnx.passes.byte_codes import add_clip, add_quantize
from ptq4vit_onnx.passes.join_branches import give_branches
from ptq4vit_onnx.passes.pass_interface import Pass
from ptq4vit_onnx.passes.product_invariants import split_twins
from ptq4vit_onnx.passes.twin_codes import coarse_bytes, fine_bytes, gelu_bytes
from ptq4vit_onnx.passes.work import Product, Work, scalar
from ptq4vit_onnx.plan.quantizers import TwinGelu

EIGHTH_BIT = 128


class SplitGelu(Pass):
    """Negatives take the fine step, positives the coarse step.

        x -> MatMul    becomes    x -> LeakyRelu -> QuantizeLinear -> Clip         -> MatMul        -> Add
                                                          v                                            ^
                                                          +-> Clip, BitwiseXor -> MatMul.coarse -------+

    The steps are a power of two apart: negatives times that power, in coarse steps, are negatives in fine
    steps, exactly. So one QuantizeLinear gives the codes of both branches around one zero point; what lies below
    it is the fine branch, the rest the coarse one. Around the zero point 128, the eighth bit is all that tells a byte
    of the coarse branch from its code. Around another one a second QuantizeLinear makes the coarse codes. Where the
    aligned codes fit a byte, the two are joined and there is one product.
    """

    # QuantizeWeights: whether the branches fit one product depends on the codes; both read the quantised right side
    requires = ("QuantizeWeights", "QuantizeActivations", "RestoreHeadScales")
    ensures = (split_twins(TwinGelu),)

    def apply(self, work: Work) -> int:
        products = [item for item in work.products if isinstance(item.lhs, TwinGelu)]
        for product in products:
            self._split(work, product)
        return len(products)

    def _split(self, work: Work, product: Product) -> None:
        twin, name, x = product.lhs, product.name, product.node.inputs[0]
        assert isinstance(twin, TwinGelu)
        if twin.shift:
            x = work.add("LeakyRelu", f"{name}/lhs/LeakyRelu", [x], alpha=float(2**twin.shift))
        codes = gelu_bytes(twin)
        both = add_quantize(work, x, codes, f"{name}/lhs.twin")
        fine = add_clip(work, both, fine_bytes(twin), f"{name}/lhs")
        if codes.zero == EIGHTH_BIT:
            coarse = _without_eighth_bit(work, both, f"{name}/lhs.coarse")
        else:
            coarse = add_quantize(work, x, coarse_bytes(twin), f"{name}/lhs.coarse")
        give_branches(work, product, fine, coarse)


def _without_eighth_bit(work: Work, both: gs.Tensor, name: str) -> gs.Tensor:
    """Bytes max(both, 128) - 128."""
    bit = work.constant(f"{name}/low", scalar(EIGHTH_BIT, np.uint8))
    raised = work.add("Clip", f"{name}/Clip", [both, bit, gs.Variable.empty()])
    return work.add("BitwiseXor", f"{name}/BitwiseXor", [raised, bit])
