"""Tensors inside a model: fetched for all images, and float weights whatever node holds them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from onnx import helper, numpy_helper

from ptq4vit_onnx.errors import UserError
from ptq4vit_onnx.passes import quantize
from ptq4vit_onnx.plan.channel_fold import Channels
from ptq4vit_onnx.plan.plan_json import read_plan
from ptq4vit_onnx.plan.quantizers import Uniform
from ptq4vit_onnx.plan.scale_plan import SitePlan
from ptq4vit_onnx.proof.float_sites import FloatSites, column_factors_of, output_tensors
from ptq4vit_onnx.runtime.inner_tensors import fetch
from tests.golden import derive
from tests.small_graphs import plan_of

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


@pytest.mark.parametrize("kernel", [(2, 1), (1, 2)])
def test_windows_of_a_convolution_without_strides_overlap(kernel: tuple[int, int]) -> None:
    value = np.arange(18, dtype=np.float32).reshape(3, 3, *kernel)
    sites = FloatSites(_model([helper.make_node("Conv", ["i", "k"], ["c"], name="stem/Conv")], k=value), None)
    assert np.array_equal(sites.weight("stem"), value.transpose(2, 3, 1, 0).reshape(6, 3))  # channels last


def _biased(weight: Array, bias: Array) -> Any:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], name="fc/MatMul"),
        helper.make_node("Add", ["b", "a"], ["y"], name="fc/Add"),
        helper.make_node("MatMul", ["x", "w"], ["p"], name="plain/MatMul"),
        helper.make_node("Gemm", ["x", "w", "b"], ["g"], name="head/Gemm"),
        helper.make_node("Gemm", ["x", "w"], ["h"], name="bare/Gemm"),
    ]
    return _model(nodes, w=weight, b=bias)


def test_biases_are_found_whatever_the_node_and_zero_where_there_is_none() -> None:
    weight, bias = np.ones((4, 3), np.float32), np.asarray([1, 2, 3], np.float32)
    sites = FloatSites(_biased(weight, bias), None)
    for site in ("fc", "head"):
        assert np.array_equal(sites.bias(site), bias)
    for site in ("plain", "bare"):
        assert np.array_equal(sites.bias(site), [0])


def test_weights_and_biases_have_the_plans_channels_folded_in() -> None:
    weight, bias = np.ones((4, 3), np.float32), np.asarray([1, 2, 3], np.float32)
    side = Uniform(8, (1.0,))
    site = SitePlan(
        "linear", "other", side, side, channels=Channels("norm", (1.0, 2.0, 4.0, 8.0), (1.0, 0.0, 0.0, 9.0))
    )
    sites = FloatSites(_biased(weight, bias), plan_of(fc=site))
    assert np.array_equal(sites.weight("fc"), np.repeat([[1], [2], [4], [8]], 3, axis=1))
    assert np.array_equal(sites.bias("fc"), bias + 10)
    assert np.array_equal(sites.bias("head"), bias)


def test_a_site_ends_with_the_last_of_its_nodes_that_computes() -> None:
    model = _biased(np.ones((4, 3), np.float32), np.ones(3, np.float32))
    model.graph.node.append(helper.make_node("Relu", ["y"], ["r"], name="fc/Relu"))
    assert output_tensors(model, ["head", "fc", "absent"]) == {"head": "g", "fc": "y"}


def test_a_fused_qkv_carries_the_heads_scales_in_its_columns() -> None:
    case = "attention_w8a8_one_product"
    plan = read_plan(derive.FOLDER / f"{case}.plan.json")
    found = column_factors_of(quantize(derive.model_of(case), plan)[0], plan)
    assert set(found) == {"attn.qkv"}
    scores, values = plan.sites["attn.qk"], plan.sites["attn.pv"]
    scales = (scores.lhs.branches[0].steps, scores.rhs.scale, values.rhs.scale)
    for part, scale, unit in zip(np.split(found["attn.qkv"], 3), scales, (0.5, 1, 1), strict=True):
        heads = part.reshape(len(scale), -1) * np.asarray(scale)[:, None]
        assert np.allclose(heads, unit, rtol=1e-6)  # of q: 1 / sqrt(depth)


def test_scales_of_columns_that_are_no_heads_are_no_factors(linear: Callable[..., Any]) -> None:
    for small in (linear(), linear(per_channel=False), linear(scale_factor=2.0)):
        assert column_factors_of(small.model, small.plan) == {}


def _model(nodes: list[Any], **constants: Array) -> Any:
    tensors = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    return helper.make_model(helper.make_graph(nodes, "float", [], [], tensors))
