"""--twin auto: a second product must pay for itself in expected damage, and the report says so."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from ptq4vit_onnx.calibration.calibrate import plan_site
from ptq4vit_onnx.network.recording import Recording
from ptq4vit_onnx.plan.options import Options
from ptq4vit_onnx.plan.quantizers import Affine, TwinGelu, TwinSoftmax, Uniform
from ptq4vit_onnx.plan.scale_plan import SitePlan
from ptq4vit_onnx.plan.sites import Site
from ptq4vit_onnx.report.twin_words import summary, twin_choice

IMAGES = 4


def gelu(strength: float, share: float = 1.0) -> Recording:
    """fc2 behind a GELU with a long tail; strength: how much the loss cares about its output."""
    generator = torch.Generator().manual_seed(0)
    lhs = torch.nn.functional.gelu(torch.randn(200, 40, generator=generator) - 1)
    lhs[:9, 0] = 30  # a few large values stretch the range of all
    rhs = torch.randn(40, 8, generator=generator)
    grad = strength * torch.randn(200, 8, generator=generator)
    return Recording(Site("fc2", "linear", "fc2", "gelu"), lhs, rhs, grad, share)


def options(**changes: Any) -> Options:
    return Options(images=IMAGES, candidates=20, outliers="none", **changes)


def test_a_twin_is_taken_where_it_saves_more_than_its_product_costs() -> None:
    strong, weak = plan_site(gelu(1.0), options()), plan_site(gelu(1e-4), options())
    assert isinstance(strong.lhs, TwinGelu) and isinstance(weak.lhs, Affine)
    saved = strong.forms["Affine"] - strong.forms["TwinGelu"]
    assert saved > TwinGelu.nats > weak.forms["Affine"] - weak.forms["TwinGelu"] > 0


def test_damage_is_half_the_weighted_square_error_per_image() -> None:
    recording, plan = gelu(1.0), plan_site(gelu(1.0), options())
    from ptq4vit_onnx.network.planned_product import quantized_product

    error = quantized_product(recording.lhs, recording.rhs, plan) - recording.lhs @ recording.rhs
    expected = float((recording.grad * error).square().sum()) / 2 / IMAGES
    assert plan.forms["TwinGelu"] == pytest.approx(expected, rel=1e-3)


def test_what_was_not_recorded_counts() -> None:
    whole, part = plan_site(gelu(1.0), options()), plan_site(gelu(1.0, share=0.25), options())
    assert part.forms["Affine"] == pytest.approx(4 * whole.forms["Affine"], rel=1e-6)


def test_other_metrics_ask_for_a_many_times_smaller_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(plan_site(gelu(1.0), options(metric="mse")).lhs, Affine)
    monkeypatch.setattr(TwinGelu, "ratio", 1.0)
    assert isinstance(plan_site(gelu(1.0), options(metric="mse")).lhs, TwinGelu)


def test_one_product_is_free() -> None:
    assert TwinSoftmax(4, 5).price_in_nats == 0 and TwinSoftmax(8, 5).price_in_nats > 0
    assert TwinGelu(4, 0.5, 4).price_in_nats == 0 and Uniform(8, (1.0,)).price_in_nats == 0
    assert TwinSoftmax(4, 5).price_as_ratio == 1 < TwinSoftmax(8, 5).price_as_ratio
    assert TwinGelu(4, 0.5, 4).price_as_ratio == 1 and Uniform(8, (1.0,)).price_as_ratio == 1


def test_the_report_says_what_was_chosen_and_why() -> None:
    taken = SitePlan(
        "linear", "gelu", TwinGelu(8, 0.5, 3), Uniform(8, (1.0,)), forms={"Affine": 3e-3, "TwinGelu": 1e-3}
    )
    left = replace(taken, lhs=Affine(8, (0.5,), (3,)), forms={"Affine": 2e-4, "TwinGelu": 1e-4})
    plain = replace(taken, lhs_source="other", forms={"Uniform": 1.0, "Affine": 2.0})
    assert str(twin_choice(taken)) == "twin would save 2.0e-03 for a second product: taken"
    assert str(twin_choice(left)) == "twin would save 1.0e-04 for a second product: not worth it"
    assert twin_choice(plain) is None and summary({"a": plain}) is None
    text = summary({"a": taken, "b": left, "c": plain})
    assert text is not None and text.startswith(
        "1 of 2 softmax and GELU inputs take two ranges, which saves 0.002 nats"
    )
    by_mse = summary({"a": replace(taken, losses={"mse": 1.0})})
    assert by_mse == "1 of 1 softmax and GELU inputs take two ranges, which saves 0.002 of the loss (mse)"
