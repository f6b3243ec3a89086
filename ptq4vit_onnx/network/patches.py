"""A convolution as a product: the windows of an image as rows."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ptq4vit_onnx.plan.quantizers.patch_order import pair_far_inputs

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
        return (self.stride == self.kernel or self.is_pixel) and self.padding == (0, 0) and self.dilation == (1, 1)

    @property
    def is_pixel(self) -> bool:
        return self.kernel == (1, 1)

    def fills(self, x: Tensor) -> bool:
        """x [.., height, width] is a whole number of windows, or those in between are left out on purpose."""
        return self.is_pixel or all(int(a) % b == 0 for a, b in zip(x.shape[-2:], self.kernel, strict=True))

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
    """The windows of x [batch, C, H, W] that tile it, or single pixels, as [batch, windows, inputs]."""
    if window.is_pixel:
        down, across = window.stride
        return x[..., ::down, ::across].flatten(2).transpose(1, 2)
    return patches(x, *window.kernel)


def patches(x: Tensor, height: int, width: int) -> Tensor:
    """[batch, C, H, W] -> [batch, patches, C*height*width], inputs ordered by `pair_far_inputs`."""
    rows, columns = x.shape[-2] // height, x.shape[-1] // width
    tiles = x[..., : rows * height, : columns * width].reshape(*x.shape[:2], rows, height, columns, width)
    return pair_far_inputs(tiles.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2))
