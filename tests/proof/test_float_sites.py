"""Tensors inside a model: fetched for all images, and float weights whatever node holds them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from onnx import helper, numpy_helper

from ptq4vit_onnx.errors import UserError
from ptq4vit_onnx.proof.float_sites import FloatSites
from ptq4vit_onnx.runtime.inner_tensors import fetch

Array = np.ndarray[Any, Any]


@pytest.mark.parametrize("batch", [1, 2, 3])
def test_tensors_of_a_static_batch_are_fetched_for_all_images(
    linear: Callable[..., Any], vectors: Array, batch: int
) -> None:
    images = np.concatenate([vectors, vectors * 0.5, vectors[:1] * 2])
    free, fixed = linear().model, linear(batch=batch).model
    name = free.graph.output[0].name
    assert np.array_equal(fetch(fixed, [name], images)[name], fetch(free, [name], images)[name])


def test_float_weights_are_found_as_inputs_by_outputs_whatever_the_node() -> None:
    weight = np.arange(12, dtype=np.float32).reshape(4, 3)
    kernel = np.ascontiguousarray(weight.T).reshape(3, 1, 2, 2)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], name="fc/MatMul"),
        helper.make_node("Gemm", ["x", "wt"], ["b"], name="head/Gemm", transB=1),
        helper.make_node("Conv", ["i", "k"], ["c"], name="patch_embed.proj/Conv", strides=[2, 2]),
        helper.make_node("Conv", ["i", "wide"], ["d"], name="stem/Conv", pads=[1, 1, 1, 1]),
    ]
    wide = np.arange(24, dtype=np.float32).reshape(3, 2, 2, 2)
    constants = {"w": weight, "wt": np.ascontiguousarray(weight.T), "k": kernel, "wide": wide}
    tensors = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    model = helper.make_model(helper.make_graph(nodes, "float", [], [], tensors))
    sites = FloatSites(model, None)
    for site in ("fc", "head"):
        assert np.array_equal(sites.weight(site), weight)
    assert np.array_equal(sites.weight("patch_embed.proj"), weight[[0, 2, 1, 3]])  # far inputs side by side
    assert np.array_equal(sites.weight("stem"), wide.transpose(2, 3, 1, 0).reshape(8, 3))  # channels last
    with pytest.raises(UserError, match="no product for 'absent'"):
        sites.weight("absent")
