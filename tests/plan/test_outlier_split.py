"""Outlier channels apart from all others: the two products add up to the one, in numpy as in torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from ptq4vit_onnx.plan.outlier_split import COLUMNS, ROWS, only_channels, without_channels

CHANNELS = (3, 1)  # in the plan's order, which need not be ascending


@pytest.mark.parametrize("kind", [np.asarray, torch.as_tensor], ids=["numpy", "torch"])
def test_the_main_and_the_narrow_product_add_up(kind: Callable[[Any], Any]) -> None:
    x, w = np.arange(30.0).reshape(2, 3, 5), np.arange(20.0).reshape(5, 4) - 7
    left, right = kind(x.copy()), kind(w.copy())
    narrow = only_channels(left, CHANNELS, COLUMNS) @ only_channels(right, CHANNELS, ROWS)
    for main_left in (left, without_channels(left, CHANNELS, COLUMNS)):
        main = main_left @ without_channels(right, CHANNELS, ROWS)
        assert np.array_equal(np.asarray(main + narrow), x @ w)
    assert np.array_equal(np.asarray(without_channels(left, CHANNELS, COLUMNS) @ right + narrow), x @ w)
    assert np.array_equal(np.asarray(left), x) and np.array_equal(np.asarray(right), w), "neither side is changed"


def test_the_channels_alone_stand_in_the_order_of_the_plan() -> None:
    x = np.arange(10.0).reshape(2, 5)
    assert only_channels(x, CHANNELS, COLUMNS).tolist() == [[3, 1], [8, 6]]
    assert only_channels(x.T, CHANNELS, ROWS).tolist() == [[3, 8], [1, 6]]
