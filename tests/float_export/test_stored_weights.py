"""Weights that are parts of another constant are stored by themselves; nothing else changes."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from ptq4vit_onnx.float_export.stored_weights import store_weights
from ptq4vit_onnx.runtime.session import run

MATRIX = np.arange(24, dtype=np.float32).reshape(6, 4)


def model_with(nodes: list[onnx.NodeProto]) -> onnx.ModelProto:
    value = helper.make_tensor_value_info
    constants: dict[str, Any] = {
        "matrix": MATRIX,
        "bias": np.arange(6, dtype=np.float32),
        "sizes": np.asarray([2, 4], np.int64),
    }
    graph = helper.make_graph(
        nodes, "parts", [value("x", TensorProto.FLOAT, ["n", 3, 4])], [value("y", TensorProto.FLOAT, ["n", 3, 4])],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def in_parts() -> onnx.ModelProto:
    """x @ (the last four rows of the matrix)^T + the last four of the biases: keys of nn.MultiheadAttention."""
    return model_with(
        [
            helper.make_node("Split", ["matrix", "sizes"], ["q", "k"], axis=0),
            helper.make_node("Split", ["bias", "sizes"], ["q_bias", "k_bias"], axis=0),
            helper.make_node("Transpose", ["k"], ["turned"], perm=[1, 0]),
            helper.make_node("MatMul", ["x", "turned"], ["product"]),
            helper.make_node("Add", ["product", "k_bias"], ["y"]),
        ]
    )


def test_the_parts_that_are_read_become_constants() -> None:
    model, x = in_parts(), np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)
    before = run(model, x)
    store_weights(model)
    onnx.checker.check_model(model, full_check=True)
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    assert [node.op_type for node in model.graph.node] == ["MatMul", "Add"] and set(stored) == {"turned", "k_bias"}
    np.testing.assert_array_equal(stored["turned"], MATRIX[2:].T)
    np.testing.assert_array_equal(run(model, x), before)


def test_a_graph_whose_weights_are_stored_stays_as_it_is() -> None:
    model = model_with(
        [
            helper.make_node("Split", ["bias", "sizes"], ["few", "many"], axis=0),
            helper.make_node("Add", ["x", "many"], ["shifted"]),
            helper.make_node("Gemm", ["flat", "matrix"], ["unread"], transB=1),
            helper.make_node("Relu", ["shifted"], ["y"]),
        ]
    )
    before = model.SerializeToString(deterministic=True)
    store_weights(model)
    assert model.SerializeToString(deterministic=True) == before
