"""FoldHeadScales: Q, K and V travel as bytes, and compute what the plan says."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx_graphsurgeon as gs
import pytest

from ptq4vit_onnx.passes import quantize
from ptq4vit_onnx.passes.tensors import Array, values_of
from ptq4vit_onnx.passes.trace_columns import trace_columns
from ptq4vit_onnx.plan.quantizers import Affine, Uniform
from ptq4vit_onnx.plan.scale_plan import Outliers
from tests.passes.small_models import Batch, Small


@pytest.fixture
def x(random: np.random.Generator) -> Array:
    return random.standard_normal((2, 5, 12)).astype(np.float32)


@pytest.mark.parametrize("batch", ["batch", 2])
@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("bits", [2, 4, 6, 7, 8])
def test_attention_computes_the_plan(bits: int, heads: int, batch: Batch, small: Small, x: Array) -> None:
    model = small.attention(batch)
    plan = small.attention_plan(model, x, bits, heads)
    quantized, report = quantize(model, plan)
    executed = small.execute(quantized, x)
    assert report.places["FoldHeadScales"] == 3
    assert all(executed.by_name[f"{site}/MatMul"] in ("MatMulIntegerToFloat", "QLinearMatMul") for site in plan.sites)
    assert executed.operations["DequantizeLinear"] == 0
    np.testing.assert_allclose(executed.output, small.fake_attention(model, x, plan), atol=1e-4)


@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("bits", [4, 8])
def test_a_linear_without_bias_may_return_bytes_itself(bits: int, heads: int, small: Small, x: Array) -> None:
    model = small.attention(bias=False)
    plan = small.attention_plan(model, x, bits, heads)
    executed = small.execute(quantize(model, plan)[0], x)
    assert executed.by_name["attn.qkv/MatMul"] == "QLinearMatMul"
    np.testing.assert_allclose(executed.output, small.fake_attention(model, x, plan), atol=1e-4)


def test_the_linear_is_quantised_once_and_what_follows_moves_bytes(small: Small, x: Array) -> None:
    model = small.attention()
    executed = small.execute(quantize(model, small.attention_plan(model, x))[0], x)
    assert executed.operations["QuantizeLinear"] == 4  # x, qkv's output, probabilities, proj's input
    assert executed.by_name["attn.qkv/out/QuantizeLinear"] == "QuantizeLinear"
    assert "attn/Mul" not in executed.by_name  # the attention scale is in the weights' scales


def test_the_integer_weights_do_not_change(small: Small, x: Array) -> None:
    model = small.attention()
    plan = small.attention_plan(model, x)
    before = small.run_until(model, plan, "QuantizeWeights").product("attn.qkv")
    after = small.run_until(model, plan, "FoldHeadScales").product("attn.qkv")
    weights = [item.node.inputs[1].inputs[0] for item in (before, after)]
    assert np.array_equal(values_of(weights[0].inputs[0]), values_of(weights[1].inputs[0]))
    assert weights[0].inputs[1].shape == weights[1].inputs[1].shape == (36,)


def test_different_bits_for_q_k_and_v_are_kept_apart(small: Small, x: Array) -> None:
    model = small.attention()
    four, six = small.attention_plan(model, x, 4), small.attention_plan(model, x, 6)
    sites = {**six.sites, "attn.pv": four.sites["attn.pv"]}
    sites["attn.qk"] = replace(sites["attn.qk"], rhs=small.attention_plan(model, x, 8).sites["attn.qk"].rhs)
    plan = small.plan(sites)
    quantized, report = quantize(model, plan)
    assert report.places["FoldHeadScales"] == 3
    output = small.execute(quantized, x).output
    np.testing.assert_allclose(output, small.fake_attention(model, x, plan), atol=1e-4)


def test_a_linear_without_bias_but_with_outliers_and_correction_is_folded_too(small: Small, x: Array) -> None:
    model = small.attention(bias=False)
    plain = small.attention_plan(model, x)
    rows = small.weight(model, "attn.qkv.weight")[[2, 5]]
    outliers = Outliers((2, 5), small.covering(x[..., [2, 5]], 8), small.covering(rows, 8))
    correction = tuple(float(n) / 16 for n in range(36))
    qkv = replace(plain.sites["attn.qkv"], outliers=outliers, bias_correction=correction)
    plan = small.plan({**plain.sites, "attn.qkv": qkv})
    quantized, report = quantize(model, plan)
    assert report.places["FoldHeadScales"] == 3
    unfolded = small.run_until(model, small.plan({"attn.qkv": qkv}), "SplitGelu")
    expected = small.fetch(small.export(unfolded), x, "attn/Squeeze_0:0")[0] * np.float32(0.5)
    name = next(node.output[0] for node in quantized.graph.node if node.name == "attn.qk/lhs/DequantizeLinear")
    lhs = plan.sites["attn.qk"].lhs
    assert isinstance(lhs, Uniform)
    factors = np.asarray(lhs.scale, np.float32).reshape(3, 1, 1)
    got = small.fetch(quantized, x, name)[0] * factors
    np.testing.assert_allclose(got, lhs.fake_quantize(expected), atol=1e-5)


def test_an_affine_key_is_left_to_the_next_pass_and_so_are_its_neighbours(small: Small, x: Array) -> None:
    model = small.attention()
    plan = small.attention_plan(model, x)
    query = Affine(8, (0.03125,), (128,))
    plan = small.plan({**plan.sites, "attn.qk": replace(plan.sites["attn.qk"], lhs=query)})
    quantized, report = quantize(model, plan)
    assert report.places["FoldHeadScales"] == 0
    np.testing.assert_allclose(small.execute(quantized, x).output, small.fake_attention(model, x, plan), atol=1e-4)


def test_a_linear_that_others_read_is_not_folded(small: Small, x: Array) -> None:
    model = small.attention()
    model.graph.output.add().CopyFrom(next(item for item in model.graph.value_info if item.name == "attn.qkv/Add:0"))
    plan = small.attention_plan(model, x)
    quantized, report = quantize(model, plan)
    assert report.places["FoldHeadScales"] == 0
    np.testing.assert_allclose(small.execute(quantized, x).output, small.fake_attention(model, x, plan), atol=1e-4)


def test_heads_with_one_scale_need_no_multiplication(small: Small, x: Array) -> None:
    model = small.attention()
    one = quantize(model, small.attention_plan(model, x, heads=1))[0]
    many = quantize(model, small.attention_plan(model, x, heads=3))[0]
    assert [sum(node.op_type == "Mul" for node in item.graph.node) for item in (one, many)] == [0, 2]


def test_a_moved_constant_is_the_source_of_its_trace() -> None:
    """A learnt query is moved as a constant: there is no linear to follow it to."""
    moved = gs.Variable("moved", shape=[1, 3, 5, 4])
    constant = gs.Constant("query", np.zeros((1, 5, 3, 4), np.float32))
    gs.Node("Transpose", "move", {"perm": [0, 2, 1, 3]}, [constant], [moved])
    trace = trace_columns(moved, 3)
    assert trace is None or trace.source is moved


def test_a_linear_with_its_columns_in_another_order_is_left_to_the_next_pass(small: Small, x: Array) -> None:
    """k, q, v: every column reaches one side, but whoever checks the file expects q, k, v."""
    model = small.attention()
    plan = small.attention_plan(model, x)
    first, second = (next(node for node in model.graph.node if node.name == f"attn/Slice_{n}") for n in (0, 1))
    first.input[:], second.input[:] = list(second.input), list(first.input)
    assert quantize(model, plan)[1].places["FoldHeadScales"] == 0
