"""CarryBytes: quantise first, move bytes afterwards; the codes stay the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from ptq4vit_onnx.passes import quantize
from ptq4vit_onnx.passes.tensors import Array
from ptq4vit_onnx.plan.quantizers import Uniform
from ptq4vit_onnx.plan.scale_plan import SitePlan
from tests.passes.small_models import Small

PLAN = SitePlan("linear", "other", Uniform(6, (0.0625,)), Uniform(8, (0.015625,)))


Move = tuple[str, list[str | tuple[int, ...]], dict[str, Any]]


def moved_linear(moves: list[Move], outputs: list[str]) -> onnx.ModelProto:
    """x [batch, 4, 6] -> moves -> fc. A move is (operation, inputs: constants or names, attributes)."""
    nodes: list[onnx.NodeProto] = []
    constants: list[onnx.TensorProto] = []
    x = "x"
    for number, (operation, inputs, attributes) in enumerate(moves):
        names = []
        for item in inputs:
            if isinstance(item, str):
                names.append(item)
            else:
                constants.append(numpy_helper.from_array(np.asarray(item, np.int64), f"c{len(constants)}"))
                names.append(constants[-1].name)
        feed = names if operation == "Concat" or any(n.startswith("m") or n == "x" for n in names) else [x, *names]
        x = f"m{number}"
        nodes.append(helper.make_node(operation, feed, [x], f"move/{operation}_{number}", **attributes))
    weight = np.random.default_rng(0).standard_normal((6, 5)).astype(np.float32)
    constants.append(numpy_helper.from_array(weight, "fc.weight"))
    nodes.append(helper.make_node("MatMul", [x, "fc.weight"], ["y"], "fc/MatMul"))
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "moved",
        [value("x", TensorProto.FLOAT, ("batch", 4, 6))],
        [value(name, TensorProto.FLOAT, None) for name in ["y", *outputs]],
        constants,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    return onnx.shape_inference.infer_shapes(model, strict_mode=True)


TURN: list[Move] = [
    ("Reshape", [(-1, 2, 2, 6)], {}),
    ("Transpose", [], {"perm": [0, 2, 1, 3]}),
    ("Reshape", [(-1, 4, 6)], {}),
]
ROLL: list[Move] = [
    ("Slice", ["x", (0,), (1,), (1,)], {}),
    ("Slice", ["x", (1,), (4,), (1,)], {}),
    ("Concat", ["m1", "m0"], {"axis": 1}),
]
PADDED: list[Move] = [*ROLL, ("Pad", [(0,) * 6], {})]
PICK: list[Move] = [("Slice", ["x", (0,), (1,), (1,)], {})]


def order_of(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node if node.op_type not in ("DequantizeLinear", "MatMul")]


@pytest.fixture
def x(random: np.random.Generator) -> Array:
    return random.standard_normal((3, 4, 6)).astype(np.float32) * 2


@pytest.mark.parametrize("moves", [TURN, ROLL, PADDED], ids=["turn", "roll", "roll, padded by nothing"])
def test_bytes_are_moved_instead_of_floats(moves: list[Move], small: Small, x: Array) -> None:
    model = moved_linear(moves, [])
    quantized, report = quantize(model, small.plan({"fc": PLAN}))
    assert report.places["CarryBytes"] == 1
    reader = next(node for node in quantized.graph.node if "x" in node.input)
    assert reader.op_type == "QuantizeLinear"
    assert sorted(order_of(quantized)) == sorted(
        ["QuantizeLinear", "Clip", *(name for name, _, _ in moves if name != "Pad")]
    )
    moved = small.fetch(model, x, model.graph.node[-1].input[0])[0]
    expected = small.fake_linear(moved, small.weight(model, "fc.weight"), PLAN.lhs, PLAN.rhs)
    executed = small.execute(quantized, x)
    np.testing.assert_allclose(executed.output, expected, atol=1e-5)
    assert executed.by_name["fc/MatMul"] == "MatMulIntegerToFloat"


def test_what_is_thrown_away_is_not_quantised(small: Small) -> None:
    quantized, report = quantize(moved_linear(PICK, []), small.plan({"fc": PLAN}))
    assert report.places["CarryBytes"] == 0
    assert order_of(quantized)[:2] == ["Slice", "QuantizeLinear"]


@pytest.mark.parametrize("shown", ["m1", "m2"])
def test_floats_that_are_shown_to_others_stay_floats(shown: str, small: Small, x: Array) -> None:
    model = moved_linear(TURN, [shown])
    quantized, _ = quantize(model, small.plan({"fc": PLAN}))
    np.testing.assert_array_equal(small.fetch(quantized, x, shown)[0], small.fetch(model, x, shown)[0])
    assert [item.name for item in quantized.graph.output] == ["y", shown]
