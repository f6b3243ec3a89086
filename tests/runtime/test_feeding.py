"""A model that takes bytes is fed the bytes its images were made of, and nothing else."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from PIL import Image

from ptq4vit_onnx.errors import UserError
from ptq4vit_onnx.images.preprocessing import Preprocessing
from ptq4vit_onnx.runtime.bench import _feed
from ptq4vit_onnx.runtime.feeding import as_fed, bytes_of
from ptq4vit_onnx.runtime.session import image_input, run, session

RULE = Preprocessing((3, 8, 8), 1.0, "squash", "nearest", (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
Array = np.ndarray[Any, Any]


def byte_model(preprocessing: Preprocessing | None = RULE) -> onnx.ModelProto:
    """Sums up the bytes [n, 8, 8, 3] of each image."""
    nodes = [
        helper.make_node("Cast", ["image"], ["floats"], to=TensorProto.FLOAT),
        helper.make_node("ReduceSum", ["floats", "axes"], ["total"], keepdims=0),
    ]
    image = helper.make_tensor_value_info("image", TensorProto.UINT8, ["n", 8, 8, 3])
    total = helper.make_tensor_value_info("total", TensorProto.FLOAT, ["n"])
    axes = helper.make_tensor("axes", TensorProto.INT64, [3], [1, 2, 3])
    graph = helper.make_graph(nodes, "sums", [image], [total], [axes])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    if preprocessing is not None:
        model.metadata_props.add(key="ptq4vit_onnx.preprocessing", value=preprocessing.to_json())
    return model


@pytest.fixture
def pictures() -> Array:
    return np.random.default_rng(0).integers(0, 256, (5, 8, 8, 3), np.uint8)


@pytest.fixture
def images(pictures: Array) -> Array:
    return np.stack([RULE.apply(Image.fromarray(picture)) for picture in pictures])


def test_images_become_their_own_bytes_again(pictures: Array, images: Array) -> None:
    assert np.array_equal(bytes_of(images, RULE), pictures)
    assert np.array_equal(run(byte_model(), images, batch=2), pictures.sum((1, 2, 3)).astype(np.float32))


def test_images_between_the_bytes_are_refused(images: Array) -> None:
    with pytest.raises(UserError, match="takes bytes, these images are not of 8 bits"):
        run(byte_model(), images * np.float32(0.99))


def test_a_model_that_does_not_say_how_bytes_are_normalised_is_refused(images: Array) -> None:
    with pytest.raises(UserError, match="takes bytes and does not say how they are normalised"):
        as_fed(session(byte_model(None)), images)


def test_bytes_are_an_input_that_can_be_timed() -> None:
    runner = session(byte_model())
    assert image_input(runner).type == "tensor(uint8)"
    (fed,) = _feed("model", runner, 2).values()
    assert fed.dtype == np.uint8 and fed.shape == (2, 8, 8, 3) and fed.max() > 200
