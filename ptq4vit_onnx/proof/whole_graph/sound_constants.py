"""Constants that no export writes, whatever the plan: not finite, scales that scale nothing, codes out of range."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx

from ptq4vit_onnx.graph.integer_products import Array, GraphIndex
from ptq4vit_onnx.graph.value_ranges import code_bounds
from ptq4vit_onnx.proof.whole_graph.differences import Difference

_QUANTISING = ("QuantizeLinear", "DequantizeLinear")
_CODES = (np.dtype(np.uint8), np.dtype(np.int8))


def unsound_constants(model: onnx.ModelProto, reference: onnx.ModelProto) -> list[Difference]:
    """Values that the float model itself has (minus infinity in a mask) are sound."""
    index, known = GraphIndex(model), GraphIndex(reference)
    return [*_not_finite(index, known), *(item for node in index.nodes for item in _unsound(index, node))]


def _not_finite(index: GraphIndex, known: GraphIndex) -> Iterator[Difference]:
    for node in index.nodes:
        for name in node.input:
            value = index.constant(name)
            if value is not None and value.dtype.kind == "f" and not np.isfinite(value).all():
                own = known.constant(name)
                if own is None or own.tobytes() != value.tobytes():
                    yield Difference(node.name, f"constant {name} of {node.name} is not finite")


def _unsound(index: GraphIndex, node: onnx.NodeProto) -> Iterator[Difference]:
    if node.op_type == "Clip":
        low, high = (index.constant(name) if name else None for name in [*node.input, "", ""][1:3])
        if low is not None and high is not None and not (low <= high).all():
            yield Difference(node.name, f"{node.name} clips to {low.tolist()}..{high.tolist()}")
    if node.op_type not in _QUANTISING:
        return
    scale, zero, codes = (index.constant(name) if name else None for name in _operands(node))
    if scale is None or not (scale > 0).all():
        said = "not a constant" if scale is None else f"{_worst(scale):.3g}"
        yield Difference(node.name, f"the scale {node.input[1]} of {node.name} is {said}, expected more than 0")
    if codes is not None and node.op_type == "DequantizeLinear" and codes.dtype not in _CODES:
        yield Difference(node.name, f"the codes of {node.name} are {codes.dtype}, expected bytes")
    if len(node.input) > 2 and node.input[2]:
        yield from _unsound_zero(index, node, zero)


def _unsound_zero(index: GraphIndex, node: onnx.NodeProto, zero: Array | None) -> Iterator[Difference]:
    """A zero point is a byte, and among the codes that can arrive: every quantizer has a code for zero."""
    if zero is None or zero.dtype not in _CODES:
        said = "not a constant" if zero is None else str(zero.dtype)
        yield Difference(node.name, f"the zero point of {node.name} is {said}, expected a byte")
    elif node.op_type == "DequantizeLinear":
        low, high = code_bounds(index, node.input[0])
        if not (low <= zero.min() and zero.max() <= high):
            said = f"the zero point of {node.name} is {zero.reshape(-1)[:4].tolist()}"
            yield Difference(node.name, f"{said}, the codes that it reads are {low:g}..{high:g}")


def _operands(node: onnx.NodeProto) -> tuple[str, str, str]:
    """scale, zero point, codes"""
    padded = [*node.input, "", ""]
    return padded[1], padded[2], padded[0]


def _worst(scale: Array) -> float:
    return float(np.nan_to_num(scale.astype(np.float64), nan=-np.inf).min())
