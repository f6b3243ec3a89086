"""Logits: what is said of them with labels and without."""

from __future__ import annotations

import numpy as np

from ptq4vit_onnx.output_kinds.kinds import Logits
from ptq4vit_onnx.output_kinds.output_kind import Array, Kept

REFERENCE = np.array([[2, 1], [1, 2], [2, 1], [1, 2]], np.float32)
QUANTISED = np.array([[2, 1], [2, 1], [2, 1], [1, 2]], np.float32)


def kept(logits: Array, labels: Array | None = None) -> Kept:
    return Kept(logits, ("logits",), labels)


def test_accuracy_is_reported_only_with_labels() -> None:
    without = Logits().compare(kept(QUANTISED), kept(REFERENCE))
    assert (without.agreement, without.top1_float, without.drop) == (75.0, None, None)
    assert without.kl > 0
    assert without.accuracy is None
    assert without.readings["max_drop"].value is None
    labels = np.array([0, 1, 0, 1])
    result = Logits().compare(kept(QUANTISED, labels), kept(REFERENCE, labels))
    assert (result.top1_float, result.top1_quantised) == (100.0, 75.0)
    assert result.drop is not None and result.drop.points == 25.0
    assert result.accuracy == ("top-1", "75.0 % (float 100.0 %)")
    assert [tile.what for tile in result.headlines] == ["Top-1", "Agreement with float"]


def test_the_readings_are_in_the_order_of_the_limits() -> None:
    assert list(Logits().compare(kept(QUANTISED), kept(REFERENCE)).readings) == list(Logits.limits)
