"""SeparateReaders: a product without a bias stays an integer product, whoever reads its output."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import pytest

from ptq4vit_onnx.passes import PassError, quantize
from ptq4vit_onnx.passes.separate_readers import SeparateReaders
from ptq4vit_onnx.passes.tensors import Array
from ptq4vit_onnx.plan.quantizers import Uniform
from ptq4vit_onnx.plan.scale_plan import ScalePlan, SitePlan
from tests.passes.small_models import DEPTH, HEADS, TOKENS, WIDTH, FloatGraph, Small

PLAN = SitePlan("linear", "other", Uniform(8, (0.03125,)), Uniform(8, (0.015625,)))
OF_ACTIVATIONS = SitePlan("matmul", "other", Uniform(8, (0.03125,)), Uniform(8, (0.03125,)))


def residual() -> onnx.ModelProto:
    """first + second(first): swinv2_cr's `reduction`, which no norm separates from the attention behind it."""
    graph = FloatGraph()
    y = graph.linear("first", "x", WIDTH, WIDTH, bias=False)
    return graph.model(graph.add("block/Add", [y, graph.linear("second", y, WIDTH, WIDTH)]), ("batch", TOKENS, WIDTH))


def moved_residual() -> onnx.ModelProto:
    graph = FloatGraph()
    y = graph.linear("first", "x", WIDTH, WIDTH, bias=False)
    moved = graph.add("block/Transpose", [y], perm=[1, 0, 2])
    out = graph.add("block/Transpose_1", [graph.linear("second", moved, WIDTH, WIDTH)], perm=[1, 0, 2])
    return graph.model(graph.add("block/Add", [y, out]), ("batch", TOKENS, WIDTH))


def two_linears() -> onnx.ModelProto:
    graph = FloatGraph()
    y = graph.linear("first", "x", WIDTH, WIDTH, bias=False)
    sides = [graph.linear(site, y, WIDTH, WIDTH) for site in ("second", "third")]
    return graph.model(graph.add("block/Add", sides), ("batch", TOKENS, WIDTH))


def planned(model: onnx.ModelProto, small: Small) -> ScalePlan:
    sites = [node.name.removesuffix("/MatMul") for node in model.graph.node if node.op_type == "MatMul"]
    scales = {"third": Uniform(8, (0.0625,))}
    return small.plan({site: SitePlan("linear", "other", scales.get(site, PLAN.lhs), PLAN.rhs) for site in sites})


@pytest.fixture
def x(random: np.random.Generator) -> Array:
    return random.standard_normal((3, TOKENS, WIDTH)).astype(np.float32)


@pytest.mark.parametrize("make", [residual, moved_residual, two_linears])
def test_a_product_without_a_bias_that_several_read_is_computed_in_integers(
    make: Callable[[], onnx.ModelProto], small: Small, x: Array
) -> None:
    model = make()
    plan = planned(model, small)
    quantized, report = quantize(model, plan)
    assert report.places["SeparateReaders"] == 1
    executed = small.execute(quantized, x)
    kernels = {executed.by_name[f"{site}/MatMul"] for site in plan.sites}
    assert kernels == {"MatMulIntegerToFloat"}
    weights = {site: small.weight(model, f"{site}.weight") for site in plan.sites}
    first = small.fake_linear(x, weights["first"], PLAN.lhs, PLAN.rhs)
    behind = [
        small.fake_linear(first, weights[site], plan.sites[site].lhs, PLAN.rhs) + small.weight(model, f"{site}.bias")
        for site in plan.sites
        if site != "first"
    ]
    # a code on the border between two may be the neighbour's: one step of the coarsest scale times the largest weight
    step = max(site.lhs.branches[0].steps[0] for site in plan.sites.values())
    expected = sum(behind, np.zeros(1, np.float32) if len(behind) > 1 else first)
    np.testing.assert_allclose(executed.output, expected, atol=step * max(abs(w).max() for w in weights.values()))


def test_a_product_that_the_user_reads_too_is_computed_in_integers(small: Small, x: Array) -> None:
    graph = FloatGraph()
    y = graph.linear("first", "x", WIDTH, WIDTH, bias=False)
    model = graph.model(graph.linear("second", y, WIDTH, WIDTH), ("batch", TOKENS, WIDTH))
    model.graph.output.append(onnx.helper.make_tensor_value_info(y, onnx.TensorProto.FLOAT, None))
    executed = small.execute(quantize(model, planned(model, small))[0], x)
    assert executed.by_name["first/MatMul"] == executed.by_name["second/MatMul"] == "MatMulIntegerToFloat"


def test_a_product_that_one_quantizelinear_reads_is_left_alone(small: Small) -> None:
    graph = FloatGraph()
    y = graph.linear("first", "x", WIDTH, WIDTH, bias=False)
    model = graph.model(graph.linear("second", y, WIDTH, WIDTH), ("batch", TOKENS, WIDTH))
    quantized, report = quantize(model, planned(model, small))
    assert report.places["SeparateReaders"] == 0
    assert not any(node.name == "first/readers/Add" for node in quantized.graph.node)


def of_activations() -> onnx.ModelProto:
    """scores = x @ x^T; scores @ x + the mean of the scores."""
    graph = FloatGraph()
    turned = graph.add("attn/Transpose", ["x"], perm=[0, 1, 3, 2])
    scores = graph.add("attn.qk/MatMul", ["x", turned])
    out = graph.add("attn.pv/MatMul", [scores, "x"])
    mean = graph.add("attn/ReduceMean", [scores, graph.integers(-1)], keepdims=1)
    return graph.model(graph.add("attn/Add", [out, mean]), ("batch", HEADS, TOKENS, DEPTH))


def test_a_product_of_activations_is_treated_alike(small: Small, random: np.random.Generator) -> None:
    plan = small.plan({site: OF_ACTIVATIONS for site in ("attn.qk", "attn.pv")})
    quantized, report = quantize(of_activations(), plan)
    assert report.places["SeparateReaders"] == 1
    executed = small.execute(quantized, random.standard_normal((2, HEADS, TOKENS, DEPTH)).astype(np.float32))
    assert {executed.by_name[f"{site}/MatMul"] for site in plan.sites} == {"MatMulIntegerToFloat"}


def test_a_product_of_unknown_width_is_refused(small: Small) -> None:
    plan = small.plan({site: OF_ACTIVATIONS for site in ("attn.qk", "attn.pv")})
    work = small.run_until(of_activations(), plan, "CarryBytes")
    output = work.product("attn.qk").node.outputs[0]
    assert isinstance(output, gs.Variable)
    output.shape = ["batch", HEADS, "tokens", "tokens"]
    with pytest.raises(PassError, match=r"site attn.qk, node .*: expected a number of columns, got tokens"):
        SeparateReaders()(work)
