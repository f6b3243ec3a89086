"""Images that need no files of the user's: the embedded digits, and smooth noise."""

from __future__ import annotations

import numpy as np
from PIL import Image

from ptq4vit_onnx.errors import UserError
from ptq4vit_onnx.images.loading import ImageSet, pick
from ptq4vit_onnx.images.preprocessing import Preprocessing
from ptq4vit_onnx.models.specs import DIGITS_FOLDER


def synthetic_images(preprocessing: Preprocessing, count: int, seed: int) -> ImageSet:
    """Seeded smooth noise, normalised like photos: for dry runs with random weights only."""
    channels, height, width = preprocessing.size
    generator = np.random.default_rng(seed)
    coarse = generator.integers(0, 256, (count, 8, 8, channels), dtype=np.uint8)
    images = []
    for grid in coarse:
        image = Image.fromarray(grid[..., 0] if channels == 1 else grid)
        images.append(preprocessing.apply(image.resize((width, height), Image.Resampling.BICUBIC)))
    names = tuple(f"synthetic {index}" for index in range(count))
    return ImageSet(np.stack(images), None, names, "synthetic", synthetic=True)


DIGITS_SPLITS = {"train": 0, "calibration": 1, "test": 2}


def embedded_digits(preprocessing: Preprocessing, split: str, count: int | None = None, seed: int = 0) -> ImageSet:
    """The handwritten digits that ship with the package; split is train, calibration or test."""
    with np.load(DIGITS_FOLDER / "digits.npz", allow_pickle=False) as data:
        chosen = np.flatnonzero(data["split"] == DIGITS_SPLITS[split])
        if count is not None and count > len(chosen):
            raise UserError(
                f"the embedded {split} split has {len(chosen)} images, {count} are asked for; lower --images"
            )
        chosen = chosen[pick(len(chosen), count, seed)]
        raw, labels = data["images"][chosen], data["labels"][chosen].astype(np.int64)
    grey = np.round(raw.astype(np.float32) * np.float32(255 / 16)).astype(np.uint8)
    images = np.stack([preprocessing.apply(Image.fromarray(image)) for image in grey])
    return ImageSet(images, labels, tuple(f"digit {index}" for index in chosen), f"embedded digits ({split})")
