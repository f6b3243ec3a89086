"""The weights that ship: no pair of products overflows 16 bits, and nothing moves that need not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ptq4vit_onnx.plan.quantizers import Affine, Diffused, Quantizer, Twin, TwinGelu, TwinSoftmax, Uniform, as_float32
from ptq4vit_onnx.plan.quantizers.patch_order import pair_far_inputs
from ptq4vit_onnx.plan.saturation_safe_weights import (
    INT16_MAX,
    make_pairs_safe,
    pair_limit,
    saturating_pairs,
    ship_weight,
    shipped,
)

Array = np.ndarray[Any, Any]
LHS: list[Quantizer] = [
    *(Uniform(bits, (0.5,)) for bits in range(2, 9)),
    *(Affine(bits, (0.5,), (1,)) for bits in range(2, 9)),
    TwinSoftmax(8, 4),
    TwinGelu(8, 0.5, 2),
    TwinGelu(4, 0.5, 2),
]
codes = hnp.arrays(np.int8, hnp.array_shapes(min_dims=2, max_dims=2, max_side=9), elements=st.integers(-128, 127))
lhs = st.sampled_from(LHS)
quick = settings(max_examples=200, deadline=None)


def safe(values: Array, limit: int = 128) -> Array:
    return make_pairs_safe(values.astype(np.float32), limit)


def pairs(values: Array) -> Array:
    """[pairs, 2, outputs]"""
    return values[: len(values) // 2 * 2].reshape(-1, 2, values.shape[1]).astype(np.int64)


@quick
@given(codes, lhs)
def test_no_pair_overflows_sixteen_bits(values: Array, left: Quantizer) -> None:
    """Held against the arithmetic itself: the two products that are added, at their extremes."""
    out = pairs(safe(values, pair_limit(left)))
    largest = left.largest_code
    highest = largest * np.maximum(out, 0).sum(1)
    lowest = largest * np.minimum(out, 0).sum(1)
    assert highest.max(initial=0) <= INT16_MAX
    assert lowest.min(initial=0) >= -INT16_MAX - 1


@quick
@given(codes, lhs)
def test_codes_move_towards_zero_and_never_across_it(values: Array, left: Quantizer) -> None:
    before, after = values.astype(np.int64), safe(values, pair_limit(left)).astype(np.int64)
    assert (np.abs(after) <= np.abs(before)).all()
    assert (after * before >= 0).all()


@quick
@given(codes, lhs)
def test_only_the_excess_is_taken_and_shared_between_the_two(values: Array, left: Quantizer) -> None:
    limit = pair_limit(left)
    before, after = pairs(values), pairs(safe(values, limit))
    excess = np.maximum(np.abs(before.sum(1)) - limit, 0)
    moved = np.abs(before - after)
    assert np.array_equal(moved.sum(1), excess)
    assert (np.abs(moved[:, 0] - moved[:, 1]) <= 1).all()
    if len(values) % 2:
        assert np.array_equal(values[-1], safe(values, limit)[-1]), "a last row without partner is safe"


@quick
@given(codes, lhs)
def test_making_safe_twice_changes_nothing(values: Array, left: Quantizer) -> None:
    once = safe(values, pair_limit(left))
    assert np.array_equal(safe(once, pair_limit(left)), once)


@quick
@given(codes, lhs)
def test_numpy_and_torch_agree(values: Array, left: Quantizer) -> None:
    tensor = torch.from_numpy(values.astype(np.float32))
    limit = pair_limit(left)
    assert np.array_equal(make_pairs_safe(tensor, limit).numpy(), safe(values, limit))


@quick
@given(codes)
def test_saturating_pairs_counts_exactly_the_pairs_that_can_overflow(values: Array) -> None:
    unsafe = np.abs(pairs(values).sum(1)) > 128
    assert saturating_pairs(values, 255) == int(unsafe.sum())
    assert saturating_pairs(safe(values).astype(np.int8), 255) == 0
    assert saturating_pairs(values, 127) == 0, "codes of 7 bits cannot overflow"


def test_the_extremes_by_hand() -> None:
    unsafe = np.array([[127, -128, 127, -127, 100], [127, -128, -128, -2, 29]], np.int8)
    assert saturating_pairs(unsafe, 255) == 4
    assert safe(unsafe).T.tolist() == [[64, 64], [-64, -64], [127, -128], [-126, -2], [99, 29]]


@pytest.mark.parametrize("left", LHS, ids=repr)
def test_the_limit_follows_from_the_largest_code_of_the_left_side(left: Quantizer) -> None:
    x = np.linspace(-300, 300, 5001, dtype=np.float32)
    if isinstance(left, Twin):
        x = np.abs(x) if isinstance(left, TwinSoftmax) else x
        seen = max(int(np.abs(part).max()) for part in left.units(x))
    else:
        assert isinstance(left, (Uniform, Affine))
        seen = int((left.codes(x) - left.low).max())
    assert left.largest_code == seen
    assert pair_limit(left) * seen <= INT16_MAX < (pair_limit(left) + 1) * seen


@quick
@given(hnp.arrays(np.float32, (6, 4), elements=st.floats(-2, 2, width=32)), lhs, st.sampled_from([Uniform, Diffused]))
def test_the_search_the_simulator_and_the_file_see_the_same_weights(
    weight: Array, left: Quantizer, form: type[Uniform]
) -> None:
    rhs = form(8, tuple(as_float32(0.01 * step) for step in (1, 2, 3, 4)))
    before = weight.copy()
    int8, moved = ship_weight(weight, left, rhs)
    assert int8.dtype == np.int8
    assert moved == int((int8 != rhs.encode(weight)).sum())
    assert np.array_equal(rhs.decode(int8), shipped(weight, left, rhs))
    assert np.array_equal(shipped(weight, left, rhs), shipped(torch.from_numpy(weight), left, rhs).numpy())
    assert np.array_equal(weight, before), "the weight itself is left alone"


@pytest.mark.parametrize("make", [np.arange, torch.arange])
@pytest.mark.parametrize(("inputs", "order"), [(6, [0, 3, 1, 4, 2, 5]), (5, [0, 1, 2, 3, 4]), (1, [0])])
def test_each_input_of_the_first_half_stands_beside_its_counterpart(make: Any, inputs: int, order: list[int]) -> None:
    patch = make(2 * inputs).reshape(2, inputs)
    assert pair_far_inputs(patch).tolist() == [order, [inputs + place for place in order]]


def test_a_kernel_that_changes_slowly_ships_as_it_is_rounded() -> None:
    """A soft edge: pixels side by side are alike, far ones are not; in the order it flattens in, codes would move."""
    rows = np.cos(np.linspace(0, np.pi, 16))
    kernel = np.tile(rows[:, None], (3, 16)).astype(np.float32).reshape(1, -1)
    left, right = Uniform(8, (0.5,)), Uniform(8, (as_float32(1 / 127),))
    assert ship_weight(kernel.T, left, right)[1] > 0
    assert ship_weight(pair_far_inputs(kernel).T, left, right)[1] == 0


@pytest.mark.parametrize(("pair", "largest", "overflows"), [
    ((108, 109), 151, False),  # 217 * 151 is 32767, the last number that int16 holds
    ((109, 109), 151, True), ((-128, -128), 128, False), ((-128, -128), 129, True), ((127, -128), 255, False),
])  # fmt: skip
def test_a_pair_saturates_from_the_first_number_on_that_int16_does_not_hold(
    pair: tuple[int, int], largest: int, overflows: bool
) -> None:
    assert saturating_pairs(np.asarray(pair, np.int8)[:, None], largest) == int(overflows)
