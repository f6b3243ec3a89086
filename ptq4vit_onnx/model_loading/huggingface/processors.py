"""How Hugging Face transformers prepares images (preprocessor_config.json), as our Preprocessing.

y = (x factor - mean) / std of bytes x is (x / 255 - mean') / std' with mean' = mean / (255 factor), and std' likewise.
What a Preprocessing cannot say is refused, or said in a remark where the images still have the same size.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ptq4vit_onnx.errors import UserError
from ptq4vit_onnx.images.preprocessing import Preprocessing
from ptq4vit_onnx.request import ImageSize

_FILTERS = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic"}  # Pillow's numbers
_HALF = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
_IMAGENET = {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}
_OPENAI = {"image_mean": [0.48145466, 0.4578275, 0.40821073], "image_std": [0.26862954, 0.26130258, 0.27577711]}
_CROPPED = {"size": {"shortest_edge": 224}, "crop_size": 224, "do_center_crop": True, "resample": 3}
# What the classes of transformers do where a file leaves it out.
_DEFAULTS: dict[str, dict[str, Any]] = {
    "ViT": {"size": 224, "resample": 2, **_HALF},
    "DeiT": {"size": 256, "crop_size": 224, "do_center_crop": True, "resample": 3, **_HALF},
    "Beit": {"size": 224, "resample": 3, **_HALF},
    "CLIP": {**_CROPPED, **_OPENAI},
    "Bit": {**_CROPPED, **_OPENAI},
    "Siglip": {"size": 224, "resample": 3, **_HALF},
    "DINOv3ViT": {"size": 224, "resample": 2, **_IMAGENET},
    "ConvNext": {"size": {"shortest_edge": 384}, "resample": 3, "crop_pct": 224 / 256, **_HALF},
    "Sam": {"size": {"longest_edge": 1024}, "pad_size": 1024, "do_pad": True, "resample": 2, **_IMAGENET},
}
_OF_TYPES = {"vit": "ViT", "swin": "ViT", "swinv2": "ViT", "deit": "DeiT", "beit": "Beit", "clip": "CLIP", "sam": "Sam",
             "clip_vision_model": "CLIP", "siglip": "Siglip", "siglip_vision_model": "Siglip", "dinov2": "Bit",
             "dinov2_with_registers": "Bit", "dinov3_vit": "DINOv3ViT", "sam_vision_model": "Sam"}  # fmt: skip
_ENDINGS = ("Pil", "Fast", "ImageProcessor", "FeatureExtractor")


def preprocessing_from(
    data: Mapping[str, Any] | None, model_type: str, own_size: ImageSize, channels: int, img_size: ImageSize | None
) -> tuple[Preprocessing, tuple[str, ...]]:
    """(preprocessing, remarks). data: of preprocessor_config.json, None where there is none: then the images are of the
    model's own size, as they are where data does not fix a size. img_size: what the user asked for instead."""
    name = _class_name(data, model_type)
    rule = {**_DEFAULTS[name], **({key: value for key, value in (data or {}).items() if value is not None})}
    remarks = [] if data is not None else [
        f"there is no preprocessor_config.json, so images are prepared as {name}ImageProcessor does by default: check "
        f"mean {rule['image_mean']} and std {rule['image_std']}"
    ]  # fmt: skip
    size, crop_pct, crop_mode, said = _sizes(rule, own_size if data is None else None)
    remarks += [said] if said else []
    mean, std = _normalisation(rule, channels)
    made = Preprocessing((channels, *(img_size or size)), crop_pct, crop_mode, _filter(rule), mean, std)
    return made, tuple(remarks)


def _class_name(data: Mapping[str, Any] | None, model_type: str) -> str:
    """ViTImageProcessorFast -> ViT; by the type of the model where the file does not say, or names an unknown class."""
    said = next(
        (str(data[key]) for key in ("image_processor_type", "feature_extractor_type") if data and key in data), ""
    )
    for ending in _ENDINGS:
        said = said.removesuffix(ending)
    return said if said in _DEFAULTS else _OF_TYPES.get(model_type, "ViT")


def _sizes(rule: Mapping[str, Any], own: ImageSize | None) -> tuple[ImageSize, float, str, str]:
    """(size, crop_pct, crop_mode, a remark or ""). own: replaces the size that is left at the end."""
    size = rule["size"]
    short = size.get("shortest_edge") if isinstance(size, Mapping) else None
    if not rule.get("do_resize", True):
        raise _unlike("images are not resized (do_resize is false)")
    if isinstance(size, Mapping) and "longest_edge" in size and short is None:
        target = own or _pair(rule.get("pad_size") or size["longest_edge"])
        return target, 1.0, "squash", (
            f"the longest side of an image is to be resized to {size['longest_edge']} and the rest padded, which is "
            f"not done here: images are resized to {target[0]} x {target[1]}"
        )  # fmt: skip
    if short is not None and rule.get("crop_pct") and not rule.get("do_center_crop"):
        return (
            own or (short, short),
            rule["crop_pct"] if short < 384 else 1.0,
            "center" if short < 384 else "squash",
            "",
        )
    if not rule.get("do_center_crop"):
        if short is not None:
            raise _unlike("the shortest edge is resized and nothing cropped, so that sizes vary")
        return own or _pair(size), 1.0, "squash", ""
    crop, resized = _pair(rule["crop_size"]), (short, short) if short is not None else _pair(size)
    if crop[0] * resized[1] != crop[1] * resized[0]:
        raise _unlike(f"images are resized to {list(resized)} and cropped to {list(crop)}, which is another shape")
    return own or crop, _share(crop[0], resized[0]), "center" if short is not None else "squash", ""


def _share(crop: int, resized: int) -> float:
    """crop / resized, so that floor(crop / share) is `resized` to the pixel."""
    share = crop / resized
    return share if math.floor(crop / share) == resized else math.nextafter(share, 0)


def _pair(size: Any) -> ImageSize:
    """224, {"height": 224, "width": 224} -> (224, 224)"""
    if isinstance(size, Mapping):
        size = [size[key] for key in ("height", "width") if key in size] or list(size.values())
    sides = [size, size] if isinstance(size, int) else list(size)
    if len(sides) == 1:
        sides *= 2
    if len(sides) != 2 or not all(isinstance(side, int) and side > 0 for side in sides):
        raise _unlike(f"the size {size!r} is not a height and a width")
    return sides[0], sides[1]


def _normalisation(rule: Mapping[str, Any], channels: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    if rule.get("rescale_offset"):
        raise _unlike("images are shifted by a rescale_offset")
    factor = 255 * float(rule.get("rescale_factor", 1 / 255)) if rule.get("do_rescale", True) else 255.0
    factor = 1.0 if math.isclose(factor, 1.0, rel_tol=1e-6) else factor  # 1 / 255 is often written with few digits
    if not rule.get("do_normalize", True):
        return (0.0,) * channels, (1.0 / factor,) * channels
    mean, std = (
        [value] * channels if isinstance(value, (int, float)) else value
        for value in (rule["image_mean"], rule["image_std"])
    )
    return tuple(float(value) / factor for value in mean), tuple(float(value) / factor for value in std)


def _filter(rule: Mapping[str, Any]) -> str:
    if rule["resample"] not in _FILTERS:
        raise _unlike(f"images are resized by Pillow's filter {rule['resample']!r}")
    return _FILTERS[rule["resample"]]


def _unlike(what: str) -> UserError:
    return UserError(
        f"preprocessor_config.json cannot be followed: {what}; edit a copy of the folder, or give the module in Python "
        "with a preprocessing of your own"
    )
