"""Photographs that ship with the package: for a model that takes RGB photographs and a user who gives none."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
from PIL import Image

from ptq4vit_onnx.errors import UserError
from ptq4vit_onnx.images.loading import ImageSet
from ptq4vit_onnx.images.preprocessing import Preprocessing
from ptq4vit_onnx.models.specs import PHOTOS_FOLDER

PHOTOS = ("astronaut", "chelsea", "china", "coffee", "flower", "hopper", "hubble", "raccoon", "rocket")
CALIBRATION_PHOTOS = 6  # the others are held out
CHANNELS = 3
IMAGES_FROM, BUILT_IN = "images_from", "built-in photos"  # how a plan's options say that it was calibrated on them
# Torchvision's RandomResizedCrop, but for the smallest area: of these photos, 8 % would be enlarged until it is a blur.
AREA, ASPECT = (0.2, 1.0), (3 / 4, 4 / 3)

Split = Literal["calibration", "held out"]
_STREAMS: dict[Split, int] = {"calibration": 0, "held out": 1}


def built_in_photos(preprocessing: Preprocessing, split: Split, count: int, seed: int) -> ImageSet:
    """`count` random crops of the photos of a split, each prepared as the model wants it.

    The seed draws which photos are calibrated on, and the crops: place, size, aspect ratio and flip. The photos take
    turns, so each has its share of the crops. The first crops of a large count are those of a small one.
    """
    require_rgb(preprocessing.size[0])
    names = photos_of(split, seed)
    photos = [_open(name) for name in names]
    generator = np.random.default_rng((seed, _STREAMS[split]))
    crops = [_random_crop(photos[index % len(photos)], generator) for index in range(count)]
    return ImageSet(
        np.stack([preprocessing.apply(crop) for crop in crops]),
        None,
        tuple(f"{names[index % len(names)]}, crop {index}" for index in range(count)),
        f"the built-in photos ({', '.join(names)}), cropped at random",
        built_in=True,
    )


def photos_of(split: Split, seed: int) -> tuple[str, ...]:
    """The names of a split's photos; the two splits of a seed share none."""
    order = [PHOTOS[index] for index in np.random.default_rng(seed).permutation(len(PHOTOS))]
    return tuple(order[:CALIBRATION_PHOTOS] if split == "calibration" else order[CALIBRATION_PHOTOS:])


def require_rgb(channels: int, model: str = "the model") -> None:
    if channels != CHANNELS:
        raise UserError(
            f"no images for {model}: it takes {channels} channels and the built-in photos have {CHANNELS}; give --data "
            "with images of its own kind, a folder, an ImageFolder tree, .npy or .npz"
        )


def _open(name: str) -> Image.Image:
    with Image.open(PHOTOS_FOLDER / f"{name}.jpg") as photo:
        return photo.convert("RGB")


def _random_crop(photo: Image.Image, generator: np.random.Generator) -> Image.Image:
    area = photo.width * photo.height * float(generator.uniform(*AREA))
    aspect = math.exp(float(generator.uniform(math.log(ASPECT[0]), math.log(ASPECT[1]))))
    width = min(photo.width, max(1, round(math.sqrt(area * aspect))))
    height = min(photo.height, max(1, round(math.sqrt(area / aspect))))
    left = int(generator.integers(photo.width - width + 1))
    top = int(generator.integers(photo.height - height + 1))
    crop = photo.crop((left, top, left + width, top + height))
    return crop.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if generator.random() < 0.5 else crop
