"""Plans: the forms each site may take, outliers, determinism; and the simulator that applies them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from ptq4vit_onnx.calibration.calibrate import (
    PREVIEW_CANDIDATES,
    PREVIEW_ROWS,
    calibrate,
    lhs_grids,
    outlier_channels,
    plan_site,
    preselect_channels,
    search_site,
)
from ptq4vit_onnx.calibration.channel_scales import channel_choices, with_channels
from ptq4vit_onnx.errors import UserError
from ptq4vit_onnx.images.embedded import embedded_digits
from ptq4vit_onnx.model_loading.load import load, resolve
from ptq4vit_onnx.network.planned_product import quantized_product
from ptq4vit_onnx.network.recording import Recording
from ptq4vit_onnx.network.tape import record
from ptq4vit_onnx.plan.options import Options
from ptq4vit_onnx.plan.quantizers import Affine, Diffused, TwinGelu, TwinSoftmax, Uniform, as_float32
from ptq4vit_onnx.plan.quantizers.patch_order import pair_far_inputs
from ptq4vit_onnx.plan.scale_plan import SitePlan
from ptq4vit_onnx.plan.sites import Site
from ptq4vit_onnx.simulation.fake import simulate
from tests.calibration.recordings import QUICK, recording, uneven


@pytest.fixture(scope="module")
def digits() -> Any:
    model = load(resolve("vit_digits"))
    return model, embedded_digits(model.preprocessing, "calibration", 4)


@pytest.fixture(scope="module")
def published(digits: Any) -> Any:
    model, images = digits
    return calibrate(record(model.module, torch.from_numpy(images.images)), Options.paper(**QUICK))


def test_published_form_has_the_papers_quantizers(published: Any) -> None:
    assert isinstance(published["blocks.0.attn.pv"].lhs, TwinSoftmax)
    assert isinstance(published["blocks.0.mlp.fc2"].lhs, TwinGelu)
    assert len(published["blocks.0.attn.qkv"].rhs.scale) == 3
    assert len(published["blocks.0.attn.qk"].lhs.scale) == len(published["blocks.0.attn.pv"].rhs.scale) == 4
    assert isinstance(published["blocks.0.attn.qkv"].lhs, Uniform)
    assert all(plan.outliers is None and plan.bias_correction is None for plan in published.values())


def test_the_same_seed_gives_the_same_plan_bit_for_bit(digits: Any, published: Any) -> None:
    model, images = digits
    again = calibrate(record(model.module, torch.from_numpy(images.images)), Options.paper(**QUICK))
    assert again == published


def test_known_sites_are_taken_over_untouched(digits: Any, published: Any) -> None:
    model, images = digits
    marked = {"head": replace(published["head"], losses={"hessian": -1.0})}
    tape = (item for item in record(model.module, torch.from_numpy(images.images)) if item.site.name == "head")
    assert calibrate(tape, Options.paper(**QUICK), known=marked)["head"].losses == {"hessian": -1.0}


@pytest.mark.parametrize(("twin", "form"), [("none", Affine), ("gelu", TwinGelu), ("softmax", Affine)])
def test_the_twin_switch_decides_the_form_after_gelu(twin: str, form: type) -> None:
    plan = plan_site(recording("gelu"), Options(twin=twin, **QUICK))  # type: ignore[arg-type]
    assert isinstance(plan.lhs, form)


@pytest.mark.parametrize(("centred", "form"), [(False, Affine), (True, Uniform)])
def test_with_and_without_a_zero_point_are_one_search(centred: bool, form: type) -> None:
    item = recording()
    item.lhs.clamp_(min=0)
    item.lhs.sub_(item.lhs.max() / 2 if centred else 0)
    options = Options(activation_bits=4, **QUICK)
    (grid,) = lhs_grids(item, options)
    assert {type(grid.pick([index])) for index in range(grid.count)} == {Affine, Uniform}
    assert grid.count == 2 * options.candidates
    assert isinstance(plan_site(item, options).lhs, form)


def test_one_huge_channel_gets_scales_of_its_own_and_the_loss_falls() -> None:
    item = recording()
    item.lhs[:, 17] *= 60
    assert outlier_channels(item) == [17]
    split = plan_site(item, Options(**QUICK))
    whole = plan_site(item, Options(outliers="none", **QUICK))
    assert split.outliers is not None and split.outliers.channels == (17,)
    exact = item.lhs @ item.rhs
    errors = [(quantized_product(item.lhs, item.rhs, plan) - exact).square().mean() for plan in (split, whole)]
    assert errors[0] < errors[1] / 2


@pytest.mark.parametrize("metric", ["cosine", "pearson"])
def test_a_channel_by_itself_is_not_left_to_a_metric_of_directions(metric: Any) -> None:
    item = recording(rows=2000)
    item.lhs[:, 17] *= 60
    plan = plan_site(item, Options(metric=metric, **QUICK))
    exact = item.lhs @ item.rhs
    assert (quantized_product(item.lhs, item.rhs, plan) - exact).norm() < 0.05 * exact.norm()


@pytest.mark.parametrize("metric", ["cosine", "pearson"])
def test_nor_is_a_single_row(metric: Any) -> None:
    item = recording(rows=1)
    plan = plan_site(item, Options(metric=metric, **QUICK))
    exact = item.lhs @ item.rhs
    assert (quantized_product(item.lhs, item.rhs, plan) - exact).norm() < 0.1 * exact.norm()


def test_the_loss_of_an_angle_is_given_as_it_is() -> None:
    item = recording()
    plan = plan_site(item, Options(metric="cosine", search="exhaustive", weights="per-tensor", outliers="none"))
    exact, out = item.lhs @ item.rhs, quantized_product(item.lhs, item.rhs, plan)
    cosine = torch.nn.functional.cosine_similarity(exact.flatten().double(), out.flatten().double(), 0)
    assert plan.losses["cosine"] == pytest.approx(float(1 - cosine), rel=0.05)


@pytest.mark.parametrize("what", ["lhs", "rhs", "grad"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_values_that_are_not_finite_are_refused_by_site(what: str, value: float) -> None:
    item = recording()
    getattr(item, what)[3, 3] = value
    with pytest.raises(UserError, match=r"fc: its .* is not finite on the calibration images"):
        plan_site(item, Options(**QUICK))


def test_ordinary_channels_are_not_called_outliers() -> None:
    assert outlier_channels(recording()) == []


def test_only_choices_that_look_best_on_a_few_rows_are_searched() -> None:
    item, options = uneven(rows=2000), Options(weights="per-tensor", **QUICK)
    choices = [None, *channel_choices(item, options)]
    losses = [search_site(with_channels(item, choice), options).losses["hessian"] for choice in choices]
    kept = preselect_channels(item, choices, options)
    assert choices[losses.index(min(losses))] in kept
    assert None not in kept and losses[0] > 4 * min(losses)
    assert preselect_channels(item, choices, replace(options, search="exhaustive")) == choices


@pytest.mark.parametrize(
    ("losses", "kept"),
    [([1.3, 1.1, 1.0], [1, 2]), ([1.0, 1.2, 9.0], [0]), ([0.0, 0.0, 1.0], [0, 1]), ([float("nan")] * 3, [0, 1, 2])],
)
def test_choices_near_the_best_are_kept(losses: list[float], kept: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, int]] = []

    def preview(item: Recording, options: Options) -> SitePlan:
        seen.append((len(item.lhs), options.candidates))
        return replace(whole, losses={"hessian": losses[len(seen) - 1]})

    item, options = uneven(rows=2000), Options(weights="per-tensor")
    whole = plan_site(item, replace(options, channels="none", **QUICK))
    choices = channel_choices(item, options)
    monkeypatch.setattr("ptq4vit_onnx.calibration.calibrate.search_site", preview)
    assert preselect_channels(item, list(choices), options) == [choices[index] for index in kept]
    assert seen == [(PREVIEW_ROWS, PREVIEW_CANDIDATES)] * 3
    seen.clear()
    preselect_channels(item, list(choices), replace(options, candidates=2))
    assert seen == [(PREVIEW_ROWS, 2)] * 3


def test_tokens_of_huge_values_are_seen_without_gradients_too() -> None:
    """As class tokens: at a fixed stride of rows, a preview would see none of them, and leave the channels alone."""
    generator = torch.Generator().manual_seed(0)
    lhs, rhs, grad = (torch.randn(*shape, generator=generator) for shape in ((6304, 48), (48, 48), (6304, 48)))
    lhs[torch.arange(32) * 197, :8] *= 10
    item = Recording(Site("fc", "linear", "fc", norm="norm", has_bias=True), lhs, rhs, grad)
    assert plan_site(item, Options(metric="mse", candidates=40)).channels is not None


def test_where_nothing_is_read_the_largest_scale_is_taken_without_a_zero_point() -> None:
    item = recording()
    item.rhs.zero_()
    plan = plan_site(item, Options(**QUICK))
    assert plan.lhs == Uniform(8, (as_float32(1.2 * float(item.lhs.abs().max()) / 128),), -3)


def test_the_loss_that_decides_has_the_outliers_share() -> None:
    item = recording()
    item.lhs[:, 17] *= 60
    plan = plan_site(item, Options(search="exhaustive", **QUICK))
    assert plan.outliers is not None
    error = quantized_product(item.lhs, item.rhs, plan) - item.lhs @ item.rhs
    h = item.grad.square()
    assert plan.losses["hessian"] == pytest.approx(float((h / h.mean() * error.square()).mean()), rel=0.1)


def patches() -> Recording:
    """Soft pictures next to kernels: a patch embedding whose neighbouring inputs are alike."""
    generator = torch.Generator().manual_seed(1)
    soft = torch.nn.functional.interpolate(torch.randn(400, 1, 4, generator=generator), 32, mode="linear")[:, 0]
    rhs = torch.randn(32, 24, generator=generator)
    grad = torch.randn(400, 24, generator=generator)
    return Recording(Site("patch", "conv", "patch"), pair_far_inputs(soft), pair_far_inputs(rhs.T).T.contiguous(), grad)


def test_a_patch_embedding_hands_on_its_rounding_errors_and_loses_less() -> None:
    found = {
        rounding: plan_site(patches(), Options(weight_bits=4, activation_bits=8, rounding=rounding, **QUICK))
        for rounding in ("diffused", "nearest")
    }
    assert type(found["diffused"].rhs) is Diffused and type(found["nearest"].rhs) is Uniform
    assert found["diffused"].losses["hessian"] < 0.5 * found["nearest"].losses["hessian"]


def test_where_neighbours_are_not_alike_errors_are_not_handed_on() -> None:
    item = replace(patches(), lhs=torch.randn(400, 32, generator=torch.Generator().manual_seed(2)))
    assert type(plan_site(item, Options(weight_bits=4, **QUICK)).rhs) is Uniform


def test_only_the_patch_embedding_hands_on_errors_and_the_papers_methods_do_not(digits: Any, published: Any) -> None:
    model, images = digits
    plans = calibrate(record(model.module, torch.from_numpy(images.images)), Options(**QUICK))
    assert [name for name, plan in plans.items() if isinstance(plan.rhs, Diffused)] == ["patch_embed.proj"]
    assert not any(isinstance(plan.rhs, Diffused) for plan in published.values())
    assert Options.base().rounding == "nearest"


def test_simulating_at_eight_bits_stays_close_to_float_and_at_two_does_not(digits: Any, published: Any) -> None:
    model, images = digits
    reference = simulate(model.module, None, images.images)
    logits = simulate(model.module, published, images.images)
    error = np.abs(logits - reference).max() / np.abs(reference).max()
    assert 0 < error < 0.2
    coarse = {name: replace(plan, rhs=replace(plan.rhs, bits=2)) for name, plan in published.items()}
    worse = simulate(model.module, coarse, images.images)
    assert np.abs(worse - reference).max() > 5 * np.abs(logits - reference).max()


def test_quantising_no_site_is_the_float_model(digits: Any, published: Any) -> None:
    model, images = digits
    assert np.array_equal(simulate(model.module, published, images.images, sites=set()),
                          simulate(model.module, None, images.images))  # fmt: skip
