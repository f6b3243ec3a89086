"""Follow codes back through a graph: to the node that made them, and for twins to the softmax or GELU in front."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import onnx

from ptq4vit_onnx.graph.integer_products import Array, GraphIndex, read_product
from ptq4vit_onnx.graph.value_ranges import code_bounds, kept_part

Step: TypeAlias = Callable[[Array], Array]

_TWIN_SOURCES = frozenset({"Softmax", "Gelu", "BiasGelu", "FastGelu", "QuickGelu"})
_SEARCH_DEPTH = 24  # nodes between softmax or GELU and the integer kernel; a twin's branches have about ten


@dataclass(frozen=True)
class CodePath:
    """How a side's codes are made: floats -> QuantizeLinear -> codes -> operations on bytes -> the product.

    floats is empty where a kernel returned the codes. scale, zeros: QuantizeLinear's scales and zero points, one or
    one per colour; lowest, highest: what it can return, for any image.
    """

    floats: str
    codes: str
    scale: Array
    kind: np.dtype[Any]
    steps: tuple[Step, ...]
    zeros: Array
    lowest: int
    highest: int

    @property
    def zero(self) -> int:
        return int(self.zeros.reshape(-1)[0])

    def arriving(self, codes: Array) -> Array:
        """What QuantizeLinear's codes are when they arrive at the product."""
        for step in self.steps:
            codes = step(codes)
        return codes


def code_path(index: GraphIndex, tensor: str) -> CodePath | None:
    """How the codes in `tensor` were made, if by one QuantizeLinear or by a kernel that returns codes."""
    steps: list[Step] = []
    node = index.producer.get(index.moved_from(tensor))
    while node is not None and (step := _byte_step(index, node)) is not None:
        steps.insert(0, step)
        node = index.producer.get(index.moved_from(node.input[0]))
    if node is None:
        return None
    if node.op_type == "QuantizeLinear" and len(node.input) > 2:
        floats, scale, zero = node.input[0], index.constant(node.input[1]), index.constant(node.input[2])
    else:
        kernel = read_product(index, node)
        floats = ""
        scale, zero = (kernel.output_scale, kernel.output_zero) if kernel is not None else (None, None)
    if scale is None or zero is None:
        return None
    limits, bounds = np.iinfo(zero.dtype), code_bounds(index, node.output[0])
    lowest, highest = max(limits.min, bounds[0]), min(limits.max, bounds[1])
    return CodePath(floats, node.output[0], scale, zero.dtype, tuple(steps), zero, int(lowest), int(highest))


def _byte_step(index: GraphIndex, node: onnx.NodeProto) -> Step | None:
    """An operation on bytes, element by element: Clip, what a Clip cuts off, exclusive or, Add of a constant, Cast.

    The last two wrap around.
    """
    values = [index.constant(name) if name else None for name in node.input]
    if node.op_type == "Clip":
        low, high = (None if value is None else int(value.item()) for value in [*values[1:], None, None][:2])
        return lambda codes: codes.clip(*_limits(codes, low, high))
    clip = kept_part(index, node)
    if clip is not None and (keep := _byte_step(index, clip)) is not None:
        return lambda codes: codes - keep(codes)
    if node.op_type == "BitwiseXor" and values[1] is not None:
        bits = values[1]
        return lambda codes: codes ^ bits.astype(codes.dtype)
    if node.op_type == "Add" and len(values) == 2 and values[0] is None and values[1] is not None:
        shift = values[1]
        return lambda codes: codes + shift.astype(codes.dtype)
    if node.op_type == "Cast":
        target = next(item.i for item in node.attribute if item.name == "to")
        kind = onnx.helper.tensor_dtype_to_np_dtype(target)
        return lambda codes: codes.astype(kind)
    return None


def _limits(codes: Array, low: int | None, high: int | None) -> tuple[int, int]:
    whole = np.iinfo(codes.dtype)
    return (int(whole.min) if low is None else low), (int(whole.max) if high is None else high)


def twin_source(index: GraphIndex, codes: str) -> str | None:
    """The tensor that softmax or GELU wrote and that tensor `codes` was made from."""
    frontier = [codes]
    seen: set[str] = set()
    while frontier and len(seen) < _SEARCH_DEPTH:
        name = frontier.pop(0)
        node = index.producer.get(name)
        if node is None or name in seen:
            continue
        seen.add(name)
        if node.op_type in _TWIN_SOURCES:
            return name
        frontier += [tensor for tensor in node.input if tensor and not index.is_constant(tensor)]
    return None
