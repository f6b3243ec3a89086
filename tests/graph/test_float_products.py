"""Products in float are found in the graph that ONNX Runtime executes, under names that it made up."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from ptq4vit_onnx.graph.float_products import float_products, marked_float
from ptq4vit_onnx.graph.integer_products import GraphIndex
from ptq4vit_onnx.runtime.session import optimised_model


def _stem() -> onnx.ModelProto:
    """Convolutions with a ReLU, with a residual, and with a batch norm that reads a sum."""
    random = np.random.default_rng(0)
    tensors = {name: random.standard_normal((16, 16, 3, 3)).astype(np.float32) for name in ("a", "b", "c")}
    tensors.update({name: np.ones(16, np.float32) for name in ("scale", "shift", "mean", "variance")})
    nodes = [
        helper.make_node("Conv", ["image", "a"], ["one"], name="stem.0/float_Conv", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["one"], ["two"], name="stem/Relu"),
        helper.make_node("Conv", ["two", "b"], ["three"], name="stem.1/float_Conv", pads=[1, 1, 1, 1]),
        helper.make_node("Add", ["three", "two"], ["four"], name="stem/Add"),
        helper.make_node(
            "BatchNormalization", ["four", "scale", "shift", "mean", "variance"], ["five"], name="norm/Batch"
        ),
        helper.make_node("Conv", ["five", "c"], ["six"], name="stem.2/Conv", pads=[1, 1, 1, 1]),
    ]
    value = helper.make_tensor_value_info
    ends = [value("image", TensorProto.FLOAT, ["n", 16, 8, 8])], [value("six", TensorProto.FLOAT, ["n", 16, 8, 8])]
    held = [numpy_helper.from_array(array, name) for name, array in tensors.items()]
    graph = helper.make_graph(nodes, "stem", *ends, held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def test_convolutions_over_blocks_of_channels_are_followed_back_to_their_names() -> None:
    model = _stem()
    found = list(float_products(GraphIndex(optimised_model(model)), GraphIndex(model)))
    assert [item.node for item in found] == ["stem.0/float_Conv", "stem.1/float_Conv", "stem.2/Conv"]
    assert [item.marked for item in found] == ["stem.0", "stem.1", None]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("stem.0/float_Conv", "stem.0"),
        ("stem.0/float_Conv_1", "stem.0"),
        ("mix/float_MatMul/MatMulAddFusion", "mix"),
        ("stem.0/Conv", None),
        ("pool.q/constant_MatMul", None),
        ("float_Conv", None),
    ],
)
def test_a_name_says_whether_its_product_stays_in_float(name: str, expected: str | None) -> None:
    assert marked_float(name) == expected
