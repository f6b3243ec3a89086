"""Options: presets, what the user changes in them, and the ends of every range."""

from __future__ import annotations

from typing import Any

import pytest

from ptq4vit_onnx.errors import UserError
from ptq4vit_onnx.plan.options import MAX_CANDIDATES, Options
from ptq4vit_onnx.plan.sites import Kind, Site


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [
        ("weight_bits", 2, 8),
        ("activation_bits", 2, 8),
        ("rounds", 0, 10**9),
        ("candidates", 1, MAX_CANDIDATES),
        ("images", 1, 10**9),
        ("seed", 0, 2**32 - 1),
    ],
)
def test_whole_numbers_end_where_they_say(name: str, least: int, most: int) -> None:
    make: Any = Options
    for value in (least, most):
        assert getattr(make(**{name: value}), name) == value
    for wrong in (least - 1, most + 1, float(least), True, None):
        with pytest.raises(UserError, match=f"{name} is .*expected a whole number from {least} to {most}"):
            make(**{name: wrong})


@pytest.mark.parametrize(
    ("alpha", "beta"), [(0.5, 0.5), (0.6, 0.5), (-0.1, 1.0), (0.0, float("inf")), (float("nan"), 1.0), ("0", 1.0)]
)
def test_candidates_lie_between_alpha_and_beta(alpha: Any, beta: Any) -> None:
    with pytest.raises(UserError, match="are not numbers 0 <= alpha < beta"):
        Options(alpha=alpha, beta=beta)
    assert (Options(alpha=0.0, beta=0.1).alpha, Options(alpha=0.5).beta) == (0.0, 1.2)


def test_bits_stand_for_the_width_that_was_not_given() -> None:
    for widths, label in (
        ({}, "w8a8"), ({"bits": 6}, "w6a6"), ({"bits": 6, "weight_bits": 4}, "w4a6"), ({"activation_bits": 5}, "w8a5"),
    ):  # fmt: skip
        assert Options.resolve("ptq4vit", **widths).label == label
    with pytest.raises(UserError, match="method is 'best'; expected one of ptq4vit, paper, base"):
        Options.resolve("best")  # type: ignore[arg-type]


def test_presets_are_the_papers_own_and_can_be_changed() -> None:
    paper, base = Options.resolve("paper"), Options.resolve("base", rounds=2)
    assert (paper.metric, paper.twin, paper.rounds, paper.weights) == ("hessian", "both", 3, "per-tensor")
    assert (base.metric, base.twin, base.rounds, base.alpha) == ("cosine", "none", 2, 0.5)
    assert paper.sums_squares and not base.sums_squares


def test_biases_are_corrected_next_to_one_scale_unless_asked_otherwise() -> None:
    for correction, weights, corrects in (
        ("auto", "per-tensor", True), ("auto", "per-channel", False), ("always", "per-channel", True),
        ("none", "per-tensor", False),
    ):  # fmt: skip
        assert Options(bias_correction=correction, weights=weights).corrects_biases == corrects  # type: ignore[arg-type]


@pytest.mark.parametrize(("kind", "weight"), [("linear", True), ("conv", True), ("matmul", False)])
def test_only_a_product_of_activations_has_no_weight(kind: Kind, weight: bool) -> None:
    assert Site("x", kind, "x").rhs_is_weight == weight
