"""The order in which the inputs of a patch embedding are multiplied."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ptq4vit_onnx.plan.quantizers.rounding import Tensor


def pair_far_inputs(flat: Tensor) -> Tensor:
    """The inputs of flattened patches or kernels [.., inputs] in the order they are multiplied in: each of the first
    half beside its counterpart in the second.

    As a kernel flattens, two pixels side by side would make a pair. Their weights mostly have one sign and their values
    move together, so that what pair-safety takes off adds up: in the published form of ViT-T at eight bits, fourteen
    such codes made a quarter of the model's KL. An odd number of inputs is left as it is.
    """
    inputs = flat.shape[-1]
    if inputs % 2:
        return flat
    return flat.reshape(*flat.shape[:-1], 2, inputs // 2).swapaxes(-1, -2).reshape(flat.shape)  # type: ignore[no-any-return]


def is_tiling(kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int]) -> bool:
    """Whether a convolution's windows lie side by side, as a patch embedding's do, or are single pixels."""
    apart = list(stride) == list(kernel) or set(kernel) == {1}
    return apart and not any(padding) and set(dilation) == {1}


def flat_kernels(weight: Tensor, tiles: bool) -> Tensor:
    """The kernels [outputs, channels, height, width] of a convolution as [outputs, inputs], in the order they are
    multiplied in.

    tiles: see `is_tiling`. Other windows are put together from whole pixels: channels are the last axis of them.
    """
    if tiles:
        height, width = weight.shape[2:]
        return kernel_order(weight.reshape(len(weight), -1), height * width)  # type: ignore[no-any-return]
    return weight.swapaxes(1, 3).swapaxes(1, 2).reshape(len(weight), -1)  # type: ignore[no-any-return]


def kernel_order(flat: Tensor, pixels: int) -> Tensor:
    """Flattened kernels [.., inputs] of windows that tile an image in the order they are multiplied in.

    pixels: of a window. A single one has no pixels side by side, and its channels stay in their order.
    """
    return flat if pixels == 1 else pair_far_inputs(flat)


def along_inputs(values: tuple[float, ...], inputs: int) -> np.ndarray[Any, Any]:
    """One value per colour as float32 [inputs], in the order of `kernel_order`."""
    if inputs % len(values):
        raise ValueError(f"{len(values)} colours do not divide {inputs} inputs")
    pixels = inputs // len(values)
    return kernel_order(np.repeat(np.asarray(values, np.float32), pixels), pixels)
