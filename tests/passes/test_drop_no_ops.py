"""DropNoOps drops what does nothing, and nothing else."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from ptq4vit_onnx.passes import quantize
from ptq4vit_onnx.plan.quantizers import Uniform
from ptq4vit_onnx.plan.scale_plan import SitePlan
from tests.passes.small_models import Small

PLAN = SitePlan("linear", "other", Uniform(8, (0.03125,)), Uniform(8, (0.015625,)))


def padded(small: Small, amount: int) -> onnx.ModelProto:
    """The small linear with a Pad of `amount` tokens and an Identity in front."""
    model = small.linear(2)
    pads = np.asarray([0, 0, 0, 0, amount, 0], np.int64)
    model.graph.initializer.append(numpy_helper.from_array(pads, "pads"))
    model.graph.node[0].input[0] = "same"
    for node in (
        helper.make_node("Identity", ["padded"], ["same"], "block/Identity"),
        helper.make_node("Pad", ["x", "pads"], ["padded"], "block/Pad"),
    ):
        model.graph.node.insert(0, node)
    del model.graph.value_info[:]
    model.graph.output[0].type.tensor_type.ClearField("shape")
    return model


@pytest.mark.parametrize(("amount", "dropped"), [(0, 2), (1, 1)])
def test_only_a_pad_by_nothing_is_dropped(amount: int, dropped: int, small: Small, random: np.random.Generator) -> None:
    model, x = padded(small, amount), random.standard_normal((2, 5, 12)).astype(np.float32)
    quantized, report = quantize(model, small.plan({"fc": PLAN}))
    assert report.places["DropNoOps"] == dropped
    assert sum(node.op_type == "Pad" for node in quantized.graph.node) == amount
    longer = np.pad(x, ((0, 0), (0, amount), (0, 0)))
    expected = small.fake_linear(longer, small.weight(model, "fc.weight"), PLAN.lhs, PLAN.rhs)
    output = small.execute(quantized, x).output
    np.testing.assert_allclose(output, expected + small.weight(model, "fc.bias"), atol=1e-5)


def test_an_identity_that_names_an_output_is_kept(small: Small, random: np.random.Generator) -> None:
    model, x = small.linear(2), random.standard_normal((2, 5, 12)).astype(np.float32)
    model.graph.node.append(helper.make_node("Identity", [model.graph.output[0].name], ["logits"], "Identity"))
    model.graph.output[0].name = "logits"
    quantized, report = quantize(model, small.plan({"fc": PLAN}))
    assert report.places["DropNoOps"] == 0
    assert [item.name for item in quantized.graph.output] == ["logits"]
    assert small.execute(quantized, x).output.shape == (2, 5, 8)
