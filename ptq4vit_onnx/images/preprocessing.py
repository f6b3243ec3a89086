"""How an image file becomes a network's input: the model's own rule, carried in the ONNX file."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from PIL import Image

from ptq4vit_onnx.errors import UserError, one_line
from ptq4vit_onnx.files.inputs import parse_json
from ptq4vit_onnx.limits import MAX_PIXELS, MAX_SIDE

MOST_COLOURS = 4  # of images that large
MOST_NORMALISED = 1e6  # of a mean, a std, and one over a std: float32 holds what becomes of images

_FILTERS = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}


@dataclass(frozen=True)
class Preprocessing:
    """timm's evaluation transform as a value: resize, crop the centre, scale to 0..1, normalise.

    Attributes:
        size: (channels, height, width).
        crop_pct: The share of the resized image that the crop keeps, as 0.9.
        crop_mode: "center" resizes the short side to size / crop_pct and crops; "squash" resizes both sides.
        interpolation: "nearest", "bilinear", "bicubic" or "lanczos".
        mean: One value for each channel, or one for all.
        std: One value for each channel, or one for all.
    """

    size: tuple[int, int, int]
    crop_pct: float
    crop_mode: str
    interpolation: str
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        if self.interpolation not in _FILTERS:
            raise UserError(f"interpolation {self.interpolation!r} is not one of {', '.join(_FILTERS)}")
        if self.crop_mode not in ("center", "squash"):
            raise UserError(f"crop mode {self.crop_mode!r} is not supported; expected center or squash")
        if not all(1 <= side <= MAX_SIDE for side in self.size):
            raise UserError(f"image size {list(self.size)} is not usable; expected [channels, height, width]")
        if math.prod(self.size) > MOST_COLOURS * MAX_PIXELS:
            raise UserError(f"image size {list(self.size)} is not usable; expected at most {MAX_PIXELS} pixels")
        if not 0.1 <= self.crop_pct <= 10:  # timm's own are 0.875 to 1.15
            raise UserError(f"crop_pct {self.crop_pct:g} is not usable; expected a share near 1, as 0.9")
        for name, values in (("mean", self.mean), ("std", self.std)):
            if len(values) not in (1, self.size[0]) or not all(map(math.isfinite, values)):
                raise UserError(f"{name} {list(values)} is not usable; expected {self.size[0]} finite numbers")
        if min(self.std) <= 0:
            raise UserError(f"std {list(self.std)} is not usable; expected numbers above 0")
        if min(self.std) < 1 / MOST_NORMALISED or max(map(abs, (*self.mean, *self.std))) > MOST_NORMALISED:
            raise UserError(f"mean {list(self.mean)} and std {list(self.std)} are not usable; expected numbers near 1")

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Preprocessing:
        """What `to_json` wrote; a UserError for any other text."""
        try:
            return cls.from_data(parse_json(text))
        except (ValueError, LookupError, TypeError, ArithmeticError, AttributeError) as error:
            raise UserError(f"{text[:40]!r} is no rule for images ({one_line(error)})") from error

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Preprocessing:
        return cls(
            size=(int(data["size"][0]), int(data["size"][1]), int(data["size"][2])),
            crop_pct=float(data["crop_pct"]),
            crop_mode=str(data["crop_mode"]),
            interpolation=str(data["interpolation"]),
            mean=tuple(float(value) for value in data["mean"]),
            std=tuple(float(value) for value in data["std"]),
        )

    def apply(self, image: Image.Image) -> np.ndarray[Any, Any]:
        """A PIL image as float32 [channels, height, width]; transparency is dropped, as timm's loader does."""
        image = _eight_bits(image).convert("L" if self.size[0] == 1 else "RGB")
        pixels = np.asarray(self._crop(self._resize(image)), np.float32) / np.float32(255)
        pixels = pixels.reshape(self.size[1], self.size[2], self.size[0])
        normalised = (pixels - np.asarray(self.mean, np.float32)) / np.asarray(self.std, np.float32)
        return np.ascontiguousarray(normalised.transpose(2, 0, 1))

    def _resize(self, image: Image.Image) -> Image.Image:
        height, width = (math.floor(side / self.crop_pct) for side in self.size[1:])
        if self.crop_mode == "center" and height != width:  # timm: the image covers the target, its sides rounded
            ratio = min(image.width / width, image.height / height)
            width, height = round(image.width / ratio), round(image.height / ratio)
        elif self.crop_mode == "center":
            short = height  # timm: a square target resizes the short side and keeps the aspect ratio
            if image.width <= image.height:
                width, height = short, int(short * image.height / image.width)
            else:
                width, height = int(short * image.width / image.height), short
        if width * height > MAX_PIXELS:
            raise ValueError(f"its sides {image.width} x {image.height} would become {width} x {height} pixels")
        return image.resize((width, height), _FILTERS[self.interpolation])

    def _crop(self, image: Image.Image) -> Image.Image:
        _, height, width = self.size
        left, top = round((image.width - width) / 2), round((image.height - height) / 2)
        return image.crop((left, top, left + width, top + height))


def _eight_bits(image: Image.Image) -> Image.Image:
    """Grey of 16 bits or of floats, scaled to 8; Pillow's own conversion clips it to white or black.

    Mode I has room for 32 bits and is what Pillow opens some files of 16 bits as. Floats are 0 to 1 or 0 to 255. Values
    beyond those are refused, since nobody knows their scale. Other modes are left to Pillow.
    """
    if image.mode == "F":
        return _from_floats(np.asarray(image))
    if image.mode != "I" and not image.mode.startswith("I;16"):
        return image
    values = np.asarray(image)
    if values.min() < 0 or values.max() > 65535:
        raise ValueError(f"its pixels reach from {values.min()} to {values.max()}, expected 16 bits, 0 to 65535")
    return Image.fromarray(np.round(values.astype(np.float32) / 257).astype(np.uint8))


def _from_floats(values: np.ndarray[Any, Any]) -> Image.Image:
    low, high = values.min(), values.max()
    if not (low >= 0 and high <= 255):  # also where one is not a number
        raise ValueError(f"its float pixels reach from {low:g} to {high:g}, expected 0 to 1 or 0 to 255")
    return Image.fromarray(np.round(values * 255 if high <= 1 else values).astype(np.uint8))
