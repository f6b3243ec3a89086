"""Bring linear layers into one form."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_graphsurgeon as gs

from ptq4vit_onnx.passes.pass_interface import Pass
from ptq4vit_onnx.passes.product_invariants import matrix_products
from ptq4vit_onnx.passes.tensors import constant_inputs, only_reader, replace_tensor, shape_of
from ptq4vit_onnx.passes.work import Product, Violation, Work, integers, invariant


@invariant("the left side of no planned linear has two axes", until="QuantizeActivations")
def left_sides_are_no_matrices(work: Work) -> Iterator[Violation]:
    for product in work.products:
        if product.plan.kind == "linear" and len(product.node.inputs[0].shape or ()) == 2:
            yield product.violation("ONNX Runtime would compute it as a float Gemm")


class UnifyProducts(Pass):
    """Every planned linear becomes MatMul with a constant [inputs, outputs], and an Add if it has a bias.

        Gemm(x, W, b)     becomes     Unsqueeze -> MatMul -> Add -> Squeeze

    The left side gets rank three, because ONNX Runtime turns a MatMul of rank two and its bias Add back
    into a float Gemm. Refuses right sides that are no constant matrix.
    """

    # DropUnreadRows reads shapes and the order of nodes, which this pass does not keep up
    requires = ("FindProducts", "DropUnreadRows")
    ensures = (matrix_products("linear"), left_sides_are_no_matrices)

    def apply(self, work: Work) -> int:
        products = [item for item in work.products if item.plan.kind == "linear"]
        for product in products:
            self._unify(work, product)
        return len(products)

    def _unify(self, work: Work, product: Product) -> None:
        node = product.node
        if len(node.inputs) < 2 or not isinstance(node.inputs[1], gs.Constant):
            raise self.refuse(product.site, node.name, "the right side of a linear must be a constant")
        if len(node.inputs[1].shape) != 2:
            raise self.refuse(
                product.site, node.name, f"expected a weight of two axes, got shape {list(node.inputs[1].shape)}"
            )
        if node.op == "MatMul" and len(node.inputs[0].shape or ()) != 2:
            return
        bias, end = self._bias(product)
        matrix = node.inputs[1].values
        if node.attrs.get("transB", 0):
            matrix = np.ascontiguousarray(matrix.T)
        site, first = product.site, work.constant(f"{product.site}/first_axis", integers(0))
        lhs = work.add("Unsqueeze", f"{site}/Unsqueeze", [node.inputs[0], first])
        node.name = f"{site}/float"
        out = work.add("MatMul", f"{site}/MatMul", [lhs, gs.Constant(f"{site}/float_weight", matrix)])
        product.node = out.inputs[0]
        if bias is not None:
            out = work.add("Add", f"{site}/Add", [out, bias])
        out = work.add("Squeeze", f"{site}/Squeeze", [out, first])
        replace_tensor(end, out)

    def _bias(self, product: Product) -> tuple[gs.Tensor | None, gs.Tensor]:
        """The bias, if there is one, and the tensor behind it."""
        node = product.node
        if node.op == "MatMul":
            add = bias_add(node)
            if add is None:
                return None, node.outputs[0]
            add.name = f"{product.site}/float_bias"
            return constant_inputs(add)[0], add.outputs[0]
        plain = node.attrs.get("alpha", 1.0) == 1.0 and node.attrs.get("beta", 1.0) == 1.0
        if not plain or node.attrs.get("transA", 0):
            raise self.refuse(product.site, node.name, f"expected a plain Gemm, got {dict(node.attrs)}")
        return (node.inputs[2] if len(node.inputs) > 2 else None), node.outputs[0]


def bias_add(node: gs.Node) -> gs.Node | None:
    """The Add of a constant vector right behind a product, if that is all that reads the product."""
    reader = only_reader(node.outputs[0])
    if reader is None or reader.op != "Add":
        return None
    constants, outputs = constant_inputs(reader), shape_of(node.inputs[1])[-1]
    return reader if len(constants) == 1 and list(constants[0].shape) == [outputs] else None
