"""What an error of a weight is expected to cost: gradient times error, added up over an image before it is squared."""

from __future__ import annotations

import pytest
import torch

from ptq4vit_onnx.calibration.rounding.sensitivity import Sensitivity, weight_error
from ptq4vit_onnx.plan.channel_fold import Channels
from ptq4vit_onnx.plan.quantizers import Affine, Uniform, as_float32
from ptq4vit_onnx.plan.scale_plan import Outliers, SitePlan

TOKENS, INPUTS, OUTPUTS, IMAGES = 7, 12, 5, 3


def plan_at(bits: int, channels: Channels | None = None, outliers: Outliers | None = None) -> SitePlan:
    step = as_float32(1.0 / 2 ** (bits - 1))
    # Inputs are hardly rounded, and beside seven bits any pair of weights is safe.
    fine = Affine(7, (as_float32(2.0**-40),), (64,))
    return SitePlan("linear", "other", fine, Uniform(bits, (step,)), outliers, channels=channels)


def values(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(seed)
    weight = torch.rand(INPUTS, OUTPUTS, generator=random) * 1.6 - 0.8
    rows = torch.randn(IMAGES, TOKENS, INPUTS, generator=random)
    return weight, rows, torch.randn(IMAGES, TOKENS, OUTPUTS, generator=random)


def test_the_damage_is_half_the_mean_square_of_gradient_times_error_summed_over_an_image() -> None:
    weight, rows, grad = values()
    listener = Sensitivity(weight, {4: plan_at(4), 8: plan_at(8)})
    for x, g in zip(rows, grad, strict=True):
        listener(x)(g)
    for bits, step in ((4, 1 / 8), (8, 1 / 128)):
        error = rows @ ((weight / step).round().clamp(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) * step - weight)
        expected = 0.5 * (grad * error).sum((1, 2)).square().mean()
        assert listener.damage[bits] == pytest.approx(float(expected), rel=1e-4)
    assert listener.damage[8] < 0.1 * listener.damage[4]


def test_the_error_of_a_weight_behind_folded_channels_is_that_of_the_outputs() -> None:
    weight, rows, _ = values(1)
    random = torch.Generator().manual_seed(2)
    scale = torch.rand(INPUTS, generator=random) + 0.5
    shift = torch.randn(INPUTS, generator=random)
    channels = Channels("norm", tuple(scale.tolist()), tuple(shift.tolist()))
    change, bias = weight_error(weight, plan_at(3, channels))
    inside = (rows - shift) / scale
    codes = (weight * scale[:, None] / 0.25).round().clamp(-4, 3) * 0.25
    expected = inside @ codes - inside @ (weight * scale[:, None])
    assert torch.allclose(rows @ change + bias, expected, atol=1e-5)


def test_outlier_channels_have_the_error_of_their_own_product() -> None:
    weight, _rows, _ = values(3)
    outliers = Outliers((2,), Affine(7, (as_float32(2.0**-40),), (64,)), Uniform(4, (as_float32(0.2),)))
    change, bias = weight_error(weight, plan_at(4, outliers=outliers))
    assert not bias.any()
    assert torch.allclose(change[2], (weight[2] / 0.2).round().clamp(-8, 7) * 0.2 - weight[2], atol=1e-6)
    assert torch.allclose(change[3], (weight[3] * 8).round().clamp(-8, 7) / 8 - weight[3], atol=1e-6)


def test_errors_are_forgotten_and_found_again() -> None:
    weight, rows, grad = values()
    listener = Sensitivity(weight, {4: plan_at(4)})
    listener(rows[0])(grad[0])
    listener.forget_errors()
    listener(rows[1])(grad[1])
    assert listener.images == 2 and listener.damage[4] > 0
