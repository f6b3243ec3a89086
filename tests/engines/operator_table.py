"""The operators of our files with their types: why each is defined for the values it is given.

Every engine that we claim has a kernel for each row: tests/engines/test_engines.py runs files that use all of them. All
are of opset 20, which ONNX Runtime has had since 1.17, and which no older release of it reads.

Where ONNX leaves a result open (an overflow, a float out of an integer's range, bits that are shifted out), the row has
a check of the values that really occur. Arithmetic on bytes has no row: older runtimes have no such kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Check = Callable[[Mapping[str, Any], Sequence[Array], Sequence[Array]], bool]


@dataclass(frozen=True)
class Rule:
    """why: a clause. holds: (attributes, inputs, outputs) of a node -> whether the clause is true of these values; an
    input that is left out is an empty array."""

    why: str
    holds: Check


def _always(_attributes: Mapping[str, Any], _inputs: Sequence[Array], _outputs: Sequence[Array]) -> bool:
    return True


def _is_finite(_attributes: Mapping[str, Any], inputs: Sequence[Array], outputs: Sequence[Array]) -> bool:
    return all(bool(np.isfinite(array).all()) for array in (*inputs, *outputs))


def _has_a_scale(attributes: Mapping[str, Any], inputs: Sequence[Array], outputs: Sequence[Array]) -> bool:
    return _is_finite(attributes, inputs, outputs) and bool((inputs[1] > 0).all())


def _is_within(_attributes: Mapping[str, Any], inputs: Sequence[Array], outputs: Sequence[Array]) -> bool:
    """Casts: the value arrives as it is."""
    return bool((inputs[0].astype(np.float64) == outputs[0].astype(np.float64)).all())


def _picks_what_is_there(attributes: Mapping[str, Any], inputs: Sequence[Array], _outputs: Sequence[Array]) -> bool:
    length = inputs[0].shape[attributes.get("axis", 0)]
    return bool(((-length <= inputs[1]) & (inputs[1] < length)).all())


def _limits_are_in_order(_attributes: Mapping[str, Any], inputs: Sequence[Array], _outputs: Sequence[Array]) -> bool:
    low, high = (*inputs[1:], np.empty(0))[:2]
    return not (low.size and high.size) or bool(low <= high)


def _loses_no_bits(attributes: Mapping[str, Any], inputs: Sequence[Array], outputs: Sequence[Array]) -> bool:
    values, by = (array.astype(np.int64) for array in inputs)
    right = attributes["direction"] == b"RIGHT"
    back = outputs[0].astype(np.int64) << by if right else outputs[0].astype(np.int64) >> by
    return bool((by < 8).all() and (back == values).all())


def _fits(exact: Callable[[Array, Array], Array]) -> Check:
    """Sums and products of integers: nothing overflows."""

    def holds(_attributes: Mapping[str, Any], inputs: Sequence[Array], outputs: Sequence[Array]) -> bool:
        wanted = exact(inputs[0].astype(np.int64), inputs[1].astype(np.int64))
        return bool((wanted == outputs[0]).all())

    return holds


MOVED = Rule("elements are moved, and none is changed", _always)
PICKED = Rule("elements are moved, and every index is one of the axis", _picks_what_is_there)
ROUNDED = Rule("IEEE 754 arithmetic on finite numbers; engines may differ in last bits", _is_finite)
SATURATES = Rule("QuantizeLinear rounds half to even and saturates; scales are positive, values finite", _has_a_scale)
DECODES = Rule("a byte minus a zero point fits any integer, and is multiplied by a positive scale", _has_a_scale)
LIMITED = Rule("bytes are limited, and the lower limit is no higher than the upper one", _limits_are_in_order)
ON_BITS = Rule("each bit depends on bits alone, whatever their value", _always)
SHIFTED = Rule("the shift is shorter than a byte, and all bits that fall off are zeros", _loses_no_bits)
KEPT = Rule("every value is one of the type it is cast to", _is_within)
READ_ANEW = Rule("ONNX reads a byte of 128 or more as the byte minus 256: two's complement", _always)
IS_ZERO = Rule("zero is false, all else is true", _always)
CHOSEN = Rule("one of two elements is taken", _always)
ADDED = Rule("int32 sums of bytes do not overflow", _fits(np.add))
MULTIPLIED = Rule("int32 products of bytes and powers of two do not overflow", _fits(np.multiply))
COUNTED = Rule("lengths are counted", _always)

# Operator(inputs) -> outputs. "-": an input that is left out. "..": any number of inputs of one type.
TABLE: Mapping[str, Rule] = {
    # data that moves: as floats, as codes, and the lengths that say how
    "Concat(float32..) -> float32": MOVED,
    "Concat(int64..) -> int64": MOVED,
    "Concat(uint8..) -> uint8": MOVED,
    "Expand(float32, int64) -> float32": MOVED,
    "Gather(float32, int64) -> float32": PICKED,
    "Gather(uint8, int64) -> uint8": PICKED,
    "Pad(uint8, int64, uint8) -> uint8": MOVED,
    "Reshape(float32, int64) -> float32": MOVED,
    "Reshape(uint8, int64) -> uint8": MOVED,
    "Shape(float32) -> int64": COUNTED,
    "Shape(uint8) -> int64": COUNTED,
    "Slice(float32, int64, int64, int64) -> float32": MOVED,
    "Slice(float32, int64, int64, int64, int64) -> float32": MOVED,
    "Slice(uint8, int64, int64, int64) -> uint8": MOVED,
    "Slice(uint8, int64, int64, int64, int64) -> uint8": MOVED,
    "Squeeze(float32, int64) -> float32": MOVED,
    "Squeeze(uint8, int64) -> uint8": MOVED,
    "Transpose(float32) -> float32": MOVED,
    "Transpose(uint8) -> uint8": MOVED,
    "Unsqueeze(uint8, int64) -> uint8": MOVED,
    # floats, between the products
    "Add(float32, float32) -> float32": ROUNDED,
    "Div(float32, float32) -> float32": ROUNDED,
    "Floor(float32) -> float32": ROUNDED,
    "Gelu(float32) -> float32": ROUNDED,
    "LayerNormalization(float32, float32, float32) -> float32": ROUNDED,
    "LeakyRelu(float32) -> float32": ROUNDED,
    "MatMul(float32, float32) -> float32": ROUNDED,
    "Mul(float32, float32) -> float32": ROUNDED,
    "ReduceMean(float32, int64) -> float32": ROUNDED,
    "Softmax(float32) -> float32": ROUNDED,
    "Sub(float32, float32) -> float32": ROUNDED,
    "ThresholdedRelu(float32) -> float32": ROUNDED,
    # between floats and codes
    "DequantizeLinear(int8, float32) -> float32": DECODES,
    "DequantizeLinear(int8, float32, int8) -> float32": DECODES,
    "DequantizeLinear(uint8, float32, uint8) -> float32": DECODES,
    "QuantizeLinear(float32, float32, int8) -> int8": SATURATES,
    "QuantizeLinear(float32, float32, uint8) -> uint8": SATURATES,
    # codes: limited, their branches joined, read as signed ones
    "Add(int32, int32) -> int32": ADDED,
    "BitwiseXor(uint8, uint8) -> uint8": ON_BITS,
    "Cast(int32) -> uint8": KEPT,
    "Cast(uint8) -> int32": KEPT,
    "Cast(uint8) -> int8": READ_ANEW,
    "Clip(int8, int8, int8) -> int8": LIMITED,
    "Clip(uint8, -, uint8) -> uint8": LIMITED,
    "Clip(uint8, uint8, -) -> uint8": LIMITED,
    "Clip(uint8, uint8, uint8) -> uint8": LIMITED,
    "Mul(int32, int32) -> int32": MULTIPLIED,
    # weights below eight bits, unpacked
    "BitShift(uint8, uint8) -> uint8": SHIFTED,
    "BitwiseAnd(uint8, uint8) -> uint8": ON_BITS,
    "BitwiseOr(uint8, uint8) -> uint8": ON_BITS,
    "Cast(float32) -> int8": KEPT,
    "Cast(uint8) -> bool": IS_ZERO,
    "Cast(uint8) -> float32": KEPT,
    "Where(bool, uint8, uint8) -> uint8": CHOSEN,
}
