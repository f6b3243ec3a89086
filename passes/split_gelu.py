"""Quantise GELU's output as a twin: negatives and positives take steps of their own."""

from __future__ import annotations

from ptq4vit_onnx.passes.byte_codes import add_clip, add_quantize
from ptq4vit_onnx.passes.join_branches import give_branches
from ptq4vit_onnx.passes.pass_interface import Pass
from ptq4vit_onnx.passes.product_invariants import split_twins
from ptq4vit_onnx.passes.twin_codes import fine_bytes, gelu_bytes
from ptq4vit_onnx.passes.work import Product, Work
from ptq4vit_onnx.plan.quantizers import TwinGelu


class SplitGelu(Pass):
    """Negatives take the fine step, positives the coarse step.

        x -> MatMul    becomes    x -> LeakyRelu -> QuantizeLinear -> Clip -> MatMul        -> Add
                                                          v            v                       ^
                                                          +----------> Sub -> MatMul.coarse ---+

    The steps are a power of two apart: negatives times that power, in coarse steps, are negatives in fine
    steps, exactly. So one QuantizeLinear gives the codes of both branches around one zero point; what lies below
    it is the fine branch, the rest the coarse one. Bytes are cut and subtracted in a tenth of the time that a
    second QuantizeLinear takes. Where the aligned codes fit a byte, the two are added as bytes and there is one
    product.
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
        both = add_quantize(work, x, gelu_bytes(twin), f"{name}/lhs.twin")
        fine = add_clip(work, both, fine_bytes(twin), f"{name}/lhs")
        coarse = work.add("Sub", f"{name}/lhs.coarse/Sub", [both, fine])
        give_branches(work, product, fine, coarse)
