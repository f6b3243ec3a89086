"""Quantise softmax's output as a twin: small and large probabilities take steps of their own."""

from __future__ import annotations

import numpy as np

from ptq4vit_onnx.passes.byte_codes import add_quantize
from ptq4vit_onnx.passes.join_branches import give_branches
from ptq4vit_onnx.passes.pass_interface import Pass
from ptq4vit_onnx.passes.product_invariants import split_twins
from ptq4vit_onnx.passes.twin_codes import coarse_bytes, fine_bytes
from ptq4vit_onnx.passes.work import Product, Work
from ptq4vit_onnx.plan.quantizers import TwinSoftmax


class SplitSoftmax(Pass):
    """Probabilities below the split take the fine step, the others the coarse step; never both.

        p -> MatMul   becomes   p -> ThresholdedRelu -> QuantizeLinear (coarse) -> MatMul.coarse -> Add
                                 \\-> Sub of that    -> QuantizeLinear (fine)   -> MatMul ----------^

    ThresholdedRelu keeps what is at or above the split and makes the rest 0; what it takes away is the fine branch.
    Both are exact. Where the split lies within half a coarse step, the values below it are zero in coarse steps, and
    the coarse branch reads p itself. Where the aligned codes fit a byte, the two are joined and there is one product.
    """

    # QuantizeActivations: both branches read the quantised right side. RestoreHeadScales: they share its Mul.
    requires = ("QuantizeActivations", "RestoreHeadScales")
    ensures = (split_twins(TwinSoftmax),)

    def apply(self, work: Work) -> int:
        products = [item for item in work.products if isinstance(item.lhs, TwinSoftmax)]
        for product in products:
            self._split(work, product)
        return len(products)

    def _split(self, work: Work, product: Product) -> None:
        twin, name, p = product.lhs, product.name, product.node.inputs[0]
        assert isinstance(twin, TwinSoftmax)
        large = work.add("ThresholdedRelu", f"{name}/lhs.coarse/ThresholdedRelu", [p], alpha=_below(twin.split))
        small = work.add("Sub", f"{name}/lhs/Sub", [p, large])
        fine = add_quantize(work, small, fine_bytes(twin), f"{name}/lhs", reach=twin.split)
        from_large = twin.split > twin.coarse / 2
        coarse = add_quantize(work, large if from_large else p, coarse_bytes(twin), f"{name}/lhs.coarse")
        give_branches(work, product, fine, coarse)


def _below(split: float) -> float:
    """The largest float below the split: ThresholdedRelu drops what equals its alpha, and the split belongs above."""
    return float(np.nextafter(np.float32(split), np.float32(0)))
