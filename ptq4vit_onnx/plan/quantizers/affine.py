"""Uniform quantisation with a zero point."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ptq4vit_onnx.plan.quantizers.quantizer import Array, Branch, Points, Quantizer
from ptq4vit_onnx.plan.quantizers.rounding import (
    TINY,
    Tensor,
    along_axis,
    as_float32,
    require_axis,
    require_bits,
    require_scales,
    round_clip,
)

SHOWN = 4  # zero points that are named in words


@dataclass(frozen=True)
class Affine(Quantizer):
    """Uniform quantisation with a zero point: codes 0 .. 2^k-1, zero is code `zero_point`. Groups are as in Uniform."""

    kind: ClassVar[str] = "affine"
    title: ClassVar[str] = "affine"

    scale: tuple[float, ...]
    zero_point: tuple[int, ...]
    axis: int = -1

    def __post_init__(self) -> None:
        require_bits(self.bits)
        require_scales(self.scale)
        require_axis(self.axis)
        if len(self.zero_point) != len(self.scale):
            raise ValueError(f"zero_point has {len(self.zero_point)} values, scale has {len(self.scale)}")
        if not all(0 <= zero <= self.high for zero in self.zero_point):
            raise ValueError(f"zero_point {self.zero_point} is outside 0..{self.high}")

    @classmethod
    def candidates(cls, bits: int, low: float, high: float, factors: Sequence[float]) -> tuple[Quantizer, ...]:
        """The covering range low..high (with zero in it), shrunk towards zero."""
        low, high, levels = min(low, 0.0), max(high, 0.0), 2**bits - 1
        full = max(high - low, TINY) / levels
        zero_point = min(max(round(-low / full), 0), levels)
        return tuple(cls(bits, (as_float32(factor * full),), (zero_point,)) for factor in factors)

    @property
    def low(self) -> int:
        return 0

    @property
    def high(self) -> int:
        return int(2**self.bits - 1)

    @property
    def branches(self) -> tuple[Branch, ...]:
        return (Branch("", self.scale, -max(self.zero_point), self.high - min(self.zero_point)),)

    @property
    def groups_axis(self) -> int | None:
        return self.axis if len(self.scale) > 1 else None

    @property
    def largest_code(self) -> int:
        return self.high

    @property
    def remarks(self) -> tuple[str, ...]:
        return (f"zero point {', '.join(map(str, self.zero_point[:SHOWN]))}",)

    @property
    def points(self) -> tuple[Points, ...]:
        step = max(self.scale)
        zero = self.zero_point[self.scale.index(step)]
        return (Points("", -zero * step, step, self.high + 1),)

    def beyond(self, x: Tensor) -> tuple[Any, Any]:
        step, zero = along_axis(self.scale, x, self.axis), along_axis(self.zero_point, x, self.axis)
        return (-zero - 0.5) * step, (self.high - zero + 0.5) * step

    def codes(self, x: Tensor) -> Tensor:
        return self.units(x)[0] + along_axis(self.zero_point, x, self.axis)  # type: ignore[no-any-return]

    def units(self, x: Tensor) -> tuple[Tensor, ...]:
        """Codes minus the zero point: rounded first, so that zero stays exact, then clipped to 0..high."""
        zero = along_axis(self.zero_point, x, self.axis)
        quotient: Tensor = x / along_axis(self.scale, x, self.axis)
        return (round_clip(quotient, -zero, self.high - zero),)

    def fake_quantize(self, x: Tensor) -> Tensor:
        (units,) = self.units(x)
        units *= along_axis(self.scale, x, self.axis)
        return units

    def encode(self, x: Array) -> Array:
        return self.codes(x).astype(np.uint8)

    def decode(self, codes: Array) -> Array:
        floats = codes.astype(np.float32)
        zero = along_axis(self.zero_point, floats, self.axis)
        return (floats - zero) * along_axis(self.scale, floats, self.axis)  # type: ignore[no-any-return]
