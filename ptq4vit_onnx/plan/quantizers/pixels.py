"""An image's own bytes as the left side of the patch embedding: nothing is searched, and nothing is lost.

A decoder gives bytes p, and preprocessing makes x = (p / 255 - mean) / std of them. Per colour that is

    x = scale * (p - centre)        scale = 1 / (255 std)        centre = 255 mean

so the product x @ W is a product of whole numbers, the scales being multiplied into the rows of W before W is rounded:

    sum_k (p_k - centre_k) q_k  =  sum_k (p_k - 128) q_k  +  sum_k (128 - centre_k) q_k        q = codes of scale * W

The first sum is the integer kernel's: uint8 codes p, one zero point for all colours. The second is a constant of each
output and goes into the bias (`weight_codes.unit_bias`). Because it is made of the codes that ship, not of the float
weights, a weight's rounding error multiplies p - centre, which is small, and not p. In the file

    image -> Add(offset) -> QuantizeLinear(scale, zero point; one per colour) -> patches -> DequantizeLinear -> MatMul

returns p: the zero point is the centre, rounded, and the offset what rounding left of it. (Without the offset a mean of
1/2, whose centre is 127.5, would put every pixel on a tie.) DequantizeLinear has scale 1 and zero point 128.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np

from ptq4vit_onnx.plan.quantizers.patch_order import along_inputs
from ptq4vit_onnx.plan.quantizers.quantizer import Array, Branch, Colour, Points, Quantizer
from ptq4vit_onnx.plan.quantizers.rounding import Tensor, as_float32, require_scales, round_clip
from ptq4vit_onnx.plan.sites import Kind

BITS, HIGH = 8, 255
ZERO_POINT = 128  # of the product: the middle of the bytes keeps its sums small
OFF_GRID = 0.01  # of a step; float32 preprocessing of bytes stays within 0.0001


@dataclass(frozen=True)
class Pixels(Quantizer):
    """Bytes 0..255 of an image [.., colours, height, width]. scale: of a step of each colour. centre: the byte, not
    always a whole number, that a value of 0 stands for."""

    kind: ClassVar[str] = "pixels"
    title: ClassVar[str] = "pixel bytes"
    only_kind: ClassVar[Kind | None] = "conv"
    searched: ClassVar[Literal["scale", "shift", "nothing"]] = "nothing"

    scale: tuple[float, ...]
    centre: tuple[float, ...]

    def __post_init__(self) -> None:
        require_scales(self.scale)
        if self.bits != BITS:
            raise ValueError(f"bits is {self.bits}, expected {BITS}: pixels are bytes")
        if len(self.centre) != len(self.scale):
            raise ValueError(f"centre has {len(self.centre)} values, scale has {len(self.scale)}")
        if not all(0 <= centre <= HIGH for centre in self.centre):
            raise ValueError(f"centre {self.centre} is outside 0..{HIGH}")

    @classmethod
    def of(cls, mean: Sequence[float], std: Sequence[float], colours: int) -> Pixels:
        """The grid of preprocessing by mean and std, one of each or one per colour; a ValueError if it has none."""
        means, stds = (tuple(values) * (colours if len(values) == 1 else 1) for values in (mean, std))
        return cls(
            BITS, tuple(as_float32(1 / (HIGH * value)) for value in stds), tuple(HIGH * value for value in means)
        )

    @classmethod
    def candidates(cls, bits: int, low: float, high: float, factors: Sequence[float]) -> tuple[Quantizer, ...]:
        """None: preprocessing alone decides."""
        return ()

    @property
    def in_steps(self) -> Pixels:
        return replace(self, scale=(1.0,) * len(self.scale))

    @property
    def branches(self) -> tuple[Branch, ...]:
        return (Branch("", (1.0,), -ZERO_POINT, HIGH - ZERO_POINT),)

    @property
    def coordinates(self) -> tuple[float, ...]:
        return self.scale

    @property
    def largest_code(self) -> int:
        return HIGH

    @property
    def colours(self) -> tuple[Colour, ...]:
        return tuple(Colour.of(scale, centre) for scale, centre in zip(self.scale, self.centre, strict=True))

    @property
    def remarks(self) -> tuple[str, ...]:
        return (f"worth {', '.join(f'{scale:.4g}' for scale in self.scale)}, taken up by the weight",)

    @property
    def points(self) -> tuple[Points, ...]:
        step = max(self.scale)
        return (Points("", -self.centre[self.scale.index(step)] * step, step, HIGH + 1),)

    def row_steps(self, inputs: int) -> Array:
        return along_inputs(self.scale, inputs)

    def row_zeros(self, inputs: int) -> Array:
        return ZERO_POINT - along_inputs(self.centre, inputs)

    def is_grid_of(self, x: Tensor) -> bool:
        """Whether all values of patches x [.., inputs] are bytes of an image."""
        if x.shape[-1] % len(self.scale):
            return False
        whole = x / self._like(x, self.scale) + self._like(x, self.centre)
        off = abs(whole - whole.round())
        return bool(off.max() <= OFF_GRID and whole.min() >= -OFF_GRID and whole.max() <= HIGH + OFF_GRID)

    def beyond(self, x: Tensor) -> tuple[Any, Any]:
        step, centre = self._like(x, self.scale), self._like(x, self.centre)
        return (-centre - 0.5) * step, (HIGH - centre + 0.5) * step

    def codes(self, x: Tensor) -> Tensor:
        """The bytes of patches x [.., inputs], as floats of x's own type."""
        offset = self._like(x, tuple(colour.offset for colour in self.colours))
        zero = self._like(x, tuple(colour.zero_point for colour in self.colours))
        quotient: Tensor = (x + offset) / self._like(x, self.scale)
        return round_clip(quotient, -zero, HIGH - zero) + zero  # type: ignore[no-any-return]

    def units(self, x: Tensor) -> tuple[Tensor, ...]:
        return (self.codes(x) - ZERO_POINT,)

    def fake_quantize(self, x: Tensor) -> Tensor:
        return (self.codes(x) - self._like(x, self.centre)) * self._like(x, self.scale)  # type: ignore[no-any-return]

    def encode(self, x: Array) -> Array:
        return self.codes(x).astype(np.uint8)

    def decode(self, codes: Array) -> Array:
        floats = codes.astype(np.float32)
        return (floats - self._like(floats, self.centre)) * self._like(floats, self.scale)  # type: ignore[no-any-return]

    def _like(self, x: Tensor, values: tuple[float, ...]) -> Any:
        vector = along_inputs(values, x.shape[-1])
        return vector if isinstance(x, np.ndarray) else x.new_tensor(vector)
