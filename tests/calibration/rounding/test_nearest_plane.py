"""Rounding that compensates: what it gains, that it is GPTQ, what its codes keep to, and inputs it must not fail on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from ptq4vit_onnx.calibration.rounding import nearest_plane
from ptq4vit_onnx.calibration.rounding.moments import Moments
from ptq4vit_onnx.calibration.rounding.nearest_plane import DAMPING, SCALES, compensated, cost
from ptq4vit_onnx.plan.quantizers import Compensated, Uniform
from ptq4vit_onnx.plan.saturation_safe_weights import make_pairs_safe, pair_limit, shipped
from tests.calibration.rounding.inputs import LHS, alike, decoded, drawn, lost, moments_of, scales_of

INPUTS, OUTPUTS = 24, 12
Patch = pytest.MonkeyPatch


@pytest.fixture
def one_scale(monkeypatch: Patch) -> None:
    """The scales are those that were given."""
    monkeypatch.setattr(nearest_plane, "SCALES", (1.0,))


def codes_of(found: Compensated) -> Tensor:
    values = found.stored.values
    assert values is not None
    return torch.tensor(values, dtype=torch.float32)


def values_of(found: Compensated) -> Tensor:
    return decoded(codes_of(found), found)


@pytest.mark.parametrize("bits", [2, 3, 4, 6])
def test_it_loses_less_than_half_of_what_nearest_rounding_loses_where_inputs_are_alike(bits: int) -> None:
    rows, weight, d = alike(400, INPUTS), drawn(INPUTS, OUTPUTS), drawn(400, seed=7).abs()
    rhs = scales_of(weight, bits)
    found = compensated(weight, moments_of(rows, d), LHS, rhs)
    plain = min(lost(rows, weight, decoded(rhs.codes(weight), rhs), d) for rhs in scaled(rhs))
    assert lost(rows, weight, values_of(found), d) < 0.5 * plain, "also next to the best of the same scales"


def scaled(rhs: Uniform) -> Iterator[Uniform]:
    for factor in SCALES:
        steps = torch.tensor(rhs.scale) * factor
        yield Uniform(rhs.bits, tuple(steps.tolist()))


@pytest.mark.usefixtures("one_scale")
@pytest.mark.parametrize("bits", [2, 4, 7])
def test_where_inputs_are_not_correlated_the_codes_are_the_nearest(bits: int) -> None:
    weight = drawn(INPUTS, OUTPUTS)
    rhs = scales_of(weight, bits)
    diagonal = torch.diag(drawn(INPUTS, seed=3).square())
    found = compensated(weight, Moments(diagonal, diagonal), LHS, rhs)
    assert torch.equal(codes_of(found), rhs.codes(weight)) and found.scale == rhs.scale
    rows = alike(400, INPUTS)
    assert not torch.equal(codes_of(compensated(weight, moments_of(rows), LHS, rhs)), rhs.codes(weight))


def textbook(weight: Tensor, hessian: Tensor, rhs: Uniform) -> Tensor:
    """GPTQ with the explicit inverse (Frantar et al. 2022, Eq. 2 and 3): the input of the largest moment first.

    Of the inputs F that are left, rounding w_q changes all others by -(w_q - quant(w_q)) / [H_F^-1]_qq [H_F^-1]_:q.
    """
    wanted, steps = weight.double().clone(), torch.tensor(rhs.scale, dtype=torch.float64)
    codes = torch.zeros_like(wanted)
    order = hessian.diagonal().argsort(descending=True, stable=True).tolist()
    while order:
        inverse = hessian[order][:, order].inverse()
        first = order[0]
        codes[first] = (wanted[first] / steps).round().clamp(rhs.low, rhs.high)
        error = (wanted[first] - codes[first] * steps) / inverse[0, 0]
        wanted[order] -= inverse[:, :1] * error
        order = order[1:]
    return codes.float()


@pytest.mark.usefixtures("one_scale")
@pytest.mark.parametrize("block", [7, 64])
@pytest.mark.parametrize("bits", [2, 3, 5])
def test_the_codes_are_those_of_a_textbooks_gptq(bits: int, block: int, monkeypatch: Patch) -> None:
    monkeypatch.setattr(nearest_plane, "BLOCK", block)
    rows, weight = alike(200, INPUTS), drawn(INPUTS, OUTPUTS)
    rhs, moments = scales_of(weight, bits), moments_of(rows)
    hessian = moments.quantised.double()
    hessian = hessian + DAMPING * hessian.diagonal().mean() * torch.eye(INPUTS, dtype=torch.float64)
    expected = textbook(weight, hessian, rhs)
    assert torch.equal(codes_of(compensated(weight, moments, LHS, rhs)), expected)
    assert (expected != rhs.codes(weight)).float().mean() > 0.1, "nearest rounding would not do"


@pytest.mark.parametrize("bits", range(2, 8))
def test_codes_stay_within_their_bits_and_use_all_of_them(bits: int) -> None:
    weight = drawn(64, OUTPUTS)
    found = compensated(weight, moments_of(alike(400, 64)), LHS, scales_of(weight, bits))
    assert [found.low, found.high] == [int(end) for end in codes_of(found).aminmax()]


def heavy() -> Tensor:
    """A weight of which a few neighbours are together beyond the range of one."""
    weight = drawn(INPUTS, OUTPUTS).clamp(-1.4, 1.4)
    weight[::6] = weight[1::6] + 0.02 * weight[::6]
    return weight


def test_at_eight_bits_pairs_are_safe_while_they_are_chosen_and_that_loses_less_than_afterwards() -> None:
    rows, weight = alike(400, INPUTS), heavy()
    rhs, limit = scales_of(weight, 8), pair_limit(LHS)
    nearest = rhs.codes(weight)
    assert not torch.equal(make_pairs_safe(nearest.clone(), limit), nearest), "there is something to make safe"
    found = compensated(weight, moments_of(rows), LHS, rhs)
    codes = codes_of(found)
    assert torch.equal(make_pairs_safe(codes.clone(), limit), codes)
    afterwards = min(lost(rows, weight, shipped(weight, LHS, rhs)) for rhs in scaled(scales_of(weight, 8)))
    assert lost(rows, weight, values_of(found)) < 0.8 * afterwards


@pytest.mark.usefixtures("one_scale")
def test_of_a_pair_the_input_of_the_larger_moment_keeps_its_code_and_the_other_takes_what_is_left() -> None:
    weight, limit = heavy(), pair_limit(LHS)
    rhs = scales_of(weight, 8)
    moments = torch.linspace(1, 2, INPUTS)[torch.randperm(INPUTS, generator=torch.Generator().manual_seed(0))]
    found = codes_of(compensated(weight, Moments(torch.diag(moments), torch.diag(moments)), LHS, rhs))
    nearest, place = rhs.codes(weight), torch.arange(INPUTS)
    first = place[moments > moments[place ^ 1]]
    assert torch.equal(found[first], nearest[first])
    other = nearest[first ^ 1]
    left = torch.minimum(torch.maximum(other, -limit - found[first]), limit - found[first])
    assert torch.equal(found[first ^ 1], left) and not torch.equal(left, other)


def test_a_later_weight_takes_up_what_pair_safety_took_off() -> None:
    """Three equal inputs: of their sum nothing need be lost, though two of them make a pair that is held to 128."""
    weight = torch.tensor([[1.0], [0.9], [-0.5], [0.0]])
    rows = drawn(100, 1).expand(100, 4)
    rhs = Uniform(8, (1 / 128,))
    found = compensated(weight, moments_of(rows), LHS, rhs)
    assert codes_of(found)[:2].sum() <= 128 < rhs.codes(weight)[:2].sum()
    # Damping holds each weight near its place: of an error of E, d |E|^2 / (4 + d) is left, d = 0.1 of the diagonal.
    excess = float(rhs.codes(weight)[:2].sum() - 128) * rhs.scale[0]
    assert abs(float((values_of(found) - weight).sum())) < 0.2 * excess


@pytest.mark.parametrize("groups", [1, 3, 0])
def test_as_many_scales_as_before_come_back_each_a_factor_on_offer(groups: int) -> None:
    weight = drawn(INPUTS, OUTPUTS) * torch.linspace(0.5, 2, OUTPUTS)
    before = scales_of(weight, 4, groups)
    found = compensated(weight, moments_of(alike(400, INPUTS)), LHS, before)
    assert len(found.scale) == len(before.scale) == (groups or OUTPUTS)
    factors = torch.tensor(found.scale) / torch.tensor(before.scale)
    nearest = (factors[:, None] - torch.tensor(SCALES)).abs().amin(1)
    assert nearest.max() < 1e-6, "rounding of float32"


def test_the_cheapest_of_the_scales_is_taken() -> None:
    """By the damped sum, tr E^T H E, so by the plain one up to what damping adds."""
    rows, weight = alike(400, INPUTS), drawn(INPUTS, 1)
    moments = moments_of(rows)
    hessian = moments.quantised + DAMPING * moments.quantised.diagonal().mean() * torch.eye(INPUTS)

    def damped(found: Compensated) -> float:
        error = weight - values_of(found)
        return float((error * (hessian @ error)).sum())

    before = scales_of(weight, 3)
    best = damped(compensated(weight, moments, LHS, before))
    alone = []
    with pytest.MonkeyPatch.context() as patch:
        for factor in SCALES:
            patch.setattr(nearest_plane, "SCALES", (factor,))
            alone.append(damped(compensated(weight, moments, LHS, before)))
    assert best == min(alone) < 0.9 * alone[SCALES.index(1.0)]


def test_rows_of_zeros_stay_zeros() -> None:
    """Their inputs are outliers, which have a product of their own."""
    rows, weight = alike(400, INPUTS), drawn(INPUTS, OUTPUTS)
    rows[:, [3, 8]] *= 50
    weight[[3, 8]] = 0
    rhs = scales_of(weight, 3)
    for ridge in (False, True):
        found = compensated(weight, moments_of(rows, plain=rows + 0.5 * drawn(*rows.shape)), LHS, rhs, ridge)
        assert not codes_of(found)[[3, 8]].any()
        assert codes_of(found)[4].any()
    without = [row for row in range(INPUTS) if row not in (3, 8)]
    alone = lost(rows[:, without], weight[without], decoded(rhs.codes(weight), rhs)[without])
    assert lost(rows[:, without], weight[without], values_of(found)[without]) < 0.5 * alone, (
        "the others see no outliers"
    )


@pytest.mark.usefixtures("one_scale")
def test_inputs_that_are_always_zero_get_the_nearest_codes() -> None:
    rows, weight = alike(400, INPUTS), drawn(INPUTS, OUTPUTS)
    rhs = scales_of(weight, 4)
    rows[:, 5] = 0
    found = codes_of(compensated(weight, moments_of(rows), LHS, rhs))
    assert torch.equal(found[5], rhs.codes(weight)[5]) and not torch.equal(found, rhs.codes(weight))
    rows[:] = 0
    assert torch.equal(codes_of(compensated(weight, moments_of(rows), LHS, rhs, ridge=True)), rhs.codes(weight))


def test_a_weight_of_zeros_stays_one() -> None:
    found = compensated(torch.zeros(INPUTS, OUTPUTS), moments_of(alike(400, INPUTS)), LHS, Uniform(4, (0.5,)))
    assert not codes_of(found).any()


def test_an_odd_number_of_inputs_leaves_the_last_without_a_partner() -> None:
    weight = heavy()[:7]
    codes = codes_of(compensated(weight, moments_of(alike(400, 7)), LHS, scales_of(weight, 8)))
    assert torch.equal(make_pairs_safe(codes.clone(), pair_limit(LHS)), codes)


def test_the_result_is_the_same_on_one_and_two_threads(monkeypatch: Patch) -> None:
    monkeypatch.setattr(nearest_plane, "COLUMNS", 50)  # several parts, side by side
    rows, weight = alike(800, 96), drawn(96, 48)
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            found.append(compensated(weight, moments_of(rows), LHS, scales_of(weight, 4), ridge=True))
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    assert found[0] == found[1]


def coarse(rows: Tensor) -> Tensor:
    return Uniform(3, (0.625,)).fake_quantize(rows)


def answered(rows: Tensor, weight: Tensor, rounded: Tensor) -> float:
    """sum |q Q - x W|^2 of rows x that are quantised to q."""
    return float((coarse(rows).double() @ rounded.double() - rows.double() @ weight.double()).square().sum())


def test_with_crossed_moments_the_errors_of_inputs_are_compensated_too() -> None:
    """The codes answer better on the rows they were fitted to, and on others."""
    (rows, others), weight = torch.split(alike(1600, INPUTS) * 0.4, 800), drawn(INPUTS, OUTPUTS)
    rhs = scales_of(weight, 6)
    moments = moments_of(coarse(rows), plain=rows)
    plain, ridge = (values_of(compensated(weight, moments, LHS, rhs, ridge)) for ridge in (False, True))
    for seen in (rows, others):
        assert answered(seen, weight, ridge) < 0.95 * answered(seen, weight, plain)


def test_a_huge_ridge_leaves_the_weight_as_it_is(monkeypatch: Patch) -> None:
    rows, weight = alike(800, INPUTS) * 0.4, drawn(INPUTS, OUTPUTS)
    moments, rhs = moments_of(coarse(rows), plain=rows), scales_of(weight, 4)
    assert compensated(weight, moments, LHS, rhs) != compensated(weight, moments, LHS, rhs, ridge=True)
    monkeypatch.setattr(nearest_plane, "RIDGE", 1e9)
    assert compensated(weight, moments, LHS, rhs) == compensated(weight, moments, LHS, rhs, ridge=True)


@pytest.mark.parametrize("crossed", [False, True])
def test_two_costs_differ_by_what_their_errors_differ(crossed: bool) -> None:
    """Moments are float32 sums of 300 products: half a unit in the last place each, of terms that partly cancel."""
    rows, weight = alike(300, INPUTS), drawn(INPUTS, OUTPUTS)
    seen = coarse(rows) if crossed else rows
    moments = moments_of(seen, plain=rows if crossed else None)
    options: list[Any] = [decoded(rhs.codes(weight), rhs) for rhs in (scales_of(weight, 3), scales_of(weight, 6))]
    errors = [float((seen.double() @ q.double() - rows.double() @ weight.double()).square().sum()) for q in options]
    difference = cost(weight, options[0], moments) - cost(weight, options[1], moments)
    total = float((rows.double() @ weight.double()).square().sum())
    assert difference == pytest.approx(errors[0] - errors[1], abs=300 * 2**-24 * total)
    assert abs(errors[0] - errors[1]) > 100 * 300 * 2**-24 * total
