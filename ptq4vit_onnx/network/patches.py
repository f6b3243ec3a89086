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
        """The windows lie side by side, as a patch embedding's do."""
        return self.stride == self.kernel and self.padding == (0, 0) and self.dilation == (1, 1)

    def positions(self, x: Tensor) -> Pair:
        """How many windows fit into x [.., height, width], downwards and to the right."""
        down, across = (
            (int(length) + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1
            for length, kernel, stride, padding, dilation in zip(
                x.shape[-2:], self.kernel, self.stride, self.padding, self.dilation, strict=True
            )
        )
        return down, across


def patches(x: Tensor, height: int, width: int) -> Tensor:
    """[batch, C, H, W] -> [batch, patches, C*height*width], inputs ordered by `pair_far_inputs`."""
    rows, columns = x.shape[-2] // height, x.shape[-1] // width
    tiles = x[..., : rows * height, : columns * width].reshape(*x.shape[:2], rows, height, columns, width)
    return pair_far_inputs(tiles.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2))
