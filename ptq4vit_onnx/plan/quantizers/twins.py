"""Twin uniform quantisation: a fine and a coarse range, their steps a power of two apart (section 3.2 of the paper)."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from ptq4vit_onnx.plan.quantizers.quantizer import Array, Branch, Points, Quantizer
from ptq4vit_onnx.plan.quantizers.rounding import (
    TINY,
    Tensor,
    as_float32,
    is_below,
    require_bits,
    require_scales,
    round_clip,
)
from ptq4vit_onnx.plan.quantizers.twin_prices import GELU_NATS, GELU_RATIO, SOFTMAX_NATS, SOFTMAX_RATIO
from ptq4vit_onnx.plan.sites import Source

GELU_MINIMUM = 0.16997121  # the lowest value of GELU is -0.16997..., reached at x = -0.7518
SHIFTS = range(1, 12)  # D1 = 2^-k .. 2^-(k+10), with D2 = 2^-(k-1): the paper's search space for softmax
MOST_SHIFT = 15


class Twin(Quantizer):
    """shift: D2 = 2^shift D1, the coarse step over the fine one. Each range has k-1 bits of magnitude.

    nats, ratio: the price of its second product (see twin_prices).
    """

    nats: ClassVar[float]
    ratio: ClassVar[float]

    shift: int

    @property
    @abstractmethod
    def coarse(self) -> float:
        """D2, the coarse step."""

    @property
    def fine(self) -> float:
        """D1, the fine step."""
        return self.coarse / float(2**self.shift)

    @property
    def high(self) -> int:
        """The largest magnitude of either range."""
        return int(2 ** (self.bits - 1) - 1)

    @property
    def fits_a_byte(self) -> bool:
        """Whether both ranges together are one uint8 tensor of step D1, so that one product serves both."""
        return self.merged is not None

    @property
    def merged(self) -> Branch | None:
        low, high = self.branches[0].low, self.high * 2**self.shift
        return Branch("", (self.fine,), low, high) if high - low <= 255 else None

    @property
    def remarks(self) -> tuple[str, ...]:
        return (f"shift {self.shift}",)

    @property
    def price_in_nats(self) -> float:
        return 0.0 if self.fits_a_byte else self.nats

    @property
    def price_as_ratio(self) -> float:
        return 1.0 if self.fits_a_byte else self.ratio

    def _require_shift(self) -> None:
        if not 0 <= self.shift <= MOST_SHIFT:
            raise ValueError(f"shift is {self.shift}, expected 0..{MOST_SHIFT}")


@dataclass(frozen=True)
class TwinSoftmax(Twin):
    """Twin quantisation of probabilities: a fine range R1 = [0, 2^(k-1) D1) and a coarse one R2 = [0, 1].

    D2 = 1 / 2^(k-1) is fixed, D1 = D2 / 2^shift; the paper searches D1 in 2^-k .. 2^-(k+10), shift in 1..11.
    A value belongs to exactly one range: x < 2^(k-1) D1 is rounded in R1 alone, everything else in R2 alone.
    """

    kind: ClassVar[str] = "twin_softmax"
    title: ClassVar[str] = "twin softmax"
    source: ClassVar[Source | None] = "softmax"
    searched: ClassVar[Literal["scale", "shift"]] = "shift"
    nats: ClassVar[float] = SOFTMAX_NATS
    ratio: ClassVar[float] = SOFTMAX_RATIO

    shift: int

    def __post_init__(self) -> None:
        require_bits(self.bits)
        self._require_shift()

    @classmethod
    def candidates(cls, bits: int, low: float, high: float, factors: Sequence[float]) -> tuple[Quantizer, ...]:
        """All shifts, whatever the values: probabilities end at 1."""
        return tuple(cls(bits, shift) for shift in SHIFTS)

    @property
    def coarse(self) -> float:
        return 1.0 / float(2 ** (self.bits - 1))

    @property
    def split(self) -> float:
        """Where R1 ends: values below it are fine, values from it on are coarse. A power of two, so exact."""
        return float(2 ** (self.bits - 1)) * self.fine

    @property
    def border(self) -> float | None:
        return self.split

    @property
    def coordinates(self) -> tuple[float, ...]:
        return (float(self.shift),)

    @property
    def branches(self) -> tuple[Branch, ...]:
        return Branch("", (self.fine,), 0, self.high), Branch("coarse", (self.coarse,), 0, self.high)

    @property
    def points(self) -> tuple[Points, ...]:
        first = max(1, math.ceil(self.split / self.coarse))  # below the split only the fine range is used
        coarse = Points("R2", first * self.coarse, self.coarse, self.high - first + 1)
        return Points("R1", 0.0, self.fine, self.high + 1), coarse

    def beyond(self, x: Tensor) -> tuple[Any, Any]:
        """Nothing is clipped: probabilities end at 1, one step above the last coarse point."""
        return -math.inf, math.inf

    def units(self, x: Tensor) -> tuple[Tensor, ...]:
        """(fine, coarse): at every position at least one of the two is zero."""
        is_fine = is_below(self.split, x)
        fine = round_clip(x / self.fine, 0, self.high)
        fine *= is_fine
        coarse = round_clip(x / self.coarse, 0, self.high)
        coarse *= 1 - is_fine
        return fine, coarse

    def fake_quantize(self, x: Tensor) -> Tensor:
        """Both branches at once: each value is rounded to its own step. Steps are powers of two, so they are exact."""
        step = is_below(self.split, x)
        step *= self.fine - self.coarse
        step += self.coarse
        rounded = round_clip(x / step, 0, self.high)
        rounded *= step
        return rounded  # type: ignore[no-any-return]

    def encode(self, x: Array) -> Array:
        """The paper's storage format: top bit = range (0 fine, 1 coarse), k-1 bits of magnitude."""
        fine, coarse = self.units(x)
        flag = (x >= self.split) * (self.high + 1)
        return (fine + coarse + flag).astype(np.uint8)  # type: ignore[no-any-return]

    def decode(self, codes: Array) -> Array:
        magnitude = (codes & self.high).astype(np.float32)
        return np.where(codes > self.high, magnitude * self.coarse, magnitude * self.fine).astype(np.float32)


@dataclass(frozen=True)
class TwinGelu(Twin):
    """Twin quantisation of GELU's output: negatives have step D1, positives step D2 = 2^shift D1. scale: D2."""

    kind: ClassVar[str] = "twin_gelu"
    title: ClassVar[str] = "twin GELU"
    source: ClassVar[Source | None] = "gelu"
    nats: ClassVar[float] = GELU_NATS
    ratio: ClassVar[float] = GELU_RATIO

    scale: float
    shift: int

    def __post_init__(self) -> None:
        require_bits(self.bits)
        require_scales((self.scale,))
        self._require_shift()

    @classmethod
    def candidates(cls, bits: int, low: float, high: float, factors: Sequence[float]) -> tuple[Quantizer, ...]:
        """D2 around max / 2^(k-1); D1 = D2 / 2^m follows from covering the negatives."""
        full = max(high, TINY) / 2 ** (bits - 1)
        return tuple(cls.covering_negatives(bits, as_float32(factor * full)) for factor in factors)

    @classmethod
    def covering_negatives(cls, bits: int, scale: float) -> TwinGelu:
        """The finest D1 = D2 / 2^shift whose range still covers GELU's minimum; shift 0 where none does."""
        reach = (2 ** (bits - 1) - 1) * scale
        shift = math.floor(math.log2(reach / GELU_MINIMUM)) if reach > GELU_MINIMUM else 0
        return cls(bits, scale, min(shift, MOST_SHIFT))

    @property
    def coarse(self) -> float:
        return self.scale

    @property
    def border(self) -> float | None:
        return 0.0

    @property
    def branches(self) -> tuple[Branch, ...]:
        return Branch("", (self.fine,), -self.high, 0), Branch("coarse", (self.coarse,), 0, self.high)

    @property
    def points(self) -> tuple[Points, ...]:
        count = self.high + 1
        return Points("R1", -self.high * self.fine, self.fine, count), Points("R2", 0.0, self.coarse, count)

    def units(self, x: Tensor) -> tuple[Tensor, ...]:
        """(negatives, positives)."""
        fine = round_clip(x / self.fine, -self.high, 0)
        coarse = round_clip(x / self.coarse, 0, self.high)
        return fine, coarse

    def fake_quantize(self, x: Tensor) -> Tensor:
        fine, coarse = self.units(x)
        fine *= self.fine
        coarse *= self.coarse
        coarse += fine
        return coarse

    def encode(self, x: Array) -> Array:
        """Most significant bit = range (0 negatives, 1 positives), k-1 bits of magnitude."""
        fine, coarse = self.units(x)
        flag = (x >= 0) * (self.high + 1)
        return (coarse - fine + flag).astype(np.uint8)  # type: ignore[no-any-return]

    def decode(self, codes: Array) -> Array:
        magnitude = (codes & self.high).astype(np.float32)
        return np.where(codes > self.high, magnitude * self.coarse, -magnitude * self.fine).astype(np.float32)
