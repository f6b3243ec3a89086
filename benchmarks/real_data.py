"""Where the real weights and photos lie, for benchmarks and for tests that use them. None of it is in this repository.

The folder is named by PTQ4VIT_DATA, else it is ../shared/data seen from the repository:
    weights/*.safetensors   calibration/labels.csv   validation/labels.csv (with a column `fold`)
"""

from __future__ import annotations

import os
from pathlib import Path

from ptq4vit_onnx.images.loading import ImageSet, load_images
from ptq4vit_onnx.model_loading.load import LoadedModel, load, resolve

WEIGHTS = {
    "vit_t": "vit_tiny_patch16_224.augreg_in1k.safetensors",
    "deit_t": "deit_tiny_patch16_224.in1k.safetensors",
}


def folder() -> Path | None:
    """The data folder, or None where this machine has none."""
    named = os.environ.get("PTQ4VIT_DATA")
    path = Path(named) if named else Path(__file__).resolve().parents[2] / "shared" / "data"
    return path if (path / "weights").is_dir() else None


def require_folder() -> Path:
    found = folder()
    if found is None:
        raise SystemExit("no real data: set PTQ4VIT_DATA to a folder with weights/, calibration/ and validation/")
    return found


def load_model(name: str) -> LoadedModel:
    return load(resolve(name), require_folder() / "weights" / WEIGHTS[name])


def calibration_images(model: LoadedModel, count: int = 32, seed: int = 0) -> ImageSet:
    return load_images(require_folder() / "calibration", model.preprocessing, count, seed)


def validation_images(model: LoadedModel, fold: int, count: int | None = None) -> ImageSet:
    return load_images(
        require_folder() / "validation",
        model.preprocessing,
        count,
        where=lambda row: row["fold"] == str(fold),
    )
