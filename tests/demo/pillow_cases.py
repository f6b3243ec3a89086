"""What Pillow and numpy make of made-up images.

`python tests/demo/pillow_cases.py` writes docs/demo/test/pillow.json.
."""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from ptq4vit_onnx.images.preprocessing import Preprocessing

FIXTURE = Path(__file__).resolve().parents[2] / "docs" / "demo" / "test" / "pillow.json"
HALF, IMAGENET = ((0.5,), (0.5,)), ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
STORED = 2000  # bytes: of larger images only the floats' hash is stored

# name: (width, height, channels) of the image, size of the model's, crop_pct, crop_mode, interpolation, mean and std
CASES: dict[str, tuple[tuple[int, int, int], tuple[int, int, int], float, str, str, Any]] = {
    "a grey digit enlarged": ((8, 8, 1), (1, 32, 32), 1.0, "squash", "bicubic", HALF),
    "a wide image shrunk and cropped": ((61, 40, 3), (3, 16, 16), 0.9, "center", "bicubic", IMAGENET),
    "a tall image shrunk and cropped": ((37, 59, 3), (3, 16, 16), 0.875, "center", "bilinear", IMAGENET),
    "an image enlarged and cropped": ((9, 7, 3), (3, 20, 20), 0.95, "center", "bicubic", HALF),
    "an oblong target": ((50, 33, 3), (3, 12, 20), 0.9, "center", "bicubic", HALF),
    "both sides squashed": ((45, 21, 3), (3, 14, 14), 1.0, "squash", "lanczos", IMAGENET),
    "the nearest pixel": ((33, 47, 3), (3, 14, 14), 0.9, "center", "nearest", HALF),
    "an image of the right size": ((16, 16, 3), (3, 16, 16), 1.0, "center", "bicubic", HALF),
    "only one side changes": ((16, 30, 3), (3, 16, 16), 1.0, "squash", "bicubic", HALF),
    "a crop wider than the image": ((30, 30, 3), (3, 16, 16), 1.2, "center", "bicubic", HALF),
    "colours as grey": ((25, 19, 3), (1, 16, 16), 1.0, "center", "bilinear", HALF),
    "transparency dropped": ((25, 19, 4), (3, 16, 16), 1.0, "center", "bilinear", HALF),
    "grey as colours": ((25, 19, 1), (3, 16, 16), 1.0, "center", "bicubic", IMAGENET),
    "a photo's size": ((500, 375, 3), (3, 224, 224), 0.9, "center", "bicubic", IMAGENET),
}


def made_up(width: int, height: int, channels: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """The image [height, width, channels] that preprocessing.test.js makes, too: edges, ramps and fine patterns."""
    y, x, c = np.ogrid[:height, :width, :channels]
    codes: np.ndarray[Any, np.dtype[np.uint8]] = ((x * 7 + y * 13 + c * 29 + ((x * y) % 31) * 40) % 256).astype(
        np.uint8
    )
    return codes


def case(
    name: str, shape: tuple[int, int, int], size: tuple[int, int, int], crop_pct: float, crop_mode: str,
    interpolation: str, mean: tuple[float, ...], std: tuple[float, ...],
) -> dict[str, Any]:  # fmt: skip
    width, height, channels = shape
    pixels = made_up(*shape)
    image = Image.fromarray(pixels[..., 0] if channels == 1 else pixels)
    rule = Preprocessing(size, crop_pct, crop_mode, interpolation, mean, std)
    in_bytes = Preprocessing(size, crop_pct, crop_mode, interpolation, (0.0,), (1 / 255,))
    seen = in_bytes.apply(image).round().astype(np.uint8).transpose(1, 2, 0)
    return {
        "name": name,
        "image": {"width": width, "height": height, "channels": channels},
        "rule": json.loads(rule.to_json()),
        "pixels": base64.b64encode(seen.tobytes()).decode() if seen.size <= STORED else None,
        "floats": hashlib.sha256(rule.apply(image).tobytes()).hexdigest(),
    }


def text() -> str:
    """The fixture, one case a line."""
    made = (case(name, *given[:-1], *given[-1]) for name, given in CASES.items())
    return "[\n" + ",\n".join(map(json.dumps, made)) + "\n]\n"


if __name__ == "__main__":
    FIXTURE.write_text(text(), encoding="utf-8")
