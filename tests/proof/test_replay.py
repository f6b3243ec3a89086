"""Replay: the simulator goes on with what the runtime computed, so that only the wrong site is named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ptq4vit_onnx.errors import ParityError
from ptq4vit_onnx.plan.saturation_safe_weights import ship_weight
from ptq4vit_onnx.plan.scale_plan import ScalePlan
from ptq4vit_onnx.proof.replay import Divergence, Replay, _arranged, _rows_of, _with_rows, divergences

Array = np.ndarray[Any, Any]


def first_divergent(model: Any, plan: ScalePlan, simulated: dict[str, Array], images: Array) -> Divergence | None:
    return next((item for item in divergences(model, plan, simulated, images) if not item.passed), None)


def test_the_first_divergent_site_is_named_and_not_a_later_one(attention: Callable[..., Any], heads: Array) -> None:
    small = attention()
    simulated = _simulated(small, heads)
    assert first_divergent(small.model, small.plan, simulated, heads) is None
    simulated["attn.pv"] = simulated["attn.pv"] * 1.2
    found = first_divergent(small.model, small.plan, simulated, heads)
    assert found is not None and found.site == "attn.pv"
    simulated["attn.qk"] = simulated["attn.qk"] + 3
    found = first_divergent(small.model, small.plan, simulated, heads)
    assert found is not None and found.site == "attn.qk"


def test_a_replay_goes_on_with_what_the_runtime_computed(attention: Callable[..., Any], heads: Array) -> None:
    small = attention()
    replay = Replay(small.model, small.plan)
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
    replay = Replay(small.model, small.plan)
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
    replay = Replay(small.model, small.plan)
    replay.show(vectors)
    replay("fc", site.lhs.fake_quantize(vectors) @ weight + small.bias)
    assert [item.passed for item in replay.divergences] == [passed]


def test_a_replay_compares_and_hands_on_the_first_row_where_the_file_computes_no_other(
    linear: Callable[..., Any], vectors: Array
) -> None:
    small = linear()
    site = small.plan.sites["fc"]
    weight = site.rhs.decode(ship_weight(small.weight, site.lhs, site.rhs)[0])
    plan = replace(small.plan, sites={"fc": site, "head": site})  # so that fc is not the last site
    small.model.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "tokens"
    simulated = (site.lhs.fake_quantize(vectors) @ weight + small.bias).astype(np.float32)
    replay = Replay(small.model, plan)
    replay.show(vectors[:, :1])
    simulated[:, 1:] += 100  # rows that the file does not have
    handed_on = replay("fc", simulated)
    assert replay.first_divergent is None
    assert np.array_equal(handed_on[:, 1:], simulated[:, 1:]) and not np.array_equal(handed_on, simulated)
    replay.show(vectors[:, 1:2])  # the second row in the first one's place
    replay("fc", simulated)
    assert replay.first_divergent is not None


def test_a_replay_refuses_a_site_of_another_shape(attention: Callable[..., Any], heads: Array) -> None:
    small = attention()
    replay = Replay(small.model, small.plan)
    replay.show(heads)
    with pytest.raises(ParityError, match=r"attn.qk has no output of shape \(1, 2\) in the ONNX model"):
        replay("attn.qk", np.zeros((1, 2), np.float32))


def test_a_site_without_output_in_the_model_diverges(linear: Callable[..., Any], vectors: Array) -> None:
    found = first_divergent(linear().model, linear().plan, {"head": vectors}, vectors)
    assert found is not None and (found.site, found.relative_error) == ("head", float("inf"))


def _simulated(small: Any, heads: Array) -> dict[str, Array]:
    """The attention graph in numpy, as the plan says."""
    q = small.plan.sites["attn.qk"].lhs.fake_quantize(heads)
    scores = q @ q.swapaxes(-1, -2)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    p = weights / weights.sum(-1, keepdims=True)
    return {"attn.qk": scores, "attn.pv": small.plan.sites["attn.pv"].lhs.fake_quantize(p) @ q}


@pytest.mark.parametrize("axis", [0, 1])
def test_the_first_row_is_compared_and_handed_on_whichever_axis_holds_the_tokens(axis: int) -> None:
    simulated = np.random.default_rng(0).standard_normal((4, 5, 3)).astype(np.float32)
    held = -np.take(simulated, [0], axis)
    assert _arranged(held, simulated) is held
    assert np.array_equal(_rows_of(simulated, held), -held)
    joined = _with_rows(simulated, held)
    assert np.array_equal(np.take(joined, [0], axis), held)
    assert np.array_equal(np.delete(joined, 0, axis), np.delete(simulated, 0, axis))
    assert _arranged(simulated[:2, :2], simulated) is None and _arranged(simulated[..., :1], simulated) is None


def test_outputs_are_arranged_as_the_simulator_lays_them_out() -> None:
    grid = np.random.default_rng(0).standard_normal((2, 3, 4, 5)).astype(np.float32)
    patches = np.ascontiguousarray(grid.reshape(2, 3, 20).swapaxes(1, 2))  # [batch, patches, channels]
    for held in (grid, patches, grid.reshape(6, 4, 5)):
        found = _arranged(held, grid)
        assert found is not None and np.array_equal(found, grid)


def test_the_first_row_of_a_matrix_is_no_first_token() -> None:
    matrix = np.random.default_rng(0).standard_normal((4, 5)).astype(np.float32)
    assert _arranged(matrix[:1], matrix) is None
