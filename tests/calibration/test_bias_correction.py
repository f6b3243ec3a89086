"""Mean errors taken off the biases: where that helps, and where a bias is left alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from ptq4vit_onnx.calibration.calibrate import plan_site
from ptq4vit_onnx.calibration.channel_scales import with_channels
from ptq4vit_onnx.calibration.rounding.bias_correction import bias_correction
from ptq4vit_onnx.network.planned_product import quantized_product
from ptq4vit_onnx.network.recording import Recording
from ptq4vit_onnx.plan.options import Metric, Options
from ptq4vit_onnx.plan.quantizers import Uniform, as_float32
from ptq4vit_onnx.plan.scale_plan import SitePlan
from ptq4vit_onnx.plan.sites import Site
from tests.calibration.recordings import QUICK, recording, uneven


def corrected_and_not(item: Recording, plan: SitePlan, metric: Metric = "hessian") -> tuple[torch.Tensor, torch.Tensor]:
    """Which outputs are corrected, and the errors [rows, outputs] after that."""
    correction = torch.tensor(bias_correction(item, plan, metric))
    return correction != 0, quantized_product(item.lhs, item.rhs, plan) + correction - item.lhs @ item.rhs


def test_bias_correction_removes_the_mean_error_where_the_weighed_loss_falls_and_nowhere_else() -> None:
    item = recording()
    item.lhs.add_(0.4)
    item.grad[:, ::2] = 0.5  # all rows of every other output alike
    plan = plan_site(item, Options.paper(weight_bits=3, activation_bits=3, **QUICK))
    before = quantized_product(item.lhs, item.rhs, plan) - item.lhs @ item.rhs
    less = (item.grad.square() * ((before - before.mean(0)).square() - before.square())).sum(0) < 0
    known = before.mean(0).abs() > before.std(0) / len(before) ** 0.5
    corrected, error = corrected_and_not(item, plan)
    assert torch.equal(corrected, less & known)
    assert (less & ~known).any() and (known & ~less).any(), "both reasons to leave one alone are seen"
    assert error.mean(0)[corrected].abs().max() < 1e-4
    assert torch.equal(error[:, ~corrected], before[:, ~corrected])


def test_an_output_whose_large_errors_nobody_reads_keeps_its_bias() -> None:
    item = recording()
    item.lhs[:30] = 8.0 * item.rhs[:, 5].sign()  # a tenth of the rows drives output 5 far beyond what can be held
    plan = replace(
        plan_site(item, Options.paper(**QUICK)), lhs=Uniform(8, (as_float32(3.0 / 127),)), bias_correction=None
    )
    corrected, error = corrected_and_not(item, plan)
    assert corrected[5] and error[:, 5].mean().abs() < 1e-4
    item.grad[:30] = 0.0
    assert not corrected_and_not(item, plan)[0][5]
    for metric in ("mse", "cosine", "pearson"):
        assert corrected_and_not(item, plan, metric)[0][5], "they count all rows alike"
    assert torch.equal(*(corrected_and_not(replace(item, grad=item.grad * scale), plan)[0] for scale in (1.0, 1e-30)))


@pytest.mark.parametrize(("metric", "corrected"), [("hessian", False), ("mse", True)])
def test_the_correction_weighs_errors_as_the_search_does(metric: Metric, corrected: bool) -> None:
    item = recording()
    item.lhs[:30] = 800.0 * item.rhs[:, 5].sign()
    item.grad[:30] = 0.0  # so that the search clips these rows, unless it counts all alike
    options = Options(metric=metric, weights="per-tensor", alpha=0.01, beta=0.02, **QUICK)
    correction = plan_site(item, options).bias_correction
    assert correction is not None and (correction[5] != 0) is corrected


def test_a_head_that_saw_one_image_keeps_its_biases() -> None:
    item = recording(rows=1)
    plan = plan_site(item, Options(weights="per-tensor", weight_bits=4, activation_bits=4, **QUICK))
    assert plan.bias_correction is not None and not any(plan.bias_correction)


def test_a_layer_with_scaled_channels_is_corrected_for_the_product_after_that() -> None:
    item = uneven()
    plan = plan_site(item, Options(weights="per-tensor", weight_bits=4, activation_bits=4, **QUICK))
    assert plan.channels is not None and plan.bias_correction is not None
    seen = with_channels(item, plan.channels)
    error = quantized_product(seen.lhs, seen.rhs, plan) + torch.tensor(plan.bias_correction) - seen.lhs @ seen.rhs
    corrected = torch.tensor(plan.bias_correction) != 0
    assert corrected.any() and error.mean(0)[corrected].abs().max() < 1e-4 * error.abs().max()


def test_bias_correction_is_the_same_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    item = recording()
    plan = plan_site(item, Options(weights="per-tensor", **QUICK))
    whole = bias_correction(item, plan, "hessian")
    monkeypatch.setattr("ptq4vit_onnx.calibration.rounding.bias_correction.CHUNK_ELEMENTS", 64 * 7)
    assert bias_correction(item, plan, "hessian") == pytest.approx(whole, abs=2e-6)  # a unit in the last place of 8


@pytest.mark.parametrize(
    ("options", "corrects"),
    [
        (Options(), False),
        (Options(weights="per-tensor"), True),
        (Options(bias_correction="always"), True),
        (Options(weights="per-tensor", bias_correction="none"), False),
        (Options.paper(), False),
        (Options.base(), False),
    ],
)
def test_biases_are_corrected_next_to_one_scale_per_tensor_or_when_asked_for(options: Options, corrects: bool) -> None:
    item = recording()
    item.lhs.add_(0.4)
    plan = plan_site(item, replace(options, **QUICK))
    assert (plan.bias_correction is not None) is corrects
    matmul = replace(item, site=Site("qk", "matmul", "attn"), lhs=item.lhs[None, None], rhs=item.rhs[None, None],
                     grad=item.grad[None, None])  # fmt: skip
    assert plan_site(matmul, replace(options, **QUICK)).bias_correction is None
