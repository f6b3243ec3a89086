"""Quantizers: frozen values that round a tensor onto the points k bits can hold.

Rounding is defined here, once, for numpy and torch alike: `(x / scale).round().clip(low, high)`, round half
to even, in float32. numpy, torch and ONNX Runtime's QuantizeLinear agree on it bit for bit. Only `Diffused`, for
constants, adds to that.

Scales are Python floats that are exactly float32 values (`as_float32` makes them so); anything else would let
the numpy side and the ONNX file disagree in the last bit.

A quantizer has one scale, or n of them: then `axis` is cut into n equal, consecutive groups, one scale each.
    weights  [inputs, outputs]             axis -1: 3 groups for a fused qkv, `outputs` groups for per-channel
    Q, K, V  [batch, heads, tokens, depth] axis -3: one group per head
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import numpy as np

Tensor = TypeVar("Tensor", bound=Any)  # numpy.ndarray or torch.Tensor, float32

MIN_BITS, MAX_BITS = 2, 8
GELU_MINIMUM = 0.16997121  # the lowest value of GELU is -0.16997..., reached at x = -0.7518


def as_float32(value: float) -> float:
    """The nearest float32 value, as a Python float."""
    return float(np.float32(value))


@dataclass(frozen=True)
class Uniform:
    """Symmetric uniform quantisation, Eq. 1 of the paper: codes -2^(k-1) .. 2^(k-1)-1, zero is code 0."""

    bits: int
    scale: tuple[float, ...]
    axis: int = -1

    def __post_init__(self) -> None:
        _check(self.bits, self.scale)

    @property
    def low(self) -> int:
        return int(-(2 ** (self.bits - 1)))

    @property
    def high(self) -> int:
        return int(2 ** (self.bits - 1) - 1)

    def codes(self, x: Tensor) -> Tensor:
        """Integer codes as floats, of x's own type."""
        quotient: Tensor = x / spread(self.scale, x, self.axis)
        return _round_clip(quotient, self.low, self.high)

    def fake_quantize(self, x: Tensor) -> Tensor:
        codes = self.codes(x)
        codes *= spread(self.scale, x, self.axis)
        return codes

    def encode(self, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return self.codes(x).astype(np.int8)

    def decode(self, codes: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        floats = codes.astype(np.float32)
        return floats * spread(self.scale, floats, self.axis)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Diffused(Uniform):
    """The same codes for the weight [inputs, outputs] of a patch embedding, whose rounding errors are handed on.

    Pixels side by side are much alike, so it matters less what each weight loses than what neighbours lose together.
    As in printing with few shades, what rounding adds to a weight is taken off the next one: a run of neighbours loses
    no more than a step together, however long it is, and no more than half a step if it begins with the first.
    Neighbours are two rows apart (`pair_far_inputs` puts far pixels side by side), or one where the number of rows is
    odd. What clipping takes off is not handed on beyond half a step, what pair-safety takes off later not at all.
    """

    def codes(self, x: Tensor) -> Tensor:
        exact = np.ascontiguousarray(x / spread(self.scale, x, self.axis))  # also of torch: in numpy, loops are faster
        _diffuse(exact.reshape(-1, 2 if len(exact) % 2 == 0 else 1, exact.shape[1]), self.low, self.high)
        return exact if isinstance(x, np.ndarray) else x.new_tensor(exact)  # type: ignore[return-value]


@dataclass(frozen=True)
class Affine:
    """Uniform quantisation with a zero point: codes 0 .. 2^k-1, zero is code `zero_point`."""

    bits: int
    scale: tuple[float, ...]
    zero_point: tuple[int, ...]
    axis: int = -1

    def __post_init__(self) -> None:
        _check(self.bits, self.scale)
        if len(self.zero_point) != len(self.scale):
            raise ValueError(f"zero_point has {len(self.zero_point)} values, scale has {len(self.scale)}")
        if not all(0 <= zero <= self.high for zero in self.zero_point):
            raise ValueError(f"zero_point {self.zero_point} is outside 0..{self.high}")

    @property
    def low(self) -> int:
        return 0

    @property
    def high(self) -> int:
        return int(2**self.bits - 1)

    def codes(self, x: Tensor) -> Tensor:
        return self._centred(x) + spread(self.zero_point, x, self.axis)  # type: ignore[no-any-return]

    def fake_quantize(self, x: Tensor) -> Tensor:
        codes = self._centred(x)
        codes *= spread(self.scale, x, self.axis)
        return codes

    def _centred(self, x: Tensor) -> Tensor:
        """Codes minus the zero point: rounded first, so that zero stays exact, then clipped to 0..high."""
        zero = spread(self.zero_point, x, self.axis)
        quotient: Tensor = x / spread(self.scale, x, self.axis)
        return _round_clip(quotient, -zero, self.high - zero)

    def encode(self, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return self.codes(x).astype(np.uint8)

    def decode(self, codes: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        floats = codes.astype(np.float32)
        zero = spread(self.zero_point, floats, self.axis)
        return (floats - zero) * spread(self.scale, floats, self.axis)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class TwinSoftmax:
    """Twin quantisation of probabilities: a fine range R1 = [0, 2^(k-1) D1) and a coarse one R2 = [0, 1].

    D2 = 1 / 2^(k-1) is fixed, D1 = D2 / 2^shift; the paper searches D1 in 2^-k .. 2^-(k+10), shift in 1..11.
    A value belongs to exactly one range: x < 2^(k-1) D1 is rounded in R1 alone, everything else in R2 alone.
    """

    bits: int
    shift: int

    def __post_init__(self) -> None:
        _check(self.bits, (1.0,))
        if not 0 <= self.shift <= 15:
            raise ValueError(f"shift is {self.shift}, expected 0..15")

    @property
    def high(self) -> int:
        """The largest magnitude of either range."""
        return int(2 ** (self.bits - 1) - 1)

    @property
    def fine(self) -> float:
        return self.coarse / float(2**self.shift)

    @property
    def coarse(self) -> float:
        return 1.0 / float(2 ** (self.bits - 1))

    @property
    def split(self) -> float:
        """Where R1 ends: values below it are fine, values from it on are coarse. A power of two, so exact."""
        return float(2 ** (self.bits - 1)) * self.fine

    @property
    def fits_a_byte(self) -> bool:
        """Whether both ranges together are one uint8 tensor of step D1, so that one product serves both."""
        return bool(self.high * 2**self.shift <= 255)

    def branches(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(fine, coarse) codes as floats; at every position at least one of the two is zero."""
        is_fine = _is_below(self.split, x)
        fine = _round_clip(x / self.fine, 0, self.high)
        fine *= is_fine
        coarse = _round_clip(x / self.coarse, 0, self.high)
        coarse *= 1 - is_fine
        return fine, coarse

    def fake_quantize(self, x: Tensor) -> Tensor:
        """Both branches at once: each value is rounded to its own step. Steps are powers of two, so they are exact."""
        step = _is_below(self.split, x)
        step *= self.fine - self.coarse
        step += self.coarse
        rounded = _round_clip(x / step, 0, self.high)
        rounded *= step
        return rounded  # type: ignore[no-any-return]

    def encode(self, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """The paper's storage format: top bit = range (0 fine, 1 coarse), k-1 bits of magnitude."""
        fine, coarse = self.branches(x)
        flag = (x >= self.split) * (self.high + 1)
        return (fine + coarse + flag).astype(np.uint8)  # type: ignore[no-any-return]

    def decode(self, codes: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        magnitude = (codes & self.high).astype(np.float32)
        return np.where(codes > self.high, magnitude * self.coarse, magnitude * self.fine).astype(np.float32)


@dataclass(frozen=True)
class TwinGelu:
    """Twin quantisation of GELU's output: negatives have step D1, positives step D2 = 2^shift D1."""

    bits: int
    scale: float  # D2
    shift: int

    def __post_init__(self) -> None:
        _check(self.bits, (self.scale,))
        if not 0 <= self.shift <= 15:
            raise ValueError(f"shift is {self.shift}, expected 0..15")

    @classmethod
    def covering_negatives(cls, bits: int, scale: float) -> TwinGelu:
        """The finest D1 = D2 / 2^shift whose range still covers GELU's minimum; shift 0 where none does."""
        reach = (2 ** (bits - 1) - 1) * scale
        shift = math.floor(math.log2(reach / GELU_MINIMUM)) if reach > GELU_MINIMUM else 0
        return cls(bits, scale, min(shift, 15))

    @property
    def high(self) -> int:
        return int(2 ** (self.bits - 1) - 1)

    @property
    def fine(self) -> float:
        return self.scale / float(2**self.shift)

    @property
    def coarse(self) -> float:
        return self.scale

    @property
    def fits_a_byte(self) -> bool:
        """Whether both ranges together are one uint8 tensor of step D1, so that one product serves both."""
        return bool(self.high + self.high * 2**self.shift <= 255)

    def branches(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(magnitudes of the negatives, codes of the positives) as floats."""
        fine = _round_clip(x / -self.fine, 0, self.high)
        coarse = _round_clip(x / self.coarse, 0, self.high)
        return fine, coarse

    def fake_quantize(self, x: Tensor) -> Tensor:
        fine, coarse = self.branches(x)
        fine *= self.fine
        coarse *= self.coarse
        coarse -= fine
        return coarse

    def encode(self, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Most significant bit = range (0 negatives, 1 positives), k-1 bits of magnitude."""
        fine, coarse = self.branches(x)
        flag = (x >= 0) * (self.high + 1)
        return (fine + coarse + flag).astype(np.uint8)  # type: ignore[no-any-return]

    def decode(self, codes: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        magnitude = (codes & self.high).astype(np.float32)
        return np.where(codes > self.high, magnitude * self.coarse, -magnitude * self.fine).astype(np.float32)


Quantizer: TypeAlias = Uniform | Affine | TwinSoftmax | TwinGelu


def spread(values: tuple[Any, ...], x: Tensor, axis: int) -> Any:
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


def _round_clip(x: Tensor, low: Any, high: Any) -> Tensor:
    """Round half to even and clip, in place: `x` is always a fresh quotient here."""
    if isinstance(x, np.ndarray):
        np.rint(x, out=x)
        np.clip(x, low, high, out=x)
        return x
    return x.round_().clamp_(low, high)  # type: ignore[no-any-return]


def _diffuse(exact: np.ndarray[Any, Any], low: int, high: int) -> None:
    """Codes in the place of exact quotients [steps, lanes, outputs], each lane handing its errors from step to step."""
    error = np.zeros_like(exact[0])
    for wanted in exact:
        wanted -= error
        np.copyto(error, wanted)
        np.rint(wanted, out=wanted)
        np.clip(wanted, low, high, out=wanted)
        np.subtract(wanted, error, out=error)
        np.clip(error, -0.5, 0.5, out=error)


def _is_below(limit: float, x: Any) -> Any:
    """1.0 where x < limit, else 0.0; in torch without booleans, whose conversion takes longer than all the rest."""
    return (x < limit).astype(x.dtype) if isinstance(x, np.ndarray) else x.clone().lt_(limit)


def _check(bits: int, scale: tuple[float, ...]) -> None:
    if not MIN_BITS <= bits <= MAX_BITS:
        raise ValueError(f"bits is {bits}, expected {MIN_BITS}..{MAX_BITS}")
    require_scales(scale)


def require_scales(scale: tuple[float, ...]) -> None:
    """Scales are positive values of float32; a ValueError names the first that is not."""
    if not scale:
        raise ValueError("scale is empty, expected one value or one per group")
    values = np.asarray(scale, np.float64)
    with np.errstate(over="ignore"):  # a value beyond float32 becomes infinite, which equals no finite one
        wrong = ~(np.isfinite(values) & (values > 0) & (values.astype(np.float32) == values))
    if wrong.any():
        raise ValueError(f"scale {scale[int(wrong.argmax())]!r} is not a positive float32 value")
