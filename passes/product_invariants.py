"""What several passes ensure about the planned products: their form, and which of their sides carry codes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_graphsurgeon as gs

from ptq4vit_onnx.graph.movement import REARRANGING_OR_PICKING
from ptq4vit_onnx.passes.tensors import is_made_by, maker_of, values_of
from ptq4vit_onnx.passes.work import Invariant, Product, Violation, Work, invariant
from ptq4vit_onnx.plan.quantizers import Affine, TwinGelu, TwinSoftmax, Uniform
from ptq4vit_onnx.plan.sites import Kind

# Between QuantizeLinear and DequantizeLinear bytes are moved, limited and read as signed ones; a roll ends in a
# Concat. Of a twin, the coarse branch loses its eighth bit, and branches that are one product are joined.
_ON_BYTES = REARRANGING_OR_PICKING | {"Concat", "Pad", "Clip", "BitwiseXor", "Cast"}
_ON_BYTES_OF_TWINS = _ON_BYTES | {"Add", "Mul"}


def matrix_products(kind: Kind) -> Invariant:
    """Of the sites of one kind, linear or conv; QuantizeWeights puts codes in the matrix's place."""

    @invariant(f"the product of every planned {kind} is a MatMul by a constant matrix", until="QuantizeWeights")
    def found(work: Work) -> Iterator[Violation]:
        for product in work.products:
            node = product.node
            rhs = node.inputs[1] if len(node.inputs) > 1 else None
            is_matrix = isinstance(rhs, gs.Constant) and len(rhs.shape) == 2
            if product.plan.kind == kind and not (node.op == "MatMul" and is_matrix):
                yield product.violation(f"it is a {node.op} by {'a constant of' if is_matrix else 'no'} two axes")

    return found


@invariant("every side that is marked as quantised reaches its product as bytes through one DequantizeLinear")
def done_sides_carry_codes(work: Work) -> Iterator[Violation]:
    for product in work.products:
        for index, done in enumerate((product.lhs_done, product.rhs_done)):
            problem = _why_no_codes(work, product, index) if done else None
            if problem is not None:
                yield product.violation(f"{'rhs' if index else 'lhs'}: {problem}")


def _why_no_codes(work: Work, product: Product, index: int) -> str | None:
    """What is wrong with the way of a side's codes into the product; None where nothing is."""
    dequantize = maker_of(product.node.inputs[index])
    if dequantize is not None and dequantize.op == "Transpose" and work.target == "openvino":
        dequantize = maker_of(dequantize.inputs[0])
    if dequantize is None or dequantize.op != "DequantizeLinear":
        return f"comes from {'nothing' if dequantize is None else dequantize.op}, not from a DequantizeLinear"
    if product.has_weight and index == 1:
        return None  # constant codes: QuantizeWeights and PackWeights speak of them
    if values_of(dequantize.inputs[1]).shape != ():
        return "has several scales, which no integer kernel takes"
    may_be_signed = index == 1 or (work.target == "openvino" and not product.has_weight)
    if not may_be_signed and values_of(dequantize.inputs[2]).dtype != np.uint8:
        return "is not unsigned"
    return _why_not_quantized(dequantize.inputs[0], len(product.lhs.branches) > 1)


def _why_not_quantized(codes: gs.Tensor, is_twin: bool) -> str | None:
    """What stands between the codes and the QuantizeLinear that made them, if more than operations on bytes."""
    allowed = _ON_BYTES_OF_TWINS if is_twin else _ON_BYTES
    node = maker_of(codes)
    while node is not None and node.op in allowed:
        codes = node.inputs[0]
        node = maker_of(codes)
    if node is None and codes.dtype == np.uint8:  # an input of bytes: see TakeBytes
        return None
    if node is None or node.op != "QuantizeLinear":
        return f"its codes come from {'nothing' if node is None else f'{node.op} {node.name}'}"
    return None


@invariant("every right side is quantised, and every left side whose quantizer has no pass of its own")
def plain_sides_are_done(work: Work) -> Iterator[Violation]:
    for product in work.products:
        has_own_pass = not isinstance(product.lhs, (Uniform, Affine))
        if not product.rhs_done or not (product.lhs_done or has_own_pass):
            yield product.violation(f"the {'lhs' if product.rhs_done else 'rhs'} carries floats")


def split_twins(kind: type[TwinSoftmax] | type[TwinGelu]) -> Invariant:
    """Of the left sides of one kind of twin."""

    @invariant(f"the branches of every {kind.__name__} are one product, or two with the same right side")
    def found(work: Work) -> Iterator[Violation]:
        by_name = {node.name: node for node in work.graph.nodes}
        for product in work.products:
            if not isinstance(product.lhs, kind):
                continue
            second = by_name.get(f"{product.name}/MatMul.coarse")
            count = work.twin_products.get(product.site)
            if not product.lhs_done or count != 1 + (second is not None):
                yield product.violation(f"recorded are {count or 'no'} products, MatMul.coarse is {second is not None}")
            elif second is not None and second.inputs[1] is not product.node.inputs[1]:
                yield product.violation("MatMul.coarse has another right side")
            elif second is not None and not is_made_by(second.inputs[0], "DequantizeLinear"):
                yield product.violation("the left side of MatMul.coarse does not come from a DequantizeLinear")

    return found
