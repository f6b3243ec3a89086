"""Parity: right graphs pass exactly, and each kind of wrong graph is named."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from ptq4vit_onnx import oracle, parity
from ptq4vit_onnx.code_paths import code_path
from ptq4vit_onnx.errors import ParityError, UserError
from ptq4vit_onnx.integer_products import GraphIndex, IntegerProduct
from ptq4vit_onnx.prescribed import check_step
from ptq4vit_onnx.quantizers import Affine, TwinSoftmax, Uniform, as_float32
from ptq4vit_onnx.runtime import optimised_model
from ptq4vit_onnx.site_outputs import fetch
from ptq4vit_onnx.weight_codes import ship_weight

Array = np.ndarray[Any, Any]


def _check(small: Any, images: Array) -> list[parity.SiteParity]:
    return parity.check_sites(small.model, small.plan, images, small.float_sites)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"batch": 2},
        {"per_channel": False},
        {"lhs": Affine(8, (0.03125,), (77,))},
        {"requantised": True, "bias_shape": None},
        {"requantised": True, "bias_shape": (8,), "batch": 2},
    ],
)
def test_a_right_linear_is_exact_on_every_kernel(
    linear: Callable[..., Any], vectors: Array, options: dict[str, Any]
) -> None:
    results = _check(linear(**options), vectors)
    assert [result.failure for result in results] == [None]
    assert set(results[0].checked) >= {"product", "left scale", "weight scales", "weight", "left codes"}
    assert ("site output" in results[0].checked) != ("requantised" in options)
    parity.require_exact(results)


def test_a_right_attention_is_exact_in_both_twin_branches(attention: Callable[..., Any], heads: Array) -> None:
    results = _check(attention(), heads)
    assert [(result.site, result.product, result.exact) for result in results] == [
        ("attn.qk", "MatMul", True),
        ("attn.pv", "MatMul", True),
        ("attn.pv", "MatMul.coarse", True),
    ]
    assert "twin codes" in results[1].checked


def test_codes_clipped_as_bytes_and_sent_as_signed_ones_are_exact(signed: Callable[..., Any], heads: Array) -> None:
    results = _check(signed(4, 15), heads)
    assert [result.failure for result in results] == [None]
    assert set(results[0].checked) >= {"left codes", "right codes", "left range", "right range"}


def test_codes_clipped_at_another_number_of_bits_are_caught(signed: Callable[..., Any], heads: Array) -> None:
    results = _check(signed(4, 14), heads)
    assert "codes fed are not the quantizer's" in str(results[0].failure)


def test_a_clip_that_no_image_has_reached_is_caught_all_the_same(signed: Callable[..., Any], heads: Array) -> None:
    results = _check(signed(7, 126), heads)  # no code of these images is near 127
    assert results[0].failure == "codes can be -64..62 from zero, the plan's are -64..63"


def test_a_double_counting_twin_is_caught(attention: Callable[..., Any], heads: Array) -> None:
    results = _check(attention(double_counting=True), heads)
    with pytest.raises(ParityError, match=r"attn.pv/MatMul: \d+ of 150 twin codes fed are not the quantizer's"):
        parity.require_exact(results)


def test_a_twin_of_another_shift_than_planned_is_caught(attention: Callable[..., Any], heads: Array) -> None:
    small = attention()
    sites = dict(small.plan.sites)
    sites["attn.pv"] = replace(sites["attn.pv"], lhs=TwinSoftmax(8, 5))
    results = parity.check_sites(small.model, replace(small.plan, sites=sites), heads)
    assert "fine steps" in str(results[1].failure)


def test_one_wrong_weight_code_is_caught(linear: Callable[..., Any], vectors: Array) -> None:
    right = linear()
    codes = _weight_codes(right)
    codes[3, 4] -= 1
    results = _check(linear(codes=codes), vectors)
    assert results[0].failure == "1 of 128 weight codes are not the plan's"


@pytest.mark.parametrize("factor", [1.01, 1 + 2.0**-20])
def test_a_wrong_weight_scale_is_caught(linear: Callable[..., Any], vectors: Array, factor: float) -> None:
    results = _check(linear(scale_factor=factor), vectors)
    assert "weight scale of output" in str(results[0].failure)


def test_a_wrong_bias_is_caught(linear: Callable[..., Any], vectors: Array) -> None:
    results = _check(linear(bias_error=1e-4), vectors)
    assert "site outputs differ from the integer oracle" in str(results[0].failure)


def test_a_matmul_whose_scale_is_not_the_plans_is_caught(attention: Callable[..., Any], heads: Array) -> None:
    small = attention()
    sites = dict(small.plan.sites)
    sites["attn.pv"] = replace(sites["attn.pv"], rhs=Uniform(8, (0.03125,)))
    results = parity.check_sites(small.model, replace(small.plan, sites=sites), heads)
    assert "site outputs differ from the integer oracle" in str(results[1].failure)


def test_a_left_scale_other_than_planned_is_caught(linear: Callable[..., Any], vectors: Array) -> None:
    small = linear()
    sites = {"fc": replace(small.plan.sites["fc"], lhs=Uniform(8, (0.03125,)))}
    results = parity.check_sites(small.model, replace(small.plan, sites=sites), vectors)
    assert "left scale is 0.0299999993, the plan's is 0.03125" in str(results[0].failure)
    assert "codes are in steps of 0.0299999993, the plan's are 0.03125" in str(results[0].failure)


def test_codes_beyond_the_planned_bits_are_caught(linear: Callable[..., Any], vectors: Array) -> None:
    small = linear(lhs=Uniform(6, (0.03125,)))  # the graph quantises without clipping to 6 bits
    assert "codes fed are not the quantizer's" in str(_check(small, vectors)[0].failure)


def test_a_site_that_runs_in_float_is_a_failure(linear: Callable[..., Any], vectors: Array) -> None:
    results = _check(linear(bias_shape=(8,), batch=2), vectors)
    assert [(result.site, result.exact) for result in results] == [("fc", False)]
    with pytest.raises(ParityError, match="fc/MatMul: no integer kernel computes this site"):
        parity.require_exact(results)


def test_a_kernel_that_saturates_differs_from_the_oracle() -> None:
    product = _product("MatMulIntegerToFloat")
    lhs, rhs = np.full((1, 2), 255, np.uint8), np.full((2, 1), 127, np.int8)
    saturated = _floats([[32767]])
    assert oracle.accumulators(product, lhs, rhs) == 2 * 255 * 127
    assert _compare(product, lhs, rhs, _floats([[64770]])).failure is None
    assert "1 of 1 outputs differ" in str(_compare(product, lhs, rhs, saturated).failure)


@pytest.mark.parametrize("inner", [7, 64, 4097])
def test_accumulators_are_exact_below_and_above_what_float32_holds(inner: int) -> None:
    random = np.random.default_rng(inner)
    lhs = random.integers(200, 256, (3, inner), np.uint8)
    rhs = random.integers(100, 128, (inner, 2), np.int8)
    product = replace(_product("MatMulInteger"), lhs_zero=np.asarray(3, np.uint8))
    expected = (lhs.astype(np.int64) - 3) @ rhs.astype(np.int64)
    assert np.array_equal(oracle.accumulators(product, lhs, rhs), expected)


def test_one_in_an_accumulator_is_seen() -> None:
    product = _product("MatMulIntegerToFloat")
    lhs, rhs = np.full((1, 64), 200, np.uint8), np.full((64, 1), 100, np.int8)
    right = 64 * 200 * 100
    assert _compare(product, lhs, rhs, _floats([[right]])).failure is None
    assert _compare(product, lhs, rhs, _floats([[right + 1]])).failure is not None


def test_a_requantised_code_may_go_either_way_at_a_tie_and_nowhere_else() -> None:
    product = replace(_product("QLinearMatMul"), output_scale=_floats(2.0), output_zero=np.asarray(10, np.uint8))
    rhs = np.ones((1, 1), np.int8)
    for accumulator, allowed in ((5, {12, 13}), (6, {13}), (7, {13, 14})):
        lhs = np.full((1, 1), accumulator, np.uint8)
        passing = {
            code for code in range(256) if _compare(product, lhs, rhs, np.full((1, 1), code, np.uint8)).failure is None
        }
        assert passing == allowed


def test_nan_from_a_kernel_is_a_failure() -> None:
    lhs, rhs = np.ones((1, 1), np.uint8), np.ones((1, 1), np.int8)
    assert _compare(_product("MatMulIntegerToFloat"), lhs, rhs, _floats([[np.nan]])).failure


def test_end_to_end_counts_predictions_of_trained_weights() -> None:
    simulated = np.random.default_rng(0).standard_normal((200, 10)).astype(np.float32)
    quantised = simulated.copy()
    assert parity.check_end_to_end(quantised, simulated, coin_toss=False).passed
    quantised[0] = -quantised[0]
    assert parity.check_end_to_end(quantised, simulated, coin_toss=False).passed  # 199 of 200 are 99.5 %
    quantised[1] = -quantised[1]
    result = parity.check_end_to_end(quantised, simulated, coin_toss=False)
    assert not result.passed
    assert result.sentence.startswith("99.00 % of 200 predictions equal the simulator's (limit 99.5 %)")
    assert result.identical == 99 and "bit for bit on 99 %" in result.sentence


def test_end_to_end_measures_logits_of_random_weights() -> None:
    simulated = np.random.default_rng(0).standard_normal((20, 10)).astype(np.float32)
    assert parity.check_end_to_end(simulated + np.float32(0.01), simulated, coin_toss=True).passed
    assert not parity.check_end_to_end(simulated + np.float32(0.1), simulated, coin_toss=True).passed


@pytest.mark.parametrize("coin_toss", [True, False])
def test_logits_that_are_not_finite_never_pass(coin_toss: bool) -> None:
    broken = np.full((4, 3), np.nan, np.float32)
    result = parity.check_end_to_end(broken, broken, coin_toss)
    assert not result.passed
    assert result.sentence == "the model's logits are not finite"


def test_against_float_reports_accuracy_only_with_labels() -> None:
    reference = _floats([[2, 1], [1, 2], [2, 1], [1, 2]])
    quantised = _floats([[2, 1], [2, 1], [2, 1], [1, 2]])
    without = parity.compare_with_float(quantised, reference)
    assert (without.agreement, without.top1_float, without.drop) == (75.0, None, None)
    assert without.kl > 0
    result = parity.compare_with_float(quantised, reference, np.array([0, 1, 0, 1]))
    assert (result.top1_float, result.top1_quantised) == (100.0, 75.0)
    assert result.drop is not None and result.drop.points == 25.0


def test_the_first_divergent_site_is_named_and_not_a_later_one(attention: Callable[..., Any], heads: Array) -> None:
    small = attention()
    simulated = _simulated(small, heads)
    assert parity.first_divergent_site(small.model, small.plan, simulated, heads) is None
    simulated["attn.pv"] = simulated["attn.pv"] * 1.2
    found = parity.first_divergent_site(small.model, small.plan, simulated, heads)
    assert found is not None and found.site == "attn.pv"
    simulated["attn.qk"] = simulated["attn.qk"] + 3
    found = parity.first_divergent_site(small.model, small.plan, simulated, heads)
    assert found is not None and found.site == "attn.qk"


def test_a_replay_goes_on_with_what_the_runtime_computed(attention: Callable[..., Any], heads: Array) -> None:
    small = attention()
    replay = parity.Replay(small.model, small.plan)
    replay.show(heads)
    scores, values = _simulated(small, heads).values()
    noisy = scores + np.float32(scores.std()) * np.float32(1e-3)
    handed_on = replay("attn.qk", noisy)
    assert np.allclose(handed_on, scores, rtol=1e-5, atol=1e-5 * scores.std())
    assert replay("attn.pv", values) is values  # the last site: the simulator's logits are its own
    assert replay.first_divergent is None
    assert replay.errors["attn.qk"] == pytest.approx(1e-3, rel=0.01)


def test_a_replay_names_the_site_that_is_wrong_and_not_those_behind_it(
    attention: Callable[..., Any], heads: Array
) -> None:
    small = attention()
    replay = parity.Replay(small.model, small.plan)
    replay.show(heads)
    scores, values = _simulated(small, heads).values()
    replay("attn.qk", scores * 1.05)
    replay("attn.pv", values)
    assert [item.site for item in replay.divergences if not item.passed] == ["attn.qk"]
    found = replay.first_divergent
    assert found is not None and found.site == "attn.qk"


@pytest.mark.parametrize(("factor", "passed"), [(1.0, True), (1.05, False)])
def test_a_replay_names_the_site_whose_weight_scale_is_wrong(
    linear: Callable[..., Any], vectors: Array, factor: float, passed: bool
) -> None:
    small = linear(scale_factor=factor)
    site = small.plan.sites["fc"]
    weight = site.rhs.decode(ship_weight(small.weight, site.lhs, site.rhs)[0])
    replay = parity.Replay(small.model, small.plan)
    replay.show(vectors)
    replay("fc", site.lhs.fake_quantize(vectors) @ weight + small.bias)
    assert [item.passed for item in replay.divergences] == [passed]


def test_a_replay_refuses_a_site_of_another_shape(attention: Callable[..., Any], heads: Array) -> None:
    small = attention()
    replay = parity.Replay(small.model, small.plan)
    replay.show(heads)
    with pytest.raises(ParityError, match=r"attn.qk has no output of shape \(1, 2\) in the ONNX model"):
        replay("attn.qk", np.zeros((1, 2), np.float32))


@pytest.mark.parametrize("batch", [1, 2, 3])
def test_tensors_of_a_static_batch_are_fetched_for_all_images(
    linear: Callable[..., Any], vectors: Array, batch: int
) -> None:
    images = np.concatenate([vectors, vectors * 0.5, vectors[:1] * 2])
    free, fixed = linear().model, linear(batch=batch).model
    name = free.graph.output[0].name
    assert np.array_equal(fetch(fixed, [name], images)[name], fetch(free, [name], images)[name])


def test_a_site_without_output_in_the_model_diverges(linear: Callable[..., Any], vectors: Array) -> None:
    found = parity.first_divergent_site(linear().model, linear().plan, {"head": vectors}, vectors)
    assert found is not None and (found.site, found.relative_error) == ("head", float("inf"))


def test_float_weights_are_found_as_inputs_by_outputs_whatever_the_node() -> None:
    weight = np.arange(12, dtype=np.float32).reshape(4, 3)
    kernel = np.ascontiguousarray(weight.T).reshape(3, 1, 2, 2)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], name="fc/MatMul"),
        helper.make_node("Gemm", ["x", "wt"], ["b"], name="head/Gemm", transB=1),
        helper.make_node("Conv", ["i", "k"], ["c"], name="patch_embed.proj/Conv"),
    ]
    constants = {"w": weight, "wt": np.ascontiguousarray(weight.T), "k": kernel}
    tensors = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    model = helper.make_model(helper.make_graph(nodes, "float", [], [], tensors))
    sites = parity.FloatSites(model)
    for site in ("fc", "head", "patch_embed.proj"):
        assert np.array_equal(sites.weight(site), weight)
    with pytest.raises(UserError, match="no product for 'absent'"):
        sites.weight("absent")


def test_codes_that_a_kernel_returns_are_followed_to_its_scale(linear: Callable[..., Any]) -> None:
    index = GraphIndex(optimised_model(linear(requantised=True, bias_shape=None).model))
    kernel = next(node for node in index.nodes if node.op_type == "QLinearMatMul")
    path = code_path(index, kernel.output[0])
    assert path is not None and path.floats == ""
    assert check_step(Uniform(8, (as_float32(0.05),)), path) is None
    assert "codes are in steps of 0.05" in str(check_step(Uniform(8, (0.0625,)), path))


def test_results_are_plain_data(linear: Callable[..., Any], vectors: Array) -> None:
    for small in (linear(), linear(bias_shape=(8,), batch=2)):
        text = json.dumps([result.to_data() for result in _check(small, vectors)], allow_nan=False)
        assert json.loads(text)[0]["site"] == "fc"


def test_looking_inside_leaves_the_model_as_it_was(linear: Callable[..., Any], vectors: Array) -> None:
    small = linear()
    before = small.model.SerializeToString()
    _check(small, vectors)
    parity.first_divergent_site(small.model, small.plan, {"fc": vectors}, vectors)
    assert small.model.SerializeToString() == before


def _weight_codes(small: Any) -> Array:
    tensors = {tensor.name: tensor for tensor in small.model.graph.initializer}
    node = next(node for node in small.model.graph.node if node.name == "fc/DequantizeLinear.weight")
    return np.array(onnx.numpy_helper.to_array(tensors[node.input[0]]))


def _product(kernel: str) -> IntegerProduct:
    one = np.ones((), np.float32)
    return IntegerProduct(kernel, "n", "a", "b", "y", one, one, np.asarray(0, np.uint8), np.asarray(0, np.int8))


def _floats(values: Any) -> Array:
    return np.asarray(values, np.float32)


def _compare(product: IntegerProduct, lhs: Array, rhs: Array, out: Array) -> oracle.Comparison:
    return oracle.compare(product, oracle.accumulators(product, lhs, rhs), out)


def _simulated(small: Any, heads: Array) -> dict[str, Array]:
    """The attention graph in numpy, as the plan says."""
    q = small.plan.sites["attn.qk"].lhs.fake_quantize(heads)
    scores = q @ q.swapaxes(-1, -2)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    p = weights / weights.sum(-1, keepdims=True)
    return {"attn.qk": scores, "attn.pv": small.plan.sites["attn.pv"].lhs.fake_quantize(p) @ q}
