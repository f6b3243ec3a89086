"""The table of moving operators says what ONNX's reference evaluator does with distinct numbers."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from ptq4vit_onnx.graph.movement import KEEPING_VALUES, MOVEMENTS, MOVING, Movement

# Constant inputs and attributes of one use of each operator on x [1, 4, 2, 2], which holds 1 .. 16.
USES: dict[str, tuple[list[Any], dict[str, Any]]] = {
    "Identity": ([], {}),
    "Reshape": ([[4, 4]], {}),
    "Flatten": ([], {}),
    "Squeeze": ([[0]], {}),
    "Unsqueeze": ([[0]], {}),
    "Transpose": ([], {"perm": [1, 0, 2, 3]}),
    "DepthToSpace": ([], {"blocksize": 2}),
    "SpaceToDepth": ([], {"blocksize": 2}),
    "Slice": ([[0], [1], [1]], {}),
    "Split": ([], {"axis": 1, "num_outputs": 2}),
    "Gather": ([[0, 2]], {"axis": 1}),
    "Expand": ([[2, 4, 2, 2]], {}),
    "Pad": ([[0, 0, 0, 0, 0, 0, 0, 1]], {}),
}
X = np.arange(1, 17, dtype=np.float32).reshape(1, 4, 2, 2)


def output_of(op: str) -> list[float]:
    constants, attributes = USES[op]
    names = [f"c{n}" for n in range(len(constants))]
    outputs = ["y", "z"] if op == "Split" else ["y"]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node(op, ["x", *names], outputs, **attributes)],
        "move",
        [value("x", TensorProto.FLOAT, X.shape)],
        [value("y", TensorProto.FLOAT, None)],
        [
            numpy_helper.from_array(np.asarray(item, np.int64), name)
            for item, name in zip(constants, names, strict=True)
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])
    found = cast(list[np.ndarray[Any, Any]], ReferenceEvaluator(model).run(None, {"x": X}))
    return [float(item) for item in found[0].reshape(-1)]


@pytest.mark.parametrize("op", sorted(USES))
def test_an_operator_moves_elements_as_the_table_says(op: str) -> None:
    before, after = sorted(X.reshape(-1).tolist()), sorted(output_of(op))
    added, missing, repeated = set(after) - set(before), set(before) - set(after), len(after) > len(set(after))
    found = {
        Movement.REARRANGES: after == before,
        Movement.REBLOCKS: after == before,
        Movement.PICKS: bool(missing) and not added and not repeated,
        Movement.REPEATS: repeated and not added,
        Movement.PADS: bool(added),
    }
    assert found[MOVEMENTS[op]]


def test_every_operator_is_tried_but_the_one_with_several_inputs() -> None:
    assert set(USES) == MOVING - {"Concat"}
    assert {op for op in USES if set(output_of(op)) <= set(X.reshape(-1))} == KEEPING_VALUES - {"Concat"}
