"""Rates and divergences, on logits small enough to count by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from ptq4vit_onnx.output_kinds import metrics


def _floats(values: Any) -> metrics.Array:
    return np.asarray(values, np.float32)


LOGITS = _floats([[3, 2, 1, 0, 0, 0], [0, 0, 0, 1, 2, 3], [0, 5, 0, 0, 0, 0], [6, 5, 4, 3, 2, 1]])


def test_top1_counts_the_largest_logit() -> None:
    assert metrics.top1(LOGITS, np.array([0, 5, 2, 0])) == 75.0


def test_top5_counts_a_label_among_the_five_largest() -> None:
    assert metrics.top5(LOGITS, np.array([5, 0, 1, 5])) == 50.0  # ties go to the lower class


def test_top5_of_three_classes_is_always_right() -> None:
    assert metrics.top5(LOGITS[:, :3], np.array([0, 1, 2, 2])) == 100.0


def test_agreement_compares_predictions_and_not_logits() -> None:
    other = LOGITS * 3 + 1
    assert metrics.agreement(other, LOGITS) == 100.0
    other[0] = other[0][::-1]
    assert metrics.agreement(other, LOGITS) == 75.0


def test_kl_equals_the_sum_written_out() -> None:
    p, q = np.array([0.5, 0.25, 0.25]), np.array([0.25, 0.5, 0.25])
    expected = sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))
    assert metrics.mean_kl(np.log(p)[None], np.log(q)[None]) == pytest.approx(expected, rel=1e-12)


def test_kl_is_taken_from_the_reference() -> None:
    p, q = np.log([[0.9, 0.05, 0.05]]), np.log([[0.4, 0.3, 0.3]])
    assert metrics.mean_kl(p, q) != pytest.approx(metrics.mean_kl(q, p), rel=0.01)


@given(arrays.arrays(np.float32, (3, 4), elements=st.floats(-50, 50, width=32)))
def test_kl_of_equal_predictions_is_zero_whatever_their_offset(logits: metrics.Array) -> None:
    shifted = logits.astype(np.float64) + 1000.0
    assert metrics.mean_kl(logits, shifted) == pytest.approx(0.0, abs=1e-10)


def test_paired_drop_counts_lost_and_gained_images() -> None:
    labels = np.array([0, 5, 1, 0])
    worse = LOGITS.copy()
    worse[:2] = 0
    worse[:2, 2] = 1
    drop = metrics.paired_drop(LOGITS, worse, labels)
    assert (drop.points, drop.lost, drop.gained, drop.images) == (50.0, 2, 0, 4)
    assert metrics.paired_drop(worse, LOGITS, labels).points == -50.0


def test_paired_drop_of_equal_models_has_no_error() -> None:
    drop = metrics.paired_drop(LOGITS, LOGITS, np.array([1, 2, 3, 4]))
    assert (drop.points, drop.standard_error) == (0.0, 0.0)


def test_relative_error_is_in_units_of_the_spread() -> None:
    reference = _floats([-1, 1, -1, 1])
    assert metrics.relative_error(reference + np.float32(0.25), reference) == 0.25


def test_relative_error_without_spread_is_still_a_number() -> None:
    constant = np.full(4, 2.0)
    assert metrics.relative_error(constant, constant) == 0.0
    assert metrics.relative_error(constant + 1, constant) == 0.5
    assert metrics.relative_error(np.ones(2), np.zeros(2)) == math.inf


def test_outputs_of_different_models_are_refused() -> None:
    with pytest.raises(ValueError, match=r"\(4, 6\) with \(4, 3\)"):
        metrics.agreement(LOGITS, LOGITS[:, :3])
    with pytest.raises(ValueError, match=r"labels have shape \(3,\), expected \(4,\)"):
        metrics.top1(LOGITS, np.array([1, 2, 3]))
