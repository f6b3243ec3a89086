"""The handwritten digits that ship with the embedded models."""

from __future__ import annotations

from typing import Any

import numpy as np
from PIL import Image

from ptq4vit_onnx.errors import UserError
from ptq4vit_onnx.images.loading import Array, ImageSet, pick
from ptq4vit_onnx.images.preprocessing import Preprocessing
from ptq4vit_onnx.models.specs import DIGITS_FOLDER

DIGITS_SPLITS = {"train": 0, "calibration": 1, "test": 2}


def embedded_digits(preprocessing: Preprocessing, split: str, count: int | None = None, seed: int = 0) -> ImageSet:
    """The handwritten digits that ship with the package; split is train, calibration or test."""
    with np.load(DIGITS_FOLDER / "digits.npz", allow_pickle=False) as data:
        chosen = _indices(data, split)
        _require_count(split, len(chosen), count)
        chosen = chosen[pick(len(chosen), count, seed)]
        raw, labels = data["images"][chosen], data["labels"][chosen].astype(np.int64)
    grey = np.round(raw.astype(np.float32) * np.float32(255 / 16)).astype(np.uint8)
    images = np.stack([preprocessing.apply(Image.fromarray(image)) for image in grey])
    return ImageSet(images, labels, tuple(f"digit {index}" for index in chosen), f"embedded digits ({split})")


def require_digits(split: str, count: int) -> None:
    """Refuse more than a split has; cheap enough to ask before a model is loaded."""
    with np.load(DIGITS_FOLDER / "digits.npz", allow_pickle=False) as data:
        _require_count(split, len(_indices(data, split)), count)


def count_digits(split: str) -> int:
    with np.load(DIGITS_FOLDER / "digits.npz", allow_pickle=False) as data:
        return len(_indices(data, split))


def _indices(data: Any, split: str) -> Array:
    return np.flatnonzero(data["split"] == DIGITS_SPLITS[split])


def _require_count(split: str, available: int, count: int | None) -> None:
    if count is not None and count > available:
        raise UserError(f"the embedded {split} split has {available} images, {count} are asked for; lower --images")
