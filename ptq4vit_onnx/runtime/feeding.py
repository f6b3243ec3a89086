"""What a model is fed: the normalised images that the tool works with, or the bytes they came from."""

from __future__ import annotations

import numpy as np

from ptq4vit_onnx.errors import UserError
from ptq4vit_onnx.graph.model_proto import Array
from ptq4vit_onnx.images.preprocessing import Preprocessing
from ptq4vit_onnx.plan.quantizers import Pixels
from ptq4vit_onnx.runtime.runner import BYTES, Runner

OFF_GRID = 0.01  # of a step


def as_fed(runner: Runner, images: Array) -> Array:
    """`images` [n, channels, height, width], normalised, as the session's model takes them.

    A model whose input is bytes says in its metadata how images are normalised. What is undone here is exact: 8-bit
    images become their own bytes [n, height, width, channels] again; others are refused.
    """
    if runner.get_inputs()[0].type != BYTES:
        return images
    return bytes_of(images, _preprocessing(runner))


def bytes_of(images: Array, rule: Preprocessing) -> Array:
    """The bytes [n, height, width, channels] that `rule` made these images [n, channels, height, width] of."""
    grid = Pixels.of(rule.mean, rule.std, rule.size[0])
    scale, centre = (np.asarray(values, np.float32).reshape(-1, 1, 1) for values in (grid.scale, grid.centre))
    values = images / scale + centre
    codes = values.round()
    if not (np.abs(values - codes) <= OFF_GRID).all() or codes.min() < 0 or codes.max() > 255:
        raise UserError(
            "the model takes bytes, these images are not of 8 bits; give image files, or a float-input model"
        )
    return np.ascontiguousarray(codes.astype(np.uint8).transpose(0, 2, 3, 1))


def _preprocessing(runner: Runner) -> Preprocessing:
    said = runner.get_modelmeta().custom_metadata_map.get("ptq4vit_onnx.preprocessing")
    if said is None:
        raise UserError(
            "the model takes bytes and does not say how they are normalised; give a file that ptq4vit-onnx export has "
            "written"
        )
    return Preprocessing.from_json(said)
