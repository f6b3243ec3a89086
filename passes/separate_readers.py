"""Keep products on integer kernels whose outputs are read as codes and as floats."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ptq4vit_onnx.passes.pass_interface import Pass
from ptq4vit_onnx.passes.tensors import shape_of
from ptq4vit_onnx.passes.work import Product, Violation, Work, invariant


@invariant("a product that a QuantizeLinear reads is read by nobody else")
def readers_are_alone(work: Work) -> Iterator[Violation]:
    shown = {id(tensor) for tensor in work.graph.outputs}
    yield from (
        item.violation("ONNX Runtime would compute it in float") for item in work.products if _is_shared(item, shown)
    )


class SeparateReaders(Pass):
    """Put an Add of zeros behind a product whose output a QuantizeLinear and somebody else read.

        MatMul -> QuantizeLinear            becomes       MatMul -> Add -> QuantizeLinear
              \\-> Add (a residual)                                    \\-> Add (a residual)

    ONNX Runtime makes one integer kernel of a MatMul and the QuantizeLinear behind it, or of a MatMul that no
    QuantizeLinear reads; of a MatMul between the two it makes none. A product with a bias has an Add behind it
    already. The zeros are a row, which ONNX Runtime takes for a bias; a single zero it would leave out.
    """

    requires = ("CarryBytes",)  # lifts QuantizeLinears up to products
    ensures = (readers_are_alone,)

    def apply(self, work: Work) -> int:
        shown = {id(tensor) for tensor in work.graph.outputs}
        shared = [item for item in work.products if _is_shared(item, shown)]
        for product in shared:
            zeros = np.zeros((1, self._columns(product)), np.float32)
            name = f"{product.name}/readers"
            work.append_to(product.node, "Add", f"{name}/Add", work.constant(f"{name}/zeros", zeros))
        return len(shared)

    def _columns(self, product: Product) -> int:
        if product.codes is not None:
            return int(product.codes.shape[-1])
        columns = shape_of(product.node.outputs[0])[-1]
        if not isinstance(columns, int):
            raise self.refuse(product.site, product.node.name, f"expected a number of columns, got {columns}")
        return columns


def _is_shared(product: Product, shown: set[int]) -> bool:
    """Is the product's output read by a QuantizeLinear, and by another node or the model's user too?"""
    output = product.node.outputs[0]
    quantized = any(node.op == "QuantizeLinear" for node in output.outputs)
    return quantized and (len(output.outputs) > 1 or id(output) in shown)
