"""The twin quantisation of GELU's output, as two branches or as one."""

from __future__ import annotations

from ptq4vit_onnx.passes.a_pass import Pass
from ptq4vit_onnx.passes.byte_codes import add_quantize
from ptq4vit_onnx.passes.join_branches import give_branches
from ptq4vit_onnx.passes.twin_codes import coarse_bytes, fine_bytes
from ptq4vit_onnx.passes.work import Product, Work
from ptq4vit_onnx.quantizers import TwinGelu


class SplitGelu(Pass):
    """Negatives take the fine step, positives the coarse step.

        x -> MatMul     becomes     x -> QuantizeLinear (zero point at the top)    -> MatMul        -> Add
                                    x -> QuantizeLinear (zero point at the bottom) -> MatMul.coarse ---^

    No mask is needed: a byte cannot lie above the top or below the bottom, so each branch drops the other's
    values. Where the aligned codes fit a byte, the two are added as bytes and there is one product.
    """

    requires = ("RestoreHeadScales",)

    def apply(self, work: Work) -> int:
        products = [item for item in work.products if isinstance(item.lhs, TwinGelu)]
        for product in products:
            self._split(work, product)
        return len(products)

    def _split(self, work: Work, product: Product) -> None:
        twin, name, x = product.lhs, product.name, product.node.inputs[0]
        assert isinstance(twin, TwinGelu)
        fine = add_quantize(work, x, fine_bytes(twin), f"{name}/lhs")
        coarse = add_quantize(work, x, coarse_bytes(twin), f"{name}/lhs.coarse")
        give_branches(work, product, fine, coarse)
