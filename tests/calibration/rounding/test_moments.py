"""Moments: the sums over a whole recording, in any batches, of inputs as the product that ships multiplies them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from ptq4vit_onnx.calibration.rounding.moments import MomentSums, product_inputs
from ptq4vit_onnx.plan.channel_fold import Channels
from ptq4vit_onnx.plan.quantizers import Affine, Pixels, Uniform
from ptq4vit_onnx.plan.scale_plan import SitePlan
from tests.calibration.rounding.inputs import drawn

ROWS, INPUTS, OUTPUTS = 60, 8, 5
LHS, RHS = Affine(4, (0.25,), (7,)), Uniform(4, (0.125,))
LINEAR = SitePlan("linear", "other", LHS, RHS)
# Sums of ROWS float32 products in another order: half a unit in the last place of the largest for each.
ROUNDING = ROWS * 2**-24


def close(found: Tensor, expected: Tensor) -> None:
    assert (found.double() - expected).abs().max() <= ROUNDING * expected.abs().max()


def expected_of(quantised: Tensor, plain: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    """sum d q q^T and sum d q x^T, row by row, in float64."""
    d = grad.double().square().mean(1).sqrt()
    q, x = quantised.double(), plain.double()
    return torch.einsum("n,ni,nj->ij", d, q, q), torch.einsum("n,ni,nj->ij", d, q, x)


@pytest.mark.parametrize("batch", [1, 7, 60])
def test_the_sums_are_those_of_all_rows_whatever_the_batches(batch: int) -> None:
    rows, grad = drawn(ROWS, INPUTS), drawn(ROWS, OUTPUTS, seed=1)
    sums = MomentSums(LINEAR, crossed=True)
    answers = [(sums(some), number) for number, some in enumerate(torch.split(rows, batch))]
    for answer, number in reversed(answers):  # a backward pass goes the other way
        answer(torch.split(grad, batch)[number])
    found = sums.take()
    quantised, crossed = expected_of(LHS.fake_quantize(rows), rows, grad)
    close(found.quantised, quantised)
    close(found.crossed, crossed)
    assert (quantised - crossed).abs().max() > 0.01 * crossed.abs().max()


def test_sums_are_taken_once_and_begin_again() -> None:
    sums = MomentSums(LINEAR, crossed=False)
    for scale in (1.0, 2.0):
        sums(scale * drawn(ROWS, INPUTS))(drawn(ROWS, OUTPUTS, seed=1))
        found = sums.take()
        assert found.crossed is found.quantised, "not asked for"
        close(found.quantised, expected_of(LHS.fake_quantize(scale * drawn(ROWS, INPUTS)), drawn(ROWS, INPUTS),
                                           drawn(ROWS, OUTPUTS, seed=1))[0])  # fmt: skip
    with pytest.raises(AssertionError, match="no gradient was heard"):
        sums.take()


def test_rows_without_a_gradient_do_not_count() -> None:
    rows, grad = drawn(ROWS, INPUTS), drawn(ROWS, OUTPUTS, seed=1)
    grad[10:] = 0
    some, all_rows = MomentSums(LINEAR, crossed=False), MomentSums(LINEAR, crossed=False)
    some(rows[:10])(grad[:10])
    all_rows(rows)(grad)
    close(all_rows.take().quantised, some.take().quantised.double())


@pytest.mark.parametrize("crossed", [False, True])
def test_what_the_model_does_to_the_rows_afterwards_changes_nothing(crossed: bool) -> None:
    """Also where quantising leaves every value as it is."""
    rows, grad = drawn(ROWS, INPUTS).mul_(4).round_().div_(4), drawn(ROWS, OUTPUTS, seed=1)
    expected = expected_of(LHS.fake_quantize(rows), rows, grad)
    sums, kept = MomentSums(LINEAR, crossed), grad.clone()
    answer = sums(rows)
    rows.fill_(99.0)
    answer(grad)
    found = sums.take()
    close(found.quantised, expected[0])
    close(found.crossed, expected[crossed])
    assert torch.equal(grad, kept), "nor are the gradients changed"


def test_rows_are_read_and_not_changed() -> None:
    for plan in (LINEAR, folded(), coloured()):
        rows = drawn(ROWS, 12)
        product_inputs(rows, plan)
        assert torch.equal(rows, drawn(ROWS, 12))


def folded() -> SitePlan:
    scale, shift = tuple(2.0**power for power in range(-6, 6)), tuple(0.25 * step for step in range(12))
    return SitePlan("linear", "other", LHS, RHS, channels=Channels("norm", scale, shift))


def coloured() -> SitePlan:
    return SitePlan("conv", "other", Pixels.of((0.5, 0.25, 0.5), (0.25, 0.5, 0.125), 3), RHS)


def test_folded_channels_are_folded_before_they_are_quantised() -> None:
    rows, plan = drawn(ROWS, 12), folded()
    assert plan.channels is not None
    expected = (rows - torch.tensor(plan.channels.shift)) / torch.tensor(plan.channels.scale)
    quantised, plain = product_inputs(rows, plan)
    assert torch.equal(plain, expected) and torch.equal(quantised, LHS.fake_quantize(expected))


def test_pixels_are_counted_in_steps_of_their_colour() -> None:
    """Whole numbers from 0 to 255, less the centre of each colour: what the weight, which has taken up the steps,
    multiplies."""
    plan, generator = coloured(), torch.Generator().manual_seed(0)
    lhs: Any = plan.lhs
    steps, zeros = torch.tensor(lhs.row_steps(12)), torch.tensor(lhs.row_zeros(12))
    pixels = torch.randint(0, 256, (ROWS, 12), generator=generator).float()
    rows = (pixels - 128 + zeros) * steps
    quantised, plain = product_inputs(rows, plan)
    assert (quantised - (pixels - 128 + zeros)).abs().max() == 0
    assert (plain - quantised).abs().max() < 256 * 2**-23, "a quotient of float32"
