"""Architecture and preprocessing constants of the embedded digit models.

This module holds plain values only and imports neither torch nor timm, so that it can be read anywhere.

The rule from a stored digit to a model input, the same in training, calibration and evaluation:

1. a stored value ``v`` in 0..``DIGITS_MAX_VALUE`` becomes the 8-bit grey pixel ``round(v * 255 / 16)``;
2. the 8x8 grey image is resized to ``IMAGE_SIZE`` x ``IMAGE_SIZE`` by Pillow with ``INTERPOLATION``;
3. the resized 8-bit pixels are divided by 255;
4. the result is normalised as ``(x - DIGITS_MEAN) / DIGITS_STD``.
"""

from __future__ import annotations

from typing import Any

CLASSES: int = 10
IN_CHANNELS: int = 1
SOURCE_SIZE: int = 8
IMAGE_SIZE: int = 32
INTERPOLATION: str = "bicubic"

DIGITS_MAX_VALUE: int = 16
DIGITS_MEAN: float = 0.5
DIGITS_STD: float = 0.5

SPLIT_TRAIN: int = 0
SPLIT_CALIBRATION: int = 1
SPLIT_TEST: int = 2

# Keyword arguments of timm.models.vision_transformer.VisionTransformer.
VIT_DIGITS: dict[str, Any] = dict(
    img_size=IMAGE_SIZE,
    patch_size=4,
    in_chans=IN_CHANNELS,
    num_classes=CLASSES,
    global_pool="token",
    class_token=True,
    embed_dim=64,
    depth=6,
    num_heads=4,
    mlp_ratio=4.0,
    qkv_bias=True,
)

# Keyword arguments of timm.models.swin_transformer.SwinTransformer. The first stage has 8x8 tokens in four
# 4x4 windows (its second block shifts them and so needs a mask); patch merging leaves 4x4 tokens, one window,
# for the second stage.
SWIN_DIGITS: dict[str, Any] = dict(
    img_size=IMAGE_SIZE,
    patch_size=4,
    in_chans=IN_CHANNELS,
    num_classes=CLASSES,
    global_pool="avg",
    embed_dim=48,
    depths=(2, 2),
    num_heads=(2, 4),
    window_size=4,
    mlp_ratio=4.0,
    qkv_bias=True,
    drop_path_rate=0.0,
)
