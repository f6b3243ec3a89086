"""Parity of every site: right graphs pass exactly, and each kind of wrong graph is named."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest

from ptq4vit_onnx.errors import ParityError
from ptq4vit_onnx.graph.code_paths import code_path
from ptq4vit_onnx.graph.integer_products import GraphIndex
from ptq4vit_onnx.plan.quantizers import Affine, TwinSoftmax, Uniform, as_float32
from ptq4vit_onnx.plan.scale_plan import ScalePlan
from ptq4vit_onnx.proof.plan_checks import check_step
from ptq4vit_onnx.proof.replay import Divergence, divergences
from ptq4vit_onnx.proof.site_parity import SiteParity, check_sites, require_exact
from ptq4vit_onnx.runtime.session import optimised_model

Array = np.ndarray[Any, Any]


def first_divergent(model: Any, plan: ScalePlan, simulated: dict[str, Array], images: Array) -> Divergence | None:
    return next((item for item in divergences(model, plan, simulated, images) if not item.passed), None)


def _check(small: Any, images: Array) -> list[SiteParity]:
    return check_sites(small.model, small.plan, images, small.float_sites)


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
    require_exact(results)


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


@pytest.mark.parametrize("moved", [-3, 3, 40])
def test_a_zero_point_other_than_planned_is_caught_though_no_image_reaches_the_end_of_its_range(
    linear: Callable[..., Any], vectors: Array, moved: int
) -> None:
    """The same wrong zero point before and behind the codes: for values well inside the range nothing changes."""
    small = linear(lhs=Affine(8, (0.0625,), (11,)), gelu=True)
    assert [result.failure for result in _check(small, vectors)] == [None]
    (zero,) = (name for name, value in _scalars(small.model).items() if value == 11)
    (result,) = _check(_with_scalar(small, zero, 11 + moved), vectors)
    # GELU's lowest value, -0.17, is 3 steps below zero wherever that lies
    assert result.failure == f"codes can be -3..{244 - moved} from zero, the plan's are -11..244"


def test_a_change_of_any_scalar_of_a_graph_is_caught(
    linear: Callable[..., Any], attention: Callable[..., Any], signed: Callable[..., Any], vectors: Array, heads: Array
) -> None:
    graphs = [
        (linear(lhs=Affine(8, (0.0625,), (77,)), per_channel=False), vectors),
        (linear(lhs=Affine(8, (0.0625,), (11,)), per_channel=False, gelu=True), vectors),
        (attention(), heads),
        (signed(6, 63), heads),
    ]
    missed = []
    for small, images in graphs:
        assert all(result.exact for result in _check(small, images))
        for name, value in _scalars(small.model).items():
            for changed in (value * 1.01, value * 0.99) if value.dtype.kind == "f" else (value - 1, value + 1):
                mutant = _with_scalar(small, name, changed)
                if all(result.exact for result in _check(mutant, images)):
                    missed.append((name, value, changed))
    assert missed == []


def test_a_double_counting_twin_is_caught(attention: Callable[..., Any], heads: Array) -> None:
    results = _check(attention(double_counting=True), heads)
    with pytest.raises(ParityError, match=r"attn.pv/MatMul: \d+ of 150 twin codes fed are not the quantizer's"):
        require_exact(results)


def test_a_twin_of_another_shift_than_planned_is_caught(attention: Callable[..., Any], heads: Array) -> None:
    small = attention()
    sites = dict(small.plan.sites)
    sites["attn.pv"] = replace(sites["attn.pv"], lhs=TwinSoftmax(8, 5))
    results = check_sites(small.model, replace(small.plan, sites=sites), heads)
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
    results = check_sites(small.model, replace(small.plan, sites=sites), heads)
    assert "site outputs differ from the integer oracle" in str(results[1].failure)


def test_a_left_scale_other_than_planned_is_caught(linear: Callable[..., Any], vectors: Array) -> None:
    small = linear()
    sites = {"fc": replace(small.plan.sites["fc"], lhs=Uniform(8, (0.03125,)))}
    results = check_sites(small.model, replace(small.plan, sites=sites), vectors)
    assert "left scale is 0.0299999993, the plan's is 0.03125" in str(results[0].failure)
    assert "codes are in steps of 0.0299999993, the plan's are 0.03125" in str(results[0].failure)


def test_codes_beyond_the_planned_bits_are_caught(linear: Callable[..., Any], vectors: Array) -> None:
    small = linear(lhs=Uniform(6, (0.03125,)))  # the graph quantises without clipping to 6 bits
    assert "codes fed are not the quantizer's" in str(_check(small, vectors)[0].failure)


def test_a_site_that_runs_in_float_is_a_failure(linear: Callable[..., Any], vectors: Array) -> None:
    results = _check(linear(bias_shape=(8,), batch=2), vectors)
    assert [(result.site, result.exact) for result in results] == [("fc", False)]
    with pytest.raises(ParityError, match="fc/MatMul: no integer kernel computes this site"):
        require_exact(results)


def test_codes_that_a_kernel_returns_are_followed_to_its_scale(linear: Callable[..., Any]) -> None:
    index = GraphIndex(optimised_model(linear(requantised=True, bias_shape=None).model))
    kernel = next(node for node in index.nodes if node.op_type == "QLinearMatMul")
    path = code_path(index, kernel.output[0])
    assert path is not None and path.floats == ""
    assert check_step(Uniform(8, (as_float32(0.05),)).branches[0], path) is None
    assert "codes are in steps of 0.05" in str(check_step(Uniform(8, (0.0625,)).branches[0], path))


def test_results_are_plain_data(linear: Callable[..., Any], vectors: Array) -> None:
    for small in (linear(), linear(bias_shape=(8,), batch=2)):
        text = json.dumps([result.to_data() for result in _check(small, vectors)], allow_nan=False)
        assert json.loads(text)[0]["site"] == "fc"


def test_looking_inside_leaves_the_model_as_it_was(linear: Callable[..., Any], vectors: Array) -> None:
    small = linear()
    before = small.model.SerializeToString()
    _check(small, vectors)
    first_divergent(small.model, small.plan, {"fc": vectors}, vectors)
    assert small.model.SerializeToString() == before


def _scalars(model: Any) -> dict[str, Array]:
    values = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    return {name: value for name, value in values.items() if value.size == 1}


def _with_scalar(small: Any, name: str, value: Any) -> Any:
    """The same graph with another value of one constant, which wraps around in its type."""
    model = onnx.ModelProto()
    model.CopyFrom(small.model)
    tensor = next(item for item in model.graph.initializer if item.name == name)
    kind = onnx.numpy_helper.to_array(tensor).dtype
    tensor.CopyFrom(onnx.numpy_helper.from_array(np.asarray(value).astype(kind), name))
    return replace(small, model=model)


def _weight_codes(small: Any) -> Array:
    tensors = {tensor.name: tensor for tensor in small.model.graph.initializer}
    node = next(node for node in small.model.graph.node if node.name == "fc/DequantizeLinear.weight")
    return np.array(onnx.numpy_helper.to_array(tensors[node.input[0]]))
