"""Symmetric uniform quantisation, and its form for patch embeddings, whose weights hand on their rounding errors."""

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
from ptq4vit_onnx.plan.quantizers.weight_codes import WeightCodes
from ptq4vit_onnx.plan.sites import Kind


@dataclass(frozen=True)
class Uniform(Quantizer):
    """Symmetric uniform quantisation, Eq. 1 of the paper: codes -2^(k-1) .. 2^(k-1)-1, zero is code 0.

    It has one scale, or n of them: then `axis` is cut into n equal, consecutive groups, one scale each.
        weights  [inputs, outputs]             axis -1: 3 groups for a fused qkv, `outputs` groups for per-channel
        Q, K, V  [batch, heads, tokens, depth] axis -3: one group per head
    """

    kind: ClassVar[str] = "uniform"
    title: ClassVar[str] = "symmetric"

    scale: tuple[float, ...]
    axis: int = -1

    def __post_init__(self) -> None:
        require_bits(self.bits)
        require_scales(self.scale)
        require_axis(self.axis)

    @classmethod
    def candidates(cls, bits: int, low: float, high: float, factors: Sequence[float]) -> tuple[Quantizer, ...]:
        full = max(-low, high, TINY) / 2 ** (bits - 1)
        return tuple(cls(bits, (as_float32(factor * full),)) for factor in factors)

    @property
    def low(self) -> int:
        return int(-(2 ** (self.bits - 1)))

    @property
    def high(self) -> int:
        return int(2 ** (self.bits - 1) - 1)

    @property
    def branches(self) -> tuple[Branch, ...]:
        return (Branch("", self.scale, self.low, self.high),)

    @property
    def groups_axis(self) -> int | None:
        return self.axis if len(self.scale) > 1 else None

    @property
    def largest_code(self) -> int:
        """Symmetric codes are shipped shifted up by 2^(k-1), so they reach 2^k - 1."""
        return self.high - self.low

    @property
    def carried(self) -> WeightCodes | None:
        """The codes that the plan carries; None where the values to be rounded are enough."""
        return None

    def carrying(self, codes: WeightCodes) -> Uniform:
        """The same with the codes that the plan carries, once they are read."""
        raise AssertionError(f"{self.kind} carries no codes")

    @property
    def points(self) -> tuple[Points, ...]:
        step = max(self.scale)
        return (Points("", self.low * step, step, self.high - self.low + 1),)

    def beyond(self, x: Tensor) -> tuple[Any, Any]:
        step = along_axis(self.scale, x, self.axis)
        return (self.low - 0.5) * step, (self.high + 0.5) * step

    def codes(self, x: Tensor) -> Tensor:
        """Integer codes as floats, of x's own type."""
        quotient: Tensor = x / along_axis(self.scale, x, self.axis)
        return round_clip(quotient, self.low, self.high)

    def units(self, x: Tensor) -> tuple[Tensor, ...]:
        return (self.codes(x),)

    def fake_quantize(self, x: Tensor) -> Tensor:
        codes = self.codes(x)
        codes *= along_axis(self.scale, x, self.axis)
        return codes

    def encode(self, x: Array) -> Array:
        return self.codes(x).astype(np.int8)

    def decode(self, codes: Array) -> Array:
        floats = codes.astype(np.float32)
        return floats * along_axis(self.scale, floats, self.axis)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Diffused(Uniform):
    """The same codes for the weight [inputs, outputs] of a patch embedding, rounded by error diffusion.

    Pixels side by side are much alike, so it matters less what each weight loses than what neighbours lose together.
    As in printing with few shades, what rounding adds to a weight is taken off the next one: a run of neighbours loses
    no more than a step together, however long it is, and no more than half a step if it begins with the first.
    Neighbours are two rows apart (`pair_far_inputs` puts far pixels side by side), or one where the number of rows is
    odd. What clipping takes off is not handed on beyond half a step, what pair-safety takes off later not at all.
    """

    kind: ClassVar[str] = "diffused"
    title: ClassVar[str] = "symmetric, errors handed on"
    only_kind: ClassVar[Kind | None] = "conv"
    only_weights: ClassVar[bool] = True

    def codes(self, x: Tensor) -> Tensor:
        exact = np.ascontiguousarray(
            x / along_axis(self.scale, x, self.axis)
        )  # also of torch: loops are faster in numpy
        _diffuse(exact.reshape(-1, 2 if len(exact) % 2 == 0 else 1, exact.shape[1]), self.low, self.high)
        return exact if isinstance(x, np.ndarray) else x.new_tensor(exact)  # type: ignore[return-value]


def _diffuse(exact: Array, low: int, high: int) -> None:
    """Codes in the place of exact quotients [steps, lanes, outputs], each lane handing its errors from step to step."""
    error = np.zeros_like(exact[0])
    for wanted in exact:
        wanted -= error
        np.copyto(error, wanted)
        np.rint(wanted, out=wanted)
        np.clip(wanted, low, high, out=wanted)
        np.subtract(wanted, error, out=error)
        np.clip(error, -0.5, 0.5, out=error)
