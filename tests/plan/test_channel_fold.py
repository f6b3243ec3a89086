"""Channels moved and scaled one by one: a LayerNorm and a linear take it up, and compute together what they did."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ptq4vit_onnx.plan.channel_fold import Channels

scales = st.floats(0.125, 8, width=32)
shifts = st.floats(-4, 4, width=32)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(scales, shifts), min_size=1, max_size=6), st.integers(0, 2**31))
def test_norm_and_linear_together_compute_what_they_did(pairs: Any, seed: int) -> None:
    channels = Channels("norm", *map(tuple, zip(*pairs, strict=True)))
    random = np.random.default_rng(seed)
    z, weight = (random.standard_normal(shape).astype(np.float32) for shape in ((5, len(pairs)), (len(pairs), 3)))
    gain, offset = random.standard_normal((2, len(pairs))).astype(np.float32)
    bias = random.standard_normal(3).astype(np.float32)
    new_gain, new_offset = channels.of_norm(gain, offset)
    moved = z * new_gain + new_offset
    np.testing.assert_allclose(
        moved, (z * gain + offset - np.array(channels.shift)) / np.array(channels.scale), rtol=1e-4, atol=1e-4
    )
    out = moved @ channels.of_weight(weight) + channels.of_bias(weight, bias)
    # float32: terms of up to 4 * 8 * 8, whose errors of 2^-24 add up
    np.testing.assert_allclose(out, (z * gain + offset) @ weight + bias, rtol=1e-4, atol=1e-3)
    assert {array.dtype for array in (new_gain, new_offset, out)} == {np.dtype(np.float32)}


@pytest.mark.parametrize(
    ("scale", "shift", "message"),
    [
        ((1.0, 2.0), (0.0,), "shift has 1 values, scale has 2"),
        ((1.0, 0.0), (0.0, 0.0), "not a positive float32"),
        ((0.1,), (0.0,), "not a positive float32"),
        ((), (), "scale is empty"),
        ((1.0,), (1e39,), "shift is not from -1.2"),
    ],
)
def test_values_that_cannot_be_folded_are_refused(scale: Any, shift: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Channels("norm", scale, shift)
