"""A convolution as a product: the windows of an image as rows."""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from ptq4vit_onnx.plan.quantizers.patch_order import is_tiling, pair_far_inputs

Pair = tuple[int, int]


@dataclass(frozen=True)
class Window:
    """What a convolution looks at, height first."""

    kernel: Pair
    stride: Pair
    padding: Pair
    dilation: Pair
    groups: int = 1

    @property
    def tiles(self) -> bool:
        """The windows lie side by side, as a patch embedding's do, or are single pixels."""
        return is_tiling(self.kernel, self.stride, self.padding, self.dilation)

    @property
    def is_pixel(self) -> bool:
        return self.kernel == (1, 1)

    def fills(self, x: Tensor) -> bool:
        """x [.., height, width] is a whole number of windows, where they lie side by side."""
        left_over = any(int(length) % side for length, side in zip(x.shape[-2:], self.kernel, strict=True))
        return self.is_pixel or not self.tiles or not left_over

    def positions(self, x: Tensor) -> Pair:
        """How many windows fit into x [.., height, width], downwards and to the right."""
        down, across = (
            (int(length) + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1
            for length, kernel, stride, padding, dilation in zip(
                x.shape[-2:], self.kernel, self.stride, self.padding, self.dilation, strict=True
            )
        )
        return down, across


def windows(x: Tensor, window: Window) -> Tensor:
    """The windows of x [batch, C, H, W] as rows [batch, windows, inputs], inputs in the order of `flat_kernels`."""
    if not window.tiles:
        return _unrolled(x, window)
    if window.is_pixel:
        down, across = window.stride
        return x[..., ::down, ::across].flatten(2).transpose(1, 2)
    return patches(x, *window.kernel)


def _unrolled(x: Tensor, window: Window) -> Tensor:
    """Windows that overlap or reach over the border: channels are the last axis."""
    columns = F.unfold(x, window.kernel, window.dilation, window.padding, window.stride)
    return columns.reshape(len(x), x.shape[1], -1, columns.shape[-1]).permute(0, 3, 2, 1).flatten(2)


def patches(x: Tensor, height: int, width: int) -> Tensor:
    """[batch, C, H, W] -> [batch, patches, C*height*width], inputs ordered by `pair_far_inputs`."""
    rows, columns = x.shape[-2] // height, x.shape[-1] // width
    tiles = x[..., : rows * height, : columns * width].reshape(*x.shape[:2], rows, height, columns, width)
    return pair_far_inputs(tiles.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2))
