"""What a model answers: its forward returns one tensor, or a tuple of them."""

from __future__ import annotations

from torch import Tensor, nn


def answers(model: nn.Module, images: Tensor) -> tuple[Tensor, ...]:
    """The model's outputs on `images` [n, C, H, W], each [n, ...]."""
    result = model(images)
    return (result,) if isinstance(result, Tensor) else tuple(result)
