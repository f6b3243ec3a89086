"""Scales and shifts of the channels behind a LayerNorm: what they save, and where channels are left alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from ptq4vit_onnx.calibration.calibrate import plan_site
from ptq4vit_onnx.calibration.channel_scales import CORRELATION, channel_choices, sample_recording, with_channels
from ptq4vit_onnx.network.planned_product import quantized_product
from ptq4vit_onnx.network.recording import Recording
from ptq4vit_onnx.plan.options import Options
from tests.calibration.recordings import QUICK, recording, uneven


def error_of(item: Recording, plan: Any) -> float:
    scaled = with_channels(item, plan.channels)
    return float((quantized_product(scaled.lhs, scaled.rhs, plan) - scaled.lhs @ scaled.rhs).square().mean())


@pytest.mark.parametrize("weights", ["per-channel", "per-tensor"])
@pytest.mark.parametrize("metric", ["hessian", "mse"])
def test_uneven_channels_behind_a_norm_are_brought_together_and_the_error_falls(weights: Any, metric: Any) -> None:
    item = uneven()
    plan = plan_site(item, Options(weights=weights, metric=metric, **QUICK))
    left_alone = plan_site(item, Options(weights=weights, metric=metric, channels="none", **QUICK))
    assert plan.channels is not None and left_alone.channels is None
    assert error_of(item, plan) < error_of(item, left_alone) / 4
    reach = with_channels(item, plan.channels).lhs.abs().amax(0)
    # ranges were 64 times apart; with one scale per weight, the roots of the scales may be the better choice
    assert reach.max() < (4 if weights == "per-channel" else 12) * reach.min()


def test_shifted_and_scaled_channels_multiply_to_the_same_but_for_a_constant() -> None:
    item = uneven()
    (channels,) = channel_choices(item, Options())
    scaled = with_channels(item, channels)
    constant = torch.tensor(channels.shift) @ item.rhs
    torch.testing.assert_close(scaled.lhs @ scaled.rhs + constant, item.lhs @ item.rhs, rtol=1e-4, atol=1e-3)


def test_without_a_bias_channels_are_scaled_but_not_shifted() -> None:
    (channels,) = channel_choices(uneven(has_bias=False), Options())
    assert set(channels.shift) == {0.0} and max(channels.scale) > 4 * min(channels.scale)


def test_a_constant_channel_and_one_that_nobody_reads_stay_finite() -> None:
    item = uneven()
    item.lhs[:, 3] = 2.0
    item.rhs[5] = 0.0
    (channels,) = channel_choices(item, Options())
    scaled = with_channels(item, channels)
    assert scaled.lhs.isfinite().all() and scaled.rhs.isfinite().all()
    assert max(channels.scale) < 1e3 * min(channels.scale)


def test_most_channels_may_be_constant() -> None:
    item = uneven()
    item.lhs[:, 8:] = 1.0
    (channels,) = channel_choices(item, Options())
    assert max(channels.scale) < 1e3 * min(channels.scale)
    assert plan_site(item, Options(**QUICK)).channels == channels


@pytest.mark.parametrize("what", ["lhs", "rhs"])
def test_a_pruned_layer_has_no_channels_to_scale(what: str) -> None:
    item = uneven()
    getattr(item, what).zero_()
    assert channel_choices(item, Options()) == []


def test_weights_whose_squares_leave_float32_are_left_alone() -> None:
    item = uneven()
    assert channel_choices(replace(item, rhs=item.rhs * 1e30), Options()) == []


@pytest.mark.parametrize("weights", ["per-channel", "per-tensor"])
def test_no_scales_nearby_or_far_are_expected_to_lose_less(weights: Any) -> None:
    """The documented sum, written out once more, is smallest at the scales that are found, up to a tenth."""
    item = uneven()
    item = replace(item, site=replace(item.site, weight_groups=3))
    item.rhs[:, 8:16] *= 30  # the three groups of columns have ranges of their own
    options = Options(weights=weights, weight_bits=4)
    channels = channel_choices(item, options)[0]
    lhs, h = item.lhs - torch.tensor(channels.shift), item.grad.square()
    reach = lhs.abs().amax(0)

    def loss(scale: torch.Tensor) -> float:
        scaled = (item.rhs * scale[:, None]).abs()
        columns = scaled.amax(0) if weights == "per-channel" else scaled.reshape(32, 3, 8).amax((0, 2))
        steps = columns.repeat_interleave(24 // len(columns)) / 2**4
        inputs = (reach / scale).max() / 2**8 * scale[:, None] * item.rhs
        return float((h.sum(0) * inputs.square()).sum() + CORRELATION * ((lhs / scale).square().T @ h * steps**2).sum())

    found = torch.tensor(channels.scale)
    assert found.log().mean().abs() < 1e-4
    generator = torch.Generator().manual_seed(0)
    others = [found * (noise * torch.randn(32, generator=generator)).exp() for noise in (0.05, 0.2, 0.5, 1) * 20]
    assert loss(found) < 1.1 * min(map(loss, (*others, torch.ones(32), reach, reach.sqrt())))


def test_next_to_one_scale_per_weight_less_of_the_scales_and_centres_alone_are_on_offer() -> None:
    full, half, centred = channel_choices(uneven(), Options(weights="per-tensor"))
    assert full.shift == half.shift == centred.shift
    torch.testing.assert_close(torch.tensor(half.scale).square(), torch.tensor(full.scale))
    assert set(centred.scale) == {1.0}
    assert len(channel_choices(uneven(has_bias=False), Options(weights="per-tensor"))) == 2  # no centres to take off


def test_a_sample_of_a_recording_stands_for_the_whole_one() -> None:
    item = recording(rows=4000)
    item.grad.mul_(torch.logspace(-2, 0, 4000)[:, None])
    sample, scaled = sample_recording(item, 500, seed=0), item.grad / item.grad.abs().max()
    assert len(sample.lhs) == len(sample.grad) == 500
    weighed = (sample.lhs.square().sum(1) * sample.grad.square().sum(1)).sum()
    assert float(weighed / (item.lhs.square().sum(1) * scaled.square().sum(1)).sum()) == pytest.approx(1, rel=0.05)
    assert sample.grad.abs().mean() > 2 * scaled.abs().mean()  # rows that weigh much are drawn
    assert torch.equal(sample_recording(item, 4000, seed=0).lhs, item.lhs)
    assert not torch.equal(sample_recording(item, 500, seed=1).lhs, sample.lhs)


def test_a_row_of_huge_values_is_in_every_sample_of_a_recording() -> None:
    item = recording(rows=4000)
    item.lhs[1234] *= 100
    assert all(item.lhs[1234].tolist() in sample_recording(item, 200, seed).lhs.tolist() for seed in range(5))


@pytest.mark.parametrize("scale", [1e-30, 5e37])
def test_which_rows_are_sampled_does_not_depend_on_the_gradients_unit(scale: float) -> None:
    item = recording(rows=4000)
    other = sample_recording(replace(item, grad=item.grad * scale), 300, seed=0)
    assert torch.equal(other.lhs, sample_recording(item, 300, seed=0).lhs) and other.grad.isfinite().all()


def test_gradients_near_the_end_of_float32_are_no_error() -> None:
    item = uneven(rows=2000)
    plan = plan_site(replace(item, grad=item.grad / item.grad.abs().max() * 3e38), Options(**QUICK))
    assert plan.channels is not None


def test_the_fewer_bits_a_weight_has_the_less_its_rows_are_scaled() -> None:
    item = uneven()
    item.rhs.copy_(recording(inputs=32).rhs)  # rows alike: what evens out the inputs makes the weight uneven
    fine, coarse = (channel_choices(item, Options(weight_bits=k, activation_bits=11 - k))[0].scale for k in (8, 3))
    deviations = [float(torch.tensor(scale).log().std()) for scale in (fine, coarse)]
    assert deviations[1] < 0.9 * deviations[0]


def test_channels_are_left_alone_where_nothing_can_be_folded_or_too_few_rows_count() -> None:
    item = uneven()
    assert channel_choices(replace(item, site=replace(item.site, norm="")), Options()) == []
    assert channel_choices(item, Options.paper()) == channel_choices(item, Options.base()) == []
    assert channel_choices(item, Options(metric="cosine")) == []
    assert len(channel_choices(item, Options())) == 1
    item.grad[400:] = 0.0  # as of all tokens but the class token in a last block
    assert channel_choices(item, Options()) == []
