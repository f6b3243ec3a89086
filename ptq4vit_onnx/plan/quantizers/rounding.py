"""Rounding, defined once for numpy and torch alike: `(x / scale).round().clip(low, high)`, half to even, in float32.

numpy, torch and ONNX Runtime's QuantizeLinear agree on it bit for bit. Scales are Python floats that are exactly
float32 values (`as_float32` makes them so): anything else would let numpy and the ONNX file disagree in the last bit.
"""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np

Tensor = TypeVar("Tensor", bound=Any)  # numpy.ndarray or torch.Tensor, float32

MIN_BITS, MAX_BITS = 2, 8
LARGEST = 2.0**100  # scale, and one over the smallest: products and quotients of two stay float32 values
TINY = 1e-12  # an all-zero tensor still needs a positive scale


def as_float32(value: float) -> float:
    """The nearest float32 value, as a Python float."""
    return float(np.float32(value))


def along_axis(values: tuple[Any, ...], x: Tensor, axis: int) -> Any:
    """`values` as a float, or as a float32 tensor of x's kind that broadcasts against x along `axis`.

    Example: 3 scales, x of shape [768, 2304], axis -1 -> a tensor of shape [2304], each scale 768 times.
    """
    if len(values) == 1:
        return float(values[0])
    length = x.shape[axis]
    if length % len(values):
        raise ValueError(f"{len(values)} scales do not divide axis {axis} of length {length}")
    vector = np.repeat(np.asarray(values, np.float32), length // len(values))
    vector = vector.reshape(vector.shape + (1,) * (-axis - 1))
    return vector if isinstance(x, np.ndarray) else x.new_tensor(vector)


def round_clip(x: Tensor, low: Any, high: Any) -> Tensor:
    """Round half to even and clip, in place: `x` is a fresh quotient."""
    if isinstance(x, np.ndarray):
        np.rint(x, out=x)
        np.clip(x, low, high, out=x)
        return x
    return x.round_().clamp_(low, high)  # type: ignore[no-any-return]


def is_below(limit: float, x: Any) -> Any:
    """1.0 where x < limit, else 0.0; in torch without booleans, whose conversion takes longer than all the rest."""
    return (x < limit).astype(x.dtype) if isinstance(x, np.ndarray) else x.clone().lt_(limit)


def require_bits(bits: int) -> None:
    if not MIN_BITS <= bits <= MAX_BITS:
        raise ValueError(f"bits is {bits}, expected {MIN_BITS}..{MAX_BITS}")


def require_axis(axis: int) -> None:
    if not -4 <= axis <= -1:
        raise ValueError(f"axis is {axis!r:.20}, expected -4..-1")


def require_scales(scale: tuple[float, ...], largest: float = LARGEST) -> None:
    """Scales are float32 values from 1 / largest to largest; a ValueError names the first that is not."""
    if not scale:
        raise ValueError("scale is empty, expected one value or one per group")
    values = np.asarray(scale, np.float64)
    with np.errstate(over="ignore"):  # a value beyond float32 becomes infinite, which equals no finite one
        wrong = ~((values >= 1 / largest) & (values <= largest) & (values.astype(np.float32) == values))
    if wrong.any():
        found = scale[int(wrong.argmax())]
        raise ValueError(f"scale {found!r} is not a positive float32 value from {1 / largest:.2g} to {largest:.2g}")
