"""Classify image files with a model that takes bytes: what a deployer needs, and nothing of ptq4vit-onnx.

    ptq4vit-onnx export --model deit_b --input uint8
    python examples/feed_bytes.py deit_b_w8a8/model.onnx photo.jpg [more.png ...]

Pillow decodes, resizes and crops as the file's metadata says; the bytes go into ONNX Runtime as they are, since the
normalisation is part of the model. Prints the five likeliest classes of every image, by index, with probabilities.
"""

from __future__ import annotations

import json
import math
import sys
from typing import Any

import numpy as np
import onnxruntime
from PIL import Image

TOP = 5
Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Floats = np.ndarray[Any, np.dtype[np.floating[Any]]]


def main() -> int:
    if len(sys.argv) < 3:
        print("usage: feed_bytes.py MODEL.onnx IMAGE [IMAGE ...]", file=sys.stderr)
        return 2
    model, *files = sys.argv[1:]
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    if session.get_inputs()[0].type != "tensor(uint8)":
        print(f"{model} takes {session.get_inputs()[0].type}; export it with --input uint8", file=sys.stderr)
        return 2
    rule = json.loads(session.get_modelmeta().custom_metadata_map["ptq4vit_onnx.preprocessing"])
    probabilities = softmax(logits_of(session, np.stack([read(file, rule) for file in files])))
    for file, row in zip(files, probabilities, strict=True):
        best = np.argsort(-row, kind="stable")[:TOP]
        print(file, *(f"{index}:{row[index]:.4f}" for index in best))
    return 0


def read(file: str, rule: dict[str, Any]) -> Bytes:
    """An image file of 8 bits as bytes [height, width, channels]."""
    channels, height, width = rule["size"]
    with Image.open(file) as opened:
        image = opened.convert("L" if channels == 1 else "RGB")
    image = image.resize(resized(image.size, rule), Image.Resampling[rule["interpolation"].upper()])
    left, top = round((image.width - width) / 2), round((image.height - height) / 2)
    return np.asarray(image.crop((left, top, left + width, top + height))).reshape(height, width, channels)


def resized(size: tuple[int, int], rule: dict[str, Any]) -> tuple[int, int]:
    """(width, height) before the centre is cropped: "squash" ignores the aspect ratio, "center" keeps it.

    timm rounds the sides down where the model's image is square, and to the nearest where it is not.
    """
    height, width = (math.floor(side / rule["crop_pct"]) for side in rule["size"][1:])
    if rule["crop_mode"] == "squash":
        return width, height
    if width != height:
        ratio = min(size[0] / width, size[1] / height)
        return round(size[0] / ratio), round(size[1] / ratio)
    if size[0] <= size[1]:
        return width, int(width * size[1] / size[0])
    return int(height * size[0] / size[1]), height


def logits_of(session: onnxruntime.InferenceSession, images: Bytes) -> Floats:
    """Logits [n, classes] of bytes [n, height, width, channels]; a fixed batch is filled up with the last image."""
    entry = session.get_inputs()[0]
    batch = entry.shape[0] if isinstance(entry.shape[0], int) else len(images)
    filled = np.concatenate([images, np.repeat(images[-1:], -len(images) % batch, axis=0)])
    parts = [session.run(None, {entry.name: part})[0] for part in np.split(filled, len(filled) // batch)]
    return np.concatenate(parts)[: len(images)]


def softmax(logits: Floats) -> Floats:
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


if __name__ == "__main__":
    sys.exit(main())
