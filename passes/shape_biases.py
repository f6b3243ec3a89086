"""Give biases the shape that keeps products on integer kernels."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_graphsurgeon as gs

from ptq4vit_onnx.passes.pass_interface import Pass
from ptq4vit_onnx.passes.tensors import constant_inputs, only_reader, shape_of
from ptq4vit_onnx.passes.unify_products import bias_add
from ptq4vit_onnx.passes.work import Product, Violation, Work, invariant


@invariant("the bias of every product with a weight has two axes, and a planned correction has a bias to be in")
def biases_have_two_axes(work: Work) -> Iterator[Violation]:
    for product in work.weight_products:
        biases = [constant for add in _bias_adds(product) for constant in constant_inputs(add)]
        if any(len(bias.shape) == 1 for bias in biases):
            yield product.violation("its bias has one axis: ONNX Runtime would compute a float Gemm")
        if not biases and not product.is_narrow and product.plan.bias_correction is not None:
            yield product.violation("it has no bias, but the plan corrects it")


def _bias_adds(product: Product) -> list[gs.Node]:
    """The Add of its bias; else an Add right behind it that ONNX Runtime would take for one."""
    reader = only_reader(product.node.outputs[0])
    next_to = [reader] if reader is not None and reader.op == "Add" else []
    return [add for add in product.adds if add.name == f"{product.site}/Add"] or next_to


class ShapeBiases(Pass):
    """A linear's bias gets the shape (1, outputs), and the plan's correction is added to it.

    With a bias of shape (outputs) and a static batch, ONNX Runtime turns MatMul and Add into a float Gemm
    before its integer rules run. A product without a bias gets one where the plan corrects it. Refuses
    corrections of another length than the product's outputs.
    """

    # FoldChannels changes biases, and finds them as vectors right behind their products
    requires = ("EmbedPatches", "UnifyProducts", "FoldChannels")
    ensures = (biases_have_two_axes,)

    def apply(self, work: Work) -> int:
        return sum(self._shape(work, item) for item in work.weight_products)

    def _shape(self, work: Work, product: Product) -> bool:
        node, site, outputs = product.node, product.site, int(shape_of(product.node.inputs[1])[-1])
        correction = product.plan.bias_correction
        if correction is not None and len(correction) != outputs:
            raise self.refuse(
                site,
                node.name,
                f"bias_correction has {len(correction)} values, the product {outputs} outputs",
            )
        add = bias_add(node)
        bias = np.zeros(outputs, np.float32) if add is None else constant_inputs(add)[0].values
        if correction is not None:
            bias = bias + np.asarray(correction, np.float32)
        elif add is None:
            return False
        shaped = gs.Constant(f"{site}/bias", bias.astype(np.float32).reshape(1, outputs))
        if add is None:
            work.append_to(node, "Add", f"{site}/Add", shaped)
        else:
            add.inputs = [node.outputs[0], shaped]
        return True
