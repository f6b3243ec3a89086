"""Quantizers: half a step at most inside the range, the same bits in numpy and torch, codes that decode."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ptq4vit_onnx.plan.quantizers import (
    GELU_MINIMUM,
    Affine,
    Branch,
    Diffused,
    Pixels,
    Quantizer,
    TwinGelu,
    TwinSoftmax,
    Uniform,
    along_axis,
    as_float32,
)
from ptq4vit_onnx.plan.quantizers.patch_order import is_tiling
from ptq4vit_onnx.plan.quantizers.twin_prices import with_price

Array = np.ndarray[Any, Any]
# A quotient x / scale and a product code * scale are each rounded to float32: half a step is exact up to two
# units in the last place of x.
ROUNDING = 4 * float(np.finfo(np.float32).eps)

bits = st.integers(2, 8)
scales = st.floats(min_value=2.0**-20, max_value=2.0**10, width=32)


@st.composite
def affines(draw: st.DrawFn) -> Affine:
    width = draw(bits)
    return Affine(width, (draw(scales),), (draw(st.integers(0, 2**width - 1)),))


uniforms = st.builds(lambda width, scale: Uniform(width, (scale,)), bits, scales)
softmaxes = st.builds(TwinSoftmax, bits, st.integers(0, 15))
gelus = st.builds(TwinGelu, bits, scales, st.integers(0, 15))
quantizers = st.one_of(uniforms, affines(), softmaxes, gelus)
shapes = hnp.array_shapes(min_dims=1, max_dims=3, max_side=6)
units = hnp.arrays(np.float32, shapes, elements=st.floats(0, 1, width=32))
anything = hnp.arrays(np.float32, shapes, elements=st.floats(-1e6, 1e6, width=32, allow_subnormal=False))
quick = settings(max_examples=150, deadline=None)


def within_its_domain(quantizer: Quantizer, x: Array) -> Array:
    """`anything` as it is, or made into probabilities where the quantizer knows nothing else."""
    return np.abs(x) / np.float32(1e6) if isinstance(quantizer, TwinSoftmax) else x


def steps(quantizer: Quantizer) -> tuple[float, float, float, float]:
    """Lowest and highest value it holds, and the steps of negatives and positives."""
    if isinstance(quantizer, TwinGelu):
        high = quantizer.high
        return -high * quantizer.fine, high * quantizer.coarse, quantizer.fine, quantizer.coarse
    assert isinstance(quantizer, (Uniform, Affine))
    scale = quantizer.scale[0]
    zero = quantizer.zero_point[0] if isinstance(quantizer, Affine) else 0
    return (quantizer.low - zero) * scale, (quantizer.high - zero) * scale, scale, scale


@quick
@given(st.one_of(uniforms, affines(), gelus), units)
def test_inside_its_range_every_value_is_within_half_a_step(quantizer: Quantizer, where: Array) -> None:
    low, high, below, above = steps(quantizer)
    x = (np.float32(low) + where * np.float32(high - low)).astype(np.float32).clip(low, high)
    error = np.abs(quantizer.fake_quantize(x).astype(np.float64) - x)
    assert (error <= np.where(x < 0, below, above) / 2 + ROUNDING * np.abs(x)).all()


@quick
@given(st.one_of(uniforms, affines(), gelus), anything)
def test_outside_its_range_the_nearest_end_is_taken(quantizer: Quantizer, x: Array) -> None:
    low, high, _, _ = steps(quantizer)
    out = quantizer.fake_quantize(x)
    assert np.allclose(out[x >= high], np.float32(high), rtol=1e-6, atol=0)
    assert np.allclose(out[x <= low], np.float32(low), rtol=1e-6, atol=0)


@quick
@given(softmaxes, units)
def test_twin_softmax_counts_every_probability_once(quantizer: TwinSoftmax, x: Array) -> None:
    """Half a step of its own range, except where the range ends one code early.

    R1 holds 2^(k-1) codes of step D1, so its last half step, up to the split, rounds down to the last code: a
    whole step at most. R2 = [0, 1] ends at 1 - D2 in the same way.
    """
    fine = x < quantizer.split
    step = np.where(fine, quantizer.fine, quantizer.coarse)
    last = quantizer.high * step
    allowed = np.where(x > last, step, step / 2)
    error = np.abs(quantizer.fake_quantize(x).astype(np.float64) - x)
    assert (error <= allowed + ROUNDING * x).all()


@quick
@given(softmaxes, units)
def test_twin_softmax_puts_a_value_in_one_range_only(quantizer: TwinSoftmax, x: Array) -> None:
    fine, coarse = quantizer.units(x.copy())
    assert not (fine * coarse).any()
    assert not fine[x >= quantizer.split].any()
    assert not coarse[x < quantizer.split].any()
    assert fine.max(initial=0) <= quantizer.high and coarse.max(initial=0) <= quantizer.high


@pytest.mark.parametrize("width", range(2, 9))
@pytest.mark.parametrize("shift", [0, 1, 4, 11])
def test_the_split_itself_is_coarse_and_the_value_before_it_fine(width: int, shift: int) -> None:
    quantizer = TwinSoftmax(width, shift)
    split = np.float32(quantizer.split)
    assert float(split) == quantizer.split
    fine, coarse = quantizer.units(np.array([np.nextafter(split, np.float32(0)), split], np.float32))
    assert fine.tolist() == [quantizer.high, 0]
    assert coarse.tolist() == [0, min(np.rint(quantizer.split / quantizer.coarse), quantizer.high)]


@quick
@given(quantizers, anything)
def test_codes_decode_to_what_fake_quantize_gives(quantizer: Quantizer, x: Array) -> None:
    x = within_its_domain(quantizer, x)
    codes = quantizer.encode(x)
    limits = (-(2 ** (quantizer.bits - 1)), 2 ** (quantizer.bits - 1) - 1)
    low, high = limits if isinstance(quantizer, Uniform) else (0, 2**quantizer.bits - 1)
    assert codes.dtype == (np.int8 if isinstance(quantizer, Uniform) else np.uint8)
    assert low <= int(codes.min()) and int(codes.max()) <= high, "k bits hold every code"
    assert np.array_equal(quantizer.decode(codes), quantizer.fake_quantize(x))


@quick
@given(quantizers, anything)
def test_numpy_and_torch_agree_bit_for_bit(quantizer: Quantizer, x: Array) -> None:
    before = x.copy()
    tensor = torch.from_numpy(x.copy())
    ours, theirs = quantizer.fake_quantize(x), quantizer.fake_quantize(tensor)
    assert ours.dtype == np.float32 and theirs.dtype == torch.float32
    assert np.array_equal(ours, theirs.numpy())
    assert np.array_equal(x, before) and np.array_equal(tensor.numpy(), before), "the input is left alone"


@quick
@given(quantizers, anything)
def test_quantising_twice_changes_nothing(quantizer: Quantizer, x: Array) -> None:
    once = quantizer.fake_quantize(within_its_domain(quantizer, x))
    assert np.array_equal(quantizer.fake_quantize(once), once)


@quick
@given(quantizers)
def test_zero_stays_zero(quantizer: Quantizer) -> None:
    assert quantizer.fake_quantize(np.zeros(3, np.float32)).tolist() == [0, 0, 0]


def test_halves_round_to_even() -> None:
    x = np.array([0.5, 1.5, 2.5, -0.5, -1.5], np.float32)
    assert Uniform(8, (1.0,)).fake_quantize(x).tolist() == [0, 2, 2, 0, -2]


@given(bits, scales)
@quick
def test_twin_gelu_covers_gelus_minimum_with_the_finest_step_that_does(width: int, scale: float) -> None:
    quantizer = TwinGelu.covering_negatives(width, scale)
    reach = quantizer.high * quantizer.fine
    if quantizer.high * scale > GELU_MINIMUM:
        assert reach >= GELU_MINIMUM * (1 - 1e-9)
        assert quantizer.shift == 15 or reach / 2 < GELU_MINIMUM
    else:
        assert quantizer.shift == 0


def test_gelus_minimum_is_gelus_minimum() -> None:
    x = torch.linspace(-2, 0, 200_001, dtype=torch.float64)
    assert abs(float(torch.nn.functional.gelu(x).min()) + GELU_MINIMUM) < 1e-8


@pytest.mark.parametrize("kind", ["softmax", "gelu"])
@pytest.mark.parametrize("width", range(2, 9))
@pytest.mark.parametrize("shift", range(9))
def test_both_ranges_are_one_byte_exactly_where_it_is_said(kind: str, width: int, shift: int) -> None:
    """Every value the twin holds, in steps of D1, shifted so that the lowest is zero, against 0..255."""
    quantizer = TwinSoftmax(width, shift) if kind == "softmax" else TwinGelu(width, 0.5, shift)
    lowest = 0 if kind == "softmax" else -quantizer.high
    highest = quantizer.high * 2**shift
    assert quantizer.fits_a_byte == (highest - lowest <= 255)


@pytest.mark.parametrize(
    ("axis", "shape", "groups"), [(-1, (5, 12), 3), (-1, (2, 5, 12), 12), (-3, (2, 4, 3, 5), 4), (-2, (4, 6, 2), 2)]
)
@pytest.mark.parametrize("affine", [False, True])
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_each_group_along_the_axis_has_its_own_scale(
    axis: int, shape: tuple[int, ...], groups: int, affine: bool, library: str
) -> None:
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    scale = tuple(as_float32(0.01 * (group + 1)) for group in range(groups))
    zero = tuple(range(groups))
    whole: Quantizer = Affine(4, scale, zero, axis) if affine else Uniform(4, scale, axis)
    form: Any = x if library == "numpy" else torch.from_numpy(x)
    got = np.asarray(whole.fake_quantize(form))
    parts = np.split(x, groups, axis)
    for part, result, step, point in zip(parts, np.split(got, groups, axis), scale, zero, strict=True):
        alone: Quantizer = Affine(4, (step,), (point,)) if affine else Uniform(4, (step,))
        assert np.array_equal(result, alone.fake_quantize(part))
    assert np.array_equal(whole.decode(whole.encode(x)), got)


def test_scales_that_do_not_divide_the_axis_are_refused() -> None:
    with pytest.raises(ValueError, match="3 scales do not divide axis -1 of length 8"):
        Uniform(8, (1.0, 1.0, 1.0)).fake_quantize(np.zeros((2, 8), np.float32))


def test_along_an_axis_each_value_is_repeated_over_its_group() -> None:
    x = np.zeros((4, 6), np.float32)
    assert along_axis((1.0, 2.0, 3.0), x, -1).tolist() == [1, 1, 2, 2, 3, 3]
    assert along_axis((1.0, 2.0), x, -2).tolist() == [[1], [1], [2], [2]]
    assert along_axis((5.0,), x, -1) == 5.0


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Uniform(1, (1.0,)), "bits is 1"),
        (lambda: Uniform(9, (1.0,)), "bits is 9"),
        (lambda: Uniform(8, ()), "scale is empty"),
        (lambda: Uniform(8, (1.0, 0.0)), "scale 0.0 is not a positive"),
        (lambda: Uniform(8, (-1.0,)), "scale -1.0"),
        (lambda: Uniform(8, (float("inf"),)), "scale inf"),
        (lambda: Uniform(8, (float("nan"),)), "scale nan"),
        (lambda: Uniform(8, (0.1,)), "scale 0.1 is not a positive float32 value"),
        (lambda: Affine(8, (1.0,), (256,)), "is outside 0..255"),
        (lambda: Affine(8, (1.0,), (-1,)), "is outside 0..255"),
        (lambda: Affine(8, (1.0,), (1, 2)), "zero_point has 2 values, scale has 1"),
        (lambda: TwinSoftmax(8, 16), "shift is 16"),
        (lambda: TwinSoftmax(8, -1), "shift is -1"),
        (lambda: TwinGelu(8, 0.0, 1), "scale 0.0"),
        (lambda: TwinGelu(8, 1.0, 16), "shift is 16"),
    ],
)
def test_values_that_make_no_quantizer_are_refused(make: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        make()


weights = hnp.arrays(np.float32, st.tuples(st.integers(1, 24), st.integers(1, 4)), elements=st.floats(-1, 1, width=32))


@quick
@given(bits, weights)
def test_a_run_of_pixels_side_by_side_loses_less_than_a_step_together(width: int, weight: Array) -> None:
    quantizer = Diffused(width, (as_float32(1.0 / (2 ** (width - 1) - 1.5)),))  # nothing is clipped, errors included
    lanes = 2 if len(weight) % 2 == 0 else 1
    error = quantizer.codes(weight) - weight.astype(np.float64) / quantizer.scale[0]
    error = error.reshape(-1, lanes, weight.shape[1])
    assert np.abs(error.cumsum(0)).max() <= 0.5 + 1e-4
    assert np.abs(error).max() <= 1 + 1e-4


@quick
@given(bits, scales, weights)
def test_diffused_codes_fit_decode_and_are_the_same_in_torch(width: int, scale: float, weight: Array) -> None:
    quantizer = Diffused(width, (scale,))
    before, codes = weight.copy(), quantizer.encode(weight)
    assert quantizer.low <= codes.min() and codes.max() <= quantizer.high
    assert np.array_equal(quantizer.decode(codes), quantizer.fake_quantize(weight))
    assert np.array_equal(quantizer.codes(torch.from_numpy(weight)).numpy(), codes)
    assert np.array_equal(quantizer.codes(torch.from_numpy(weight.T.copy()).T).numpy(), codes), "whatever the strides"
    assert np.array_equal(weight, before)


def test_errors_are_handed_to_the_row_after_the_next_in_each_column_by_itself() -> None:
    weight = np.array([[0.4, 0.0], [0.3, 0.0], [0.4, 0.4], [0.3, 0.0], [0.4, 0.2], [0.0, 0.0]], np.float32)
    assert Diffused(4, (1.0,)).codes(weight).tolist() == [[0, 0], [0, 0], [1, 0], [1, 0], [0, 1], [0, 0]]


def test_what_clipping_takes_off_is_handed_on_up_to_half_a_step() -> None:
    weight = np.array([[9.0, 9.0], [0.2, 0.6], [0.2, 0.0]], np.float32)
    assert Diffused(3, (1.0,)).codes(weight).tolist() == [[3, 3], [1, 1], [0, 0]]


def test_of_a_twin_values_half_a_step_beyond_the_outermost_points_are_clipped() -> None:
    x = np.zeros(1, np.float32)
    gelu = TwinGelu(4, 0.5, 2)  # negatives down to -7/8 in steps of 1/8, positives up to 7/2 in steps of 1/2
    assert gelu.beyond(x) == (-7 / 8 - 1 / 16, 7 / 2 + 1 / 4)
    assert TwinSoftmax(4, 2).beyond(x) == (-np.inf, np.inf), "probabilities end one step above the last point"


def test_candidates_are_their_factor_times_the_scale_that_just_covers_all_values() -> None:
    covering = (
        (Uniform, -1.0, 3.0, 3.0 / 128), (Uniform, -4.0, 3.0, 4.0 / 128), (Affine, -1.0, 2.0, 3.0 / 255),
        (TwinGelu, -0.1, 4.0, 4.0 / 128),
    )  # fmt: skip
    for form, low, high, full in covering:
        for factor, found in zip((0.5, 1.0, 2.0), form.candidates(8, low, high, (0.5, 1.0, 2.0)), strict=True):
            assert found.coordinates[0] == pytest.approx(factor * full)


def test_softmax_twins_are_tried_in_the_papers_eleven_forms() -> None:
    found = TwinSoftmax.candidates(8, 0.0, 1.0, (1.0,))
    assert [form.coordinates for form in found] == [(float(shift),) for shift in range(1, 12)]


def test_what_lies_beyond_the_points_is_half_a_step_away_from_them() -> None:
    x = np.zeros((1, 4), np.float32)
    assert Uniform(3, (2.0,)).beyond(x) == (-9.0, 7.0)
    assert Affine(3, (2.0,), (1,)).beyond(x) == (-3.0, 13.0)


def test_points_are_as_many_as_codes_and_twins_of_softmax_share_none() -> None:
    assert [(points.name, points.first, points.count) for points in TwinSoftmax(8, 2).points] == [
        ("R1", 0.0, 128), ("R2", 32 / 128, 96)
    ]  # fmt: skip
    assert [(points.first, points.last, points.count) for points in Pixels(8, (0.5,), (100.0,)).points] == [
        (-50.0, 77.5, 256)
    ]


def test_a_branch_of_negatives_is_counted_upwards() -> None:
    assert [Branch("", (1.0,), *ends).reach for ends in ((-127, 0), (-128, 127), (0, 255))] == [127, 127, 255]


@pytest.mark.parametrize(
    ("kernel", "stride", "padding", "dilation", "tiles"),
    [
        ((4, 4), (4, 4), (0, 0), (1, 1), True), ((1, 1), (2, 2), (0, 0), (1, 1), True),
        ((4, 4), (2, 2), (0, 0), (1, 1), False), ((4, 4), (4, 4), (1, 1), (1, 1), False),
        ((4, 4), (4, 4), (0, 0), (2, 2), False),
    ],
)  # fmt: skip
def test_windows_tile_an_image_side_by_side_without_padding_and_holes(
    kernel: Any, stride: Any, padding: Any, dilation: Any, tiles: bool
) -> None:
    assert is_tiling(kernel, stride, padding, dilation) == tiles


def test_a_price_is_added_in_nats_and_multiplied_elsewhere() -> None:
    assert (with_price(2.0, 0.5, 8.0, True), with_price(2.0, 0.5, 8.0, False)) == (2.5, 16.0)
