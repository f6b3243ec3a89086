"""Bounds of codes: never narrower than what can occur, and narrowed by what the graph proves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from ptq4vit_onnx.graph.integer_products import GraphIndex
from ptq4vit_onnx.graph.value_ranges import code_bounds

CONSTANTS = {
    "scale": np.float32(0.25),
    "zero": np.uint8(10),
    "signed_zero": np.int8(0),
    "low": np.float32(-1.0),
    "high": np.float32(2.1),
    "byte_low": np.uint8(3),
    "byte_high": np.uint8(100),
    "middle_low": np.uint8(64),
    "middle_high": np.uint8(191),
    "half": np.uint8(128),
    "weights": np.array([-7, 9], np.int8),
    "shape": np.array([-1], np.int64),
}


def bounds(*nodes: Any) -> tuple[float, float]:
    """Of the last node's output."""
    tensors = [numpy_helper.from_array(np.asarray(value), name) for name, value in CONSTANTS.items()]
    image = helper.make_tensor_value_info("image", TensorProto.FLOAT, [4])
    model = helper.make_model(helper.make_graph(list(nodes), "g", [image], [], tensors))
    return code_bounds(GraphIndex(model), nodes[-1].output[0])


def node(op: str, inputs: str, output: str, **attributes: Any) -> Any:
    return helper.make_node(op, ["" if name == "-" else name for name in inputs.split()], [output], **attributes)


QUANTIZE = node("QuantizeLinear", "image scale zero", "codes")
GELU = [node("Gelu", "image", "y")]


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ([QUANTIZE], (0, 255)),
        ([node("QuantizeLinear", "image scale signed_zero", "codes")], (-128, 127)),
        ([QUANTIZE, node("Clip", "codes byte_low byte_high", "out")], (3, 100)),
        ([QUANTIZE, node("Clip", "codes - byte_high", "out")], (0, 100)),
        ([QUANTIZE, node("Clip", "codes - byte_high", "c"), node("Reshape", "c shape", "out")], (0, 100)),
        ([QUANTIZE, node("Clip", "codes - byte_high", "c"), node("Cast", "c", "out", to=3)], (0, 100)),
        ([QUANTIZE, node("Cast", "codes", "out", to=3)], (-128, 127)),
        ([QUANTIZE, node("Add", "codes byte_high", "out")], (0, 255)),
        ([QUANTIZE, node("Clip", "codes - byte_high", "c"), node("Add", "c byte_high", "out")], (100, 200)),
        # -0.16998 times 8 is 5.4 steps of 0.25 below the zero point
        ([*GELU, node("LeakyRelu", "y", "l", alpha=8.0), node("QuantizeLinear", "l scale zero", "out")], (5, 255)),
        ([*GELU, node("QuantizeLinear", "y scale zero", "out")], (9, 255)),
        ([node("Gelu", "image", "y", approximate="tanh"), node("QuantizeLinear", "y scale zero", "out")], (0, 255)),
        ([QUANTIZE, node("Clip", "codes - byte_high", "c"), node("Sub", "codes c", "out")], (0, 155)),
        (
            # 64..191 plus 128 wraps to 192..255, 0..63: no interval as bytes, but one as signed bytes
            [
                QUANTIZE,
                node("Clip", "codes middle_low middle_high", "c"),
                node("Add", "c half", "sum"),
                node("Cast", "sum", "out", to=3),
            ],
            (-64, 63),
        ),
        ([node("Clip", "image low high", "f"), node("QuantizeLinear", "f scale zero", "codes")], (6, 18)),
        ([node("Softmax", "image", "p"), node("QuantizeLinear", "p scale zero", "codes")], (10, 14)),
        ([node("Relu", "image", "p"), node("QuantizeLinear", "p scale zero", "codes")], (10, 255)),
        ([node("Add", "image weights", "f"), node("QuantizeLinear", "f scale zero", "codes")], (0, 255)),
        ([QUANTIZE, node("Unknown", "codes", "out")], (-np.inf, np.inf)),
        ([QUANTIZE, node("Concat", "codes weights", "out", axis=0)], (0, 255)),
        ([node("Identity", "weights", "out")], (-7, 9)),
    ],
)
def test_bounds_follow_from_types_clips_and_floats(nodes: list[Any], expected: tuple[float, float]) -> None:
    assert bounds(*nodes) == expected
