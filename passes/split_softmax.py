"""Quantise softmax's output as a twin: small and large probabilities take steps of their own."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_graphsurgeon as gs

from ptq4vit_onnx.passes.byte_codes import add_quantize
from ptq4vit_onnx.passes.join_branches import give_branches
from ptq4vit_onnx.passes.pass_interface import Pass
from ptq4vit_onnx.passes.product_invariants import split_twins
from ptq4vit_onnx.passes.twin_codes import coarse_bytes, fine_bytes
from ptq4vit_onnx.passes.work import Product, Work, scalar
from ptq4vit_onnx.plan.quantizers import TwinSoftmax


class SplitSoftmax(Pass):
    """Probabilities below the split take the fine step, the others the coarse step; never both.

        p -> MatMul   becomes   p -> QuantizeLinear (fine)   -> Mul by (p < split)     -> MatMul        -> Add
                                p -> QuantizeLinear (coarse) -> Mul by 1 - (p < split) -> MatMul.coarse ---^

    The mask is a byte too: multiplying bytes costs less than splitting p as floats. Where the split lies within
    half a coarse step, the values below it are zero in coarse steps, and the coarse branch needs no mask.
    Where the aligned codes fit a byte, the two are added as bytes and there is one product.
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
        is_fine = _below(work, p, twin.split, f"{name}/lhs/mask")
        fine = add_quantize(work, p, fine_bytes(twin), f"{name}/lhs")
        coarse = add_quantize(work, p, coarse_bytes(twin), f"{name}/lhs.coarse")
        fine = work.add("Mul", f"{name}/lhs/Mul", [fine, is_fine])
        if twin.split > twin.coarse / 2:
            one = work.constant(f"{name}/lhs/mask/one", scalar(1, np.uint8))
            is_coarse = work.add("Sub", f"{name}/lhs/mask/Sub", [one, is_fine])
            coarse = work.add("Mul", f"{name}/lhs.coarse/Mul", [coarse, is_coarse])
        give_branches(work, product, fine, coarse)


def _below(work: Work, p: gs.Tensor, split: float, name: str) -> gs.Tensor:
    """Bytes 1 where p < split, else 0. The split is a power of two, so comparing floats is exact."""
    below = work.add("Less", f"{name}/Less", [p, work.constant(f"{name}/split", scalar(split, np.float32))])
    return work.add("Cast", f"{name}/Cast", [below], to=onnx.TensorProto.UINT8)
