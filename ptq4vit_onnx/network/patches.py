"""A patch embedding as a product: the patches of an image as rows."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ptq4vit_onnx.errors import UserError
from ptq4vit_onnx.plan.quantizers.patch_order import pair_far_inputs


def require_patch_convolution(
    name: str, weight: Tensor, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1
) -> None:
    """Refuse a convolution that is not a patch embedding: only patches that tile the image make a matrix product."""
    kernel = tuple(weight.shape[-2:])
    if _pair(stride) != kernel or _pair(padding) != (0, 0) or _pair(dilation) != (1, 1) or groups != 1:
        raise UserError(
            f"cannot quantise this model: {name} is a convolution with kernel {kernel}, stride "
            f"{_pair(stride)}, padding {padding}, {groups} groups; only patch embeddings (kernel = stride, "
            "no padding) are products; use a ViT, DeiT or Swin"
        )


def _pair(value: Any) -> tuple[Any, Any]:
    return (value, value) if isinstance(value, (int, str)) else (value[0], value[-1])


def patches(x: Tensor, height: int, width: int) -> Tensor:
    """[batch, C, H, W] -> [batch, patches, C*height*width], inputs ordered by `pair_far_inputs`."""
    rows, columns = x.shape[-2] // height, x.shape[-1] // width
    tiles = x[..., : rows * height, : columns * width].reshape(*x.shape[:2], rows, height, columns, width)
    return pair_far_inputs(tiles.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2))
