"""Evidence: figures that follow from the recording by plain arithmetic."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from ptq4vit_onnx.calibration.calibrate import plan_site
from ptq4vit_onnx.calibration.channel_scales import with_channels
from ptq4vit_onnx.calibration.measure_evidence import BINS, CURVE_POINTS, collect
from ptq4vit_onnx.calibration.objective import Objective
from ptq4vit_onnx.network.planned_product import quantized_product
from ptq4vit_onnx.network.recording import Recording
from ptq4vit_onnx.plan.options import Options
from ptq4vit_onnx.plan.quantizers import Affine, TwinGelu, TwinSoftmax, Uniform, as_float32
from ptq4vit_onnx.plan.scale_plan import Outliers, SitePlan
from ptq4vit_onnx.plan.sites import Site

OPTIONS = Options(candidates=12, rounds=1, activation_bits=5, weight_bits=5)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def linear(lhs: Tensor | None = None, source: str = "other") -> Recording:
    lhs = normal(200, 40) if lhs is None else lhs
    site = Site("fc", "linear", "fc", lhs_source=source)  # type: ignore[arg-type]
    return Recording(site, lhs, normal(lhs.shape[1], 16, seed=1) / 4, normal(len(lhs), 16, seed=2).pow(3))


def attention(source: str = "other") -> Recording:
    lhs = normal(4, 3, 20, 20) * torch.tensor([1.0, 4.0, 0.3])[:, None, None]
    lhs = (2 * lhs).softmax(-1) if source == "softmax" else lhs
    site = Site("pv", "matmul", "attn", lhs_source=source, heads=3)  # type: ignore[arg-type]
    return Recording(site, lhs, normal(4, 3, 20, 8, seed=1), normal(4, 3, 20, 8, seed=2))


RECORDINGS = {
    "linear": linear(),
    "gelu": linear(torch.nn.functional.gelu(normal(200, 40)), "gelu"),
    "heads": attention(),
    "softmax": attention("softmax"),
}


def error_of(recording: Recording, plan: SitePlan) -> Tensor:
    return quantized_product(recording.lhs, recording.rhs, plan) - recording.lhs @ recording.rhs


@pytest.mark.parametrize("name", RECORDINGS)
@pytest.mark.parametrize("twin", ["both", "none"])
def test_sqnr_and_damage_are_the_sums_over_the_recording(name: str, twin: str) -> None:
    recording = RECORDINGS[name]
    options = replace(OPTIONS, twin=twin)  # type: ignore[arg-type]
    plan = plan_site(recording, options)
    found = collect(recording, plan, options)
    error, out = error_of(recording, plan), recording.lhs @ recording.rhs
    expected = 10 * math.log10(float(out.square().sum() / error.square().sum()))
    assert found.sqnr == pytest.approx(expected, abs=1e-3)
    damage = 0.5 * float((recording.grad * error).double().square().sum())
    assert found.damage == pytest.approx(damage, rel=1e-4)
    assert found.damage == pytest.approx(
        0.5 * plan.losses["hessian"] * float(recording.grad.double().square().sum()), rel=1e-4
    )


def test_moved_channels_are_shown_and_judged_as_they_are_quantised() -> None:
    recording = linear(normal(600, 40) + torch.linspace(-9, 9, 40))
    recording = replace(recording, site=replace(recording.site, norm="norm", has_bias=True))
    plan = plan_site(recording, OPTIONS)
    assert plan.channels is not None
    found, moved = collect(recording, plan, OPTIONS), with_channels(recording, plan.channels)
    (histogram,) = found.histograms
    assert (histogram.low, histogram.high) == (float(moved.lhs.min()), float(moved.lhs.max()))
    damage = 0.5 * float((recording.grad * error_of(moved, plan)).double().square().sum())
    assert found.damage == pytest.approx(damage, rel=1e-4)


def test_a_sample_of_many_rows_tells_nearly_the_same_damage() -> None:
    recording = linear(normal(20_000, 40))  # the sample holds 1500 of the rows
    plan = plan_site(recording, OPTIONS)
    damage = 0.5 * float((recording.grad * error_of(recording, plan)).double().square().sum())
    # cubed normal gradients: the relative error of a sum over 1500 rows is a few percent
    assert collect(recording, plan, OPTIONS).damage == pytest.approx(damage, rel=0.15)


def test_bias_correction_counts_as_part_of_the_output() -> None:
    recording = linear(normal(200, 40).abs())
    plain = plan_site(recording, replace(OPTIONS, activations="symmetric"))
    corrected = plan_site(recording, replace(OPTIONS, activations="symmetric", bias_correction="always"))
    better, worse = (collect(recording, plan, OPTIONS).sqnr for plan in (corrected, plain))
    assert better is not None and worse is not None and better > worse


@pytest.mark.parametrize("name", RECORDINGS)
def test_histograms_count_every_value_once(name: str) -> None:
    recording = RECORDINGS[name]
    options = replace(OPTIONS, twin="both")
    found = collect(recording, plan_site(recording, options), options).histograms
    assert sum(sum(histogram.counts) for histogram in found) == recording.lhs.numel()
    assert sum(len(histogram.counts) for histogram in found) == BINS
    assert len(found) == (2 if name in ("gelu", "softmax") else 1)
    assert found[0].low == float(recording.lhs.min()) and found[-1].high == float(recording.lhs.max())
    assert all(fine.high < coarse.low for fine, coarse in pairwise(found))


def test_channels_with_scales_of_their_own_stay_out_of_the_histogram() -> None:
    lhs = normal(200, 40)
    lhs[:, 7] *= 100
    recording = linear(lhs)
    plan = plan_site(recording, OPTIONS)
    assert isinstance(plan.outliers, Outliers) and plan.outliers.channels == (7,)
    found = collect(recording, plan, OPTIONS)
    assert sum(found.histograms[0].counts) == 200 * 39
    assert found.histograms[0].high < 10


@pytest.mark.parametrize(
    ("lhs", "expected"),
    [
        (Uniform(3, (1.0,)), 4 / 10),  # points -4 .. 3: 4, 5, 6 and -5 lie beyond; 3.5 and -4.5 are rounded
        (Affine(3, (1.0,), (2,)), 5 / 10),  # points -2 .. 5: 6, -3, -4, -4.5 and -5
        (TwinGelu(3, 2.0, 1), 2 / 10),  # points -3 .. 6: -4 and -5; -3.5 is rounded
    ],
)
def test_clipped_values_are_those_half_a_step_beyond_the_last_point(lhs: Uniform, expected: float) -> None:
    values = torch.tensor([-5.0, -4.5, -4.0, -3.0, 0.0, 3.0, 3.5, 4.0, 5.0, 6.0])
    if isinstance(lhs, TwinGelu):
        values[1] = -3.5
    recording = linear(values[:, None])
    plan = SitePlan("linear", "other", lhs, Uniform(8, (as_float32(0.01),)))
    assert collect(recording, plan, OPTIONS).clipped == pytest.approx(expected)


@pytest.mark.parametrize("metric", ["hessian", "mse", "cosine", "pearson"])
def test_a_curve_is_the_exact_loss_of_each_candidate_over_the_best(metric: str) -> None:
    recording = RECORDINGS["linear"]
    covering = float(recording.lhs.abs().max()) / 16
    plan = SitePlan("linear", "other", Uniform(5, (as_float32(0.9 * covering),)), Uniform(8, (as_float32(0.01),)))
    curve = collect(recording, plan, OPTIONS).curve
    assert curve is not None
    grad = recording.grad if metric == "hessian" else None
    objective = Objective(recording.lhs, recording.rhs, None if grad is None else grad**2, metric)  # type: ignore[arg-type]
    rhs = plan.rhs.fake_quantize(recording.rhs)
    exact = [
        float(objective.loss(Uniform(5, (as_float32(factor * covering),)).fake_quantize(recording.lhs), rhs, 1, -1))
        for factor in curve.x
    ]
    assert curve.losses[metric] == pytest.approx([loss / min(exact) for loss in exact], rel=5e-3)
    assert min(loss for loss in curve.losses[metric] if loss is not None) == 1.0
    assert curve.axis == "scale" and curve.chosen == pytest.approx((0.9,), abs=1e-3)


def test_heads_have_one_mark_each_and_a_softmax_twin_is_drawn_over_its_shift() -> None:
    heads = RECORDINGS["heads"]
    plan = plan_site(heads, OPTIONS)
    curve = collect(heads, plan, OPTIONS).curve
    assert curve is not None
    assert len(curve.chosen) == 3
    assert isinstance(plan.lhs, Uniform)
    largest = heads.lhs.abs().amax((0, 2, 3)) / 16
    assert curve.chosen == pytest.approx([s / float(c) for s, c in zip(plan.lhs.scale, largest, strict=True)], abs=1e-3)
    softmax = RECORDINGS["softmax"]
    twin = SitePlan("matmul", "softmax", TwinSoftmax(5, 4), Uniform(8, (as_float32(0.02),)))
    curve = collect(softmax, twin, OPTIONS).curve
    assert curve is not None
    assert (curve.axis, curve.x, curve.chosen) == ("shift", tuple(map(float, range(1, 12))), (4.0,))


def test_evidence_is_small_json_and_the_same_every_time() -> None:
    recording, options = linear(normal(20_000, 40)), Options(rounds=1)
    plan = plan_site(recording, options)
    texts = [json.dumps(collect(recording, plan, options).to_data(), allow_nan=False) for _ in range(2)]
    assert texts[0] == texts[1]
    assert len(texts[0]) < 4000
    curve = collect(recording, plan, options).curve
    assert curve is not None and len(curve.x) == CURVE_POINTS


def test_a_site_that_is_always_zero_has_no_sqnr_and_no_damage() -> None:
    recording = linear(torch.zeros(30, 8))
    plan = SitePlan("linear", "other", Uniform(8, (as_float32(0.01),)), Uniform(8, (as_float32(0.01),)))
    found = collect(recording, plan, OPTIONS)
    assert (found.sqnr, found.damage, found.clipped) == (None, 0.0, 0.0)
    assert sum(found.histograms[0].counts) == 240
    json.dumps(found.to_data(), allow_nan=False)
