"""RestoreHeadScales: one multiplication per product, right behind it."""

from __future__ import annotations

import numpy as np
import pytest

from ptq4vit_onnx.passes import quantize
from ptq4vit_onnx.passes.restore_head_scales import RestoreHeadScales
from ptq4vit_onnx.passes.tensors import Array
from ptq4vit_onnx.plan.quantizers import TwinSoftmax, Uniform
from tests.passes.small_models import Small


@pytest.fixture
def x(random: np.random.Generator) -> Array:
    return random.standard_normal((2, 5, 12)).astype(np.float32)


def test_scales_of_both_sides_are_one_multiplication(small: Small, x: Array) -> None:
    model = small.attention()
    plan = small.attention_plan(model, x)
    work = small.run_until(model, plan, "RestoreHeadScales")
    qk = plan.sites["attn.qk"]
    assert isinstance(qk.lhs, Uniform)
    factors = np.asarray(qk.lhs.scale, np.float32) * np.asarray(qk.rhs.scale, np.float32)
    np.testing.assert_array_equal(work.constants["attn.qk/head_scales"].values, factors.reshape(3, 1, 1))
    names = [node.name for node in work.graph.nodes if node.op == "Mul" and node.outputs[0].outputs]
    assert names.count("attn.qk/Mul") == names.count("attn.pv/Mul") == 1


@pytest.mark.parametrize("shift", [1, 5])
def test_twin_branches_share_the_multiplication(shift: int, small: Small, x: Array) -> None:
    model = small.attention()
    plan = small.attention_plan(model, x, lhs=TwinSoftmax(8, shift))
    quantized, _ = quantize(model, plan)
    assert sum(node.name == "attn.pv/Mul" for node in quantized.graph.node) == 1
    np.testing.assert_allclose(small.execute(quantized, x).output, small.fake_attention(model, x, plan), atol=1e-4)


def test_a_product_without_head_scales_is_left_alone(small: Small, x: Array) -> None:
    model = small.attention()
    work = small.run_until(model, small.attention_plan(model, x, heads=1), "QuantizeActivations")
    before = len(work.graph.nodes)
    RestoreHeadScales()(work)
    assert len(work.graph.nodes) == before and work.counts["RestoreHeadScales"] == 0
