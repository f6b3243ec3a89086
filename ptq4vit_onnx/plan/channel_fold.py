"""A shift and a scale for each input channel of a linear, folded into it and into the LayerNorm before, at no cost.

A linear behind a LayerNorm may see (x - shift) / scale, one shift and one scale per channel, in place of x:

    LayerNorm: weight / scale, (bias - shift) / scale      linear: weight * scale, bias + shift @ weight

The two together compute what they did; but channels that were wide and channels that were narrow now share one
quantizer well. RepQ-ViT calls it reparameterisation. Folding is defined here, once, for the torch model and for the
ONNX graph: in numpy and float32, so that both hold the same bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ptq4vit_onnx.plan.quantizers import require_scales

MOST_SCALED, MOST_SHIFTED = 2.0**40, 2.0**60  # folded LayerNorms keep the precision of float32
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Channels:
    """norm: path of the LayerNorm in front. scale, shift: float32 values, one per input channel of the product."""

    norm: str
    scale: tuple[float, ...]
    shift: tuple[float, ...]

    def __post_init__(self) -> None:
        require_scales(self.scale, MOST_SCALED)
        if len(self.shift) != len(self.scale):
            raise ValueError(f"shift has {len(self.shift)} values, scale has {len(self.scale)}")
        if not (np.abs(np.asarray(self.shift, np.float64)) <= MOST_SHIFTED).all():
            raise ValueError(f"shift is not from {-MOST_SHIFTED:.2g} to {MOST_SHIFTED:.2g}")

    def of_norm(self, weight: Array, bias: Array) -> tuple[Array, Array]:
        """The LayerNorm's weight and bias [channels], folded."""
        scale, shift = _float32(self.scale), _float32(self.shift)
        return weight / scale, (bias - shift) / scale

    def of_weight(self, weight: Array) -> Array:
        """The linear's weight [channels, outputs], folded."""
        return weight * _float32(self.scale)[:, None]

    def of_bias(self, weight: Array, bias: Array) -> Array:
        """The linear's bias [outputs], folded; `weight` [channels, outputs] as it was. Added up in float64."""
        shifted = (_float32(self.shift).astype(np.float64)[:, None] * weight).sum(0)
        return np.asarray(bias + shifted, np.float32)


def _float32(values: tuple[float, ...]) -> Array:
    return np.asarray(values, np.float32)
