"""Budgets as they are given and said."""

from __future__ import annotations

from typing import Any

import pytest

from ptq4vit_onnx.errors import UserError
from ptq4vit_onnx.plan.budget import Allocation, Budget, Point, parse_bytes


@pytest.mark.parametrize(
    ("text", "count"),
    [("4MB", 4_000_000), ("3.5 MiB", 3_670_016), ("900kb", 900_000), (123, 123), ("1GB", 10**9), ("0.5KiB", 512)],
)
def test_a_size_is_bytes_or_a_number_with_a_unit(text: int | str, count: int) -> None:
    assert parse_bytes(text) == count


@pytest.mark.parametrize("text", ["", "MB", "4XB", "-4MB", "4 M B", "1e6", "inf", "4MB4", True, "9" * 40])
def test_what_is_no_size_is_refused_with_the_units(text: Any) -> None:
    with pytest.raises(UserError, match=r"--max-size is .*; expected bytes, or a number with KB, MB"):
        parse_bytes(text)


def test_two_budgets_are_one_too_many() -> None:
    with pytest.raises(UserError, match="--max-size and --max-kl are two budgets; give one of them"):
        Budget.given(max_size="4MB", max_kl=0.02)
    assert Budget.given() is None


@pytest.mark.parametrize("bits", [1.9, 8.5, float("nan")])
def test_an_average_that_no_widths_have_is_refused(bits: float) -> None:
    with pytest.raises(UserError, match="average-weight-bits is"):
        Budget.given(average_weight_bits=bits)


@pytest.mark.parametrize(
    ("budget", "label"),
    [(Budget("max_size", 3.5e6), "3.5MB"), (Budget("max_kl", 0.02), "kl0.02"), (Budget("max_drop", 0.5), "drop0.5"),
     (Budget("average_weight_bits", 4.5), "4.5bits")],
)  # fmt: skip
def test_a_budget_names_a_folder_and_comes_back_from_a_plan(budget: Budget, label: str) -> None:
    assert budget.label == label
    assert Budget.from_data(budget.to_data()) == budget


@pytest.mark.parametrize("data", [None, {}, {"limited": "max_size"}, {"limited": "max_bits", "limit": 3}])
def test_a_plan_with_another_budget_is_refused(data: Any) -> None:
    with pytest.raises(UserError, match="budget is"):
        Budget.from_data(data)


def test_the_sentence_says_the_widths_what_was_measured_and_what_was_predicted() -> None:
    mixed = Point("mixed", {"a": 3, "b": 8}, 4_000_000, 4.25, 0.05, 0.06)
    found = Allocation(Budget("max_size", 4e6), (mixed,), 0, 256, "KL")
    assert found.sentence == (
        "at most 4 MB: weights have 3 to 8 bits, 4.25 on average; KL 0.06 on the 256 images that the choice was made "
        "on, predicted 0.05"
    )
