"""Pixels are bytes: every 8-bit image is represented exactly, and the product of its bytes is the float one."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from ptq4vit_onnx.images.preprocessing import Preprocessing
from ptq4vit_onnx.plan.quantizers import Pixels, Uniform, as_float32
from ptq4vit_onnx.plan.quantizers.patch_order import along_inputs, pair_far_inputs
from ptq4vit_onnx.plan.saturation_safe_weights import saturating_pairs, ship_weight, shipped, unit_bias

Array = np.ndarray[Any, Any]
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
HALVES = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
CLIP = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))
PLAIN = ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
RULES = [IMAGENET, HALVES, CLIP, PLAIN]
GREY = [((0.1307,), (0.3081,)), ((0.5,), (0.5,))]


def every_byte(mean: tuple[float, ...], std: tuple[float, ...]) -> tuple[Array, Array]:
    """Patches [16, inputs] of all bytes in all colours as preprocessing hands them on, and the bytes."""
    colours = len(mean)
    grid = np.arange(256, dtype=np.uint8).reshape(16, 16)
    image = np.stack([grid] * colours, -1) if colours > 1 else grid
    rule = Preprocessing((colours, 16, 16), 1.0, "squash", "nearest", mean, std)
    x = rule.apply(Image.fromarray(image))
    rows = [values.transpose(1, 0, 2).reshape(16, -1) for values in (x, np.stack([grid] * colours))]
    return pair_far_inputs(rows[0]), pair_far_inputs(rows[1])


@pytest.mark.parametrize(("mean", "std"), [*RULES, *GREY])
def test_every_byte_of_every_colour_is_recovered(mean: tuple[float, ...], std: tuple[float, ...]) -> None:
    x, expected = every_byte(mean, std)
    pixels = Pixels.of(mean, std, len(mean))
    assert np.array_equal(pixels.encode(x), expected)
    assert pixels.is_grid_of(x) and pixels.is_grid_of(torch.from_numpy(x))
    np.testing.assert_allclose(pixels.fake_quantize(x), x, atol=1e-5)  # a step is 0.004 or more
    np.testing.assert_array_equal(pixels.decode(pixels.encode(x)), pixels.fake_quantize(x))
    assert torch.equal(pixels.fake_quantize(torch.from_numpy(x)), torch.from_numpy(pixels.fake_quantize(x)))


@pytest.mark.parametrize(("mean", "std"), RULES)
def test_values_between_bytes_move_by_half_a_step_at_most_and_are_seen(
    mean: tuple[float, ...], std: tuple[float, ...]
) -> None:
    pixels = Pixels.of(mean, std, 3)
    x, codes = every_byte(mean, std)
    moved = x + np.float32(0.3) * along_inputs(pixels.scale, x.shape[1])
    inside = codes < 255
    assert (np.abs(pixels.fake_quantize(moved) - moved) <= 0.5 * max(pixels.scale))[inside].all()
    assert not pixels.is_grid_of(moved)


def test_values_beyond_the_bytes_are_seen_and_clipped() -> None:
    pixels = Pixels.of(*IMAGENET, 3)
    x = np.asarray([[9.0, 0.0, -9.0]], np.float32)
    assert not pixels.is_grid_of(x)
    assert pixels.encode(x).tolist() == [[255, 116, 0]]
    low, high = pixels.beyond(x)
    assert (x > high).tolist() == [[True, False, False]] and (x < low).tolist() == [[False, False, True]]


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize(("mean", "std"), RULES)
def test_the_integer_product_and_its_constant_are_the_product_of_decoded_sides(
    mean: tuple[float, ...], std: tuple[float, ...], bits: int
) -> None:
    x, _ = every_byte(mean, std)
    weight = np.random.default_rng(0).standard_normal((x.shape[1], 5)).astype(np.float32)
    left, right = Pixels.of(mean, std, 3), Uniform(bits, (as_float32(0.03 / 2 ** (bits - 1)),))
    codes, _ = ship_weight(weight, left, right)
    constant = unit_bias(codes, left, right)
    assert constant is not None and saturating_pairs(codes, left.largest_code) == 0
    integer = left.units(x)[0].astype(np.float64) @ codes * right.scale[0] + constant
    decoded = left.fake_quantize(x).astype(np.float64) @ shipped(weight, left, right)
    np.testing.assert_allclose(integer, decoded, rtol=1e-5, atol=1e-4)
    ours = shipped(torch.from_numpy(weight), left, right).numpy()
    np.testing.assert_array_equal(ours, shipped(weight, left, right))


def test_rounding_a_weight_costs_nothing_where_the_image_has_its_mean() -> None:
    """The constant is made of the codes that ship: a grey image feels no rounding error."""
    left = Pixels.of((100 / 255,), (0.25,), 1)
    codes, _ = ship_weight(np.full((4, 1), 0.3, np.float32), left, Uniform(4, (as_float32(0.01),)))
    constant = unit_bias(codes, left, Uniform(4, (as_float32(0.01),)))
    assert constant is not None
    total = left.units(np.zeros((1, 4), np.float32))[0] @ codes * as_float32(0.01) + constant
    np.testing.assert_allclose(total, 0, atol=1e-5)


def test_in_steps_a_row_is_worth_one() -> None:
    pixels = Pixels.of(*IMAGENET, 3)
    x, expected = every_byte(*IMAGENET)
    inside = pixels.in_steps
    assert np.array_equal(inside.encode(x / pixels.row_steps(x.shape[1])), expected)
    assert set(inside.row_steps(12).tolist()) == {1.0}


def test_one_mean_and_std_serve_all_colours() -> None:
    assert Pixels.of((0.5,), (0.25,), 3) == Pixels.of((0.5,) * 3, (0.25,) * 3, 3)


@pytest.mark.parametrize(
    ("bits", "scale", "centre", "problem"),
    [
        (4, (0.5,), (1.0,), "bits is 4, expected 8"),
        (8, (0.5,), (1.0, 2.0), "centre has 2 values, scale has 1"),
        (8, (0.5,), (-1.0,), r"outside 0\.\.255"),
        (8, (0.5,), (float("nan"),), r"outside 0\.\.255"),
        (8, (0.0,), (1.0,), "not a positive float32 value"),
    ],
)
def test_what_is_no_grid_of_bytes_is_refused(
    bits: int, scale: tuple[float, ...], centre: tuple[float, ...], problem: str
) -> None:
    with pytest.raises(ValueError, match=problem):
        Pixels(bits, scale, centre)


@pytest.mark.parametrize(("colours", "inputs"), itertools.product([1, 3], [6, 12, 27]))
def test_inputs_have_the_values_of_their_colours(colours: int, inputs: int) -> None:
    values = tuple(float(colour) for colour in range(colours))
    kernel = np.repeat(np.arange(colours), inputs // colours)
    assert along_inputs(values, inputs).tolist() == pair_far_inputs(kernel).tolist()


def test_colours_that_do_not_divide_the_inputs_are_refused() -> None:
    with pytest.raises(ValueError, match="3 colours do not divide 8 inputs"):
        along_inputs((1.0, 2.0, 3.0), 8)
