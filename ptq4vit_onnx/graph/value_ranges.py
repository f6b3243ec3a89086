"""Interval arithmetic on a graph: the lowest and highest value a tensor can hold, whatever the image."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto

from ptq4vit_onnx.graph.integer_products import GraphIndex
from ptq4vit_onnx.graph.movement import KEEPING_VALUES

Bounds = tuple[float, float]

_TYPE_BOUNDS: dict[int, Bounds] = {TensorProto.UINT8: (0, 255), TensorProto.INT8: (-128, 127)}
_UNBOUNDED: Bounds = (-float("inf"), float("inf"))
_GELU: Bounds = (-0.16998, float("inf"))  # its minimum is -0.169971..; a little lower, because kernels round
_FLOAT_BOUNDS: dict[str, Bounds] = {
    "Softmax": (0.0, 1.0),
    "Relu": (0.0, float("inf")),
    "Sigmoid": (0.0, 1.0),
}
_WRAPPING_OPS = frozenset({"Add", "Cast"})
HIGHEST_BIT = 128  # of a byte
_DEPTH = 64  # more nodes than lie between two products


def code_bounds(index: GraphIndex, name: str, depth: int = _DEPTH) -> Bounds:
    """Lowest and highest value that tensor `name` can hold; its type's range where nothing narrows it."""
    limits = _TYPE_BOUNDS.get(index.element_type(name), _UNBOUNDED)
    constant = index.constant(name)
    if constant is not None and constant.size:
        return float(constant.min()), float(constant.max())
    node = index.producer.get(name)
    if node is None or depth == 0:
        return limits
    bounds = _node_bounds(index, node, depth - 1)
    if node.op_type in _WRAPPING_OPS:
        return _wrapped(bounds, limits)
    return float(np.clip(bounds[0], *limits)), float(np.clip(bounds[1], *limits))


def _node_bounds(index: GraphIndex, node: onnx.NodeProto, depth: int) -> Bounds:
    op = node.op_type
    if op in _FLOAT_BOUNDS:
        return _FLOAT_BOUNDS[op]
    if op in {"Gelu", "BiasGelu"} and not _is_approximate(node):
        return _GELU
    if op == "LeakyRelu":
        return _leaked(index, node, depth)
    if op == "QuantizeLinear":
        return _quantized(index, node, depth)
    if op == "Clip":
        low, high = (_constant_or(index, node, position) for position in (1, 2))
        return _clipped(code_bounds(index, node.input[0], depth), low, high)
    if op == "Add":
        return _added(index, node, depth)
    if op == "Sub":
        return _cut_off(index, node, depth)
    if op == "Cast":
        return _cast(index, node, depth)
    if op == "BitwiseXor":
        return _without_bit(index, node, depth)
    if op == "Concat":
        parts = [code_bounds(index, tensor, depth) for tensor in node.input]
        return min(low for low, _ in parts), max(high for _, high in parts)
    if op in KEEPING_VALUES:
        return code_bounds(index, node.input[0], depth)
    return _UNBOUNDED


def _is_approximate(node: onnx.NodeProto) -> bool:
    """The tanh form of GELU goes a little lower."""
    return any(item.name == "approximate" and item.s != b"none" for item in node.attribute)


def _leaked(index: GraphIndex, node: onnx.NodeProto, depth: int) -> Bounds:
    alpha = next((item.f for item in node.attribute if item.name == "alpha"), 0.01)
    low, high = code_bounds(index, node.input[0], depth)
    if alpha < 0:
        return _UNBOUNDED
    return (low * alpha if low < 0 else low), (high * alpha if high < 0 else high)


def _cut_off(index: GraphIndex, node: onnx.NodeProto, depth: int) -> Bounds:
    """x - Clip(x, .., high): how far x lies above `high`, never negative; of other differences nothing is known."""
    kept = kept_part(index, node)
    high = None if kept is None or kept.input[1] else _constant_or(index, kept, 2)
    whole = code_bounds(index, node.input[0], depth)
    return _UNBOUNDED if high is None else (max(0.0, whole[0] - high), max(0.0, whole[1] - high))


def _without_bit(index: GraphIndex, node: onnx.NodeProto, depth: int) -> Bounds:
    """x ^ bit, the highest one: x - bit where every x has it, x + bit where none has."""
    bit = _constant_or(index, node, 1)
    low, high = code_bounds(index, node.input[0], depth)
    if bit != HIGHEST_BIT or low < bit <= high:
        return _UNBOUNDED
    return (low - bit, high - bit) if low >= bit else (low + bit, high + bit)


def kept_part(index: GraphIndex, node: onnx.NodeProto) -> onnx.NodeProto | None:
    """The Clip of x in the difference x - Clip(x), if that is what `node` computes."""
    clip = index.producer.get(node.input[1]) if node.op_type == "Sub" else None
    return clip if clip is not None and clip.op_type == "Clip" and clip.input[0] == node.input[0] else None


def _quantized(index: GraphIndex, node: onnx.NodeProto, depth: int) -> Bounds:
    """Rounding and dividing keep the order, so the codes of the lowest and highest float bound all others."""
    scale = index.constant(node.input[1])
    zero = index.constant(node.input[2]) if len(node.input) > 2 else np.zeros(1)
    if scale is None or zero is None or scale.size != 1 or zero.size != 1:
        return _UNBOUNDED
    floats = code_bounds(index, node.input[0], depth)
    low, high = (float(np.rint(np.float32(value) / np.float32(scale.item()))) for value in floats)
    return low + float(zero.item()), high + float(zero.item())


def _added(index: GraphIndex, node: onnx.NodeProto, depth: int) -> Bounds:
    """An Add of bytes and a constant, before it wraps around."""
    for position in (0, 1):
        shift = _constant_or(index, node, position)
        if shift is not None:
            low, high = code_bounds(index, node.input[1 - position], depth)
            return low + shift, high + shift
    return _UNBOUNDED


def _cast(index: GraphIndex, node: onnx.NodeProto, depth: int) -> Bounds:
    """A cast of bytes. Behind an Add: the bounds of the sum before it wraps, since wrapping twice is wrapping once.
    A byte with its highest bit turned is read as the byte minus 128."""
    source = index.producer.get(node.input[0])
    if source is not None and source.op_type == "Add":
        return _added(index, source, depth - 1)
    if source is not None and source.op_type == "BitwiseXor" and _constant_or(index, source, 1) == HIGHEST_BIT:
        low, high = code_bounds(index, source.input[0], depth - 1)
        return low - HIGHEST_BIT, high - HIGHEST_BIT
    return code_bounds(index, node.input[0], depth)


def _wrapped(bounds: Bounds, limits: Bounds) -> Bounds:
    """Bounds of whole numbers that wrap into a byte's range: moved by 256s, if that leaves one interval."""
    if not all(np.isfinite((*bounds, *limits))):
        return limits
    turns = np.floor((bounds[0] - limits[0]) / 256) * 256
    low, high = float(bounds[0] - turns), float(bounds[1] - turns)
    return (low, high) if high <= limits[1] else limits


def _constant_or(index: GraphIndex, node: onnx.NodeProto, position: int) -> float | None:
    name = node.input[position] if position < len(node.input) else ""
    value = index.constant(name) if name else None
    return None if value is None or value.size != 1 else float(value.item())


def _clipped(bounds: Bounds, low: float | None, high: float | None) -> Bounds:
    lowest = bounds[0] if low is None else max(bounds[0], low)
    highest = bounds[1] if high is None else min(bounds[1], high)
    return lowest, max(lowest, highest)
