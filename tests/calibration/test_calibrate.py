"""Plans: the forms each site may take, outliers, determinism; and the simulator that applies them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from ptq4vit_onnx.calibration.bias_correction import bias_correction
from ptq4vit_onnx.calibration.calibrate import (
    PREVIEW_CANDIDATES,
    PREVIEW_ROWS,
    calibrate,
    lhs_grids,
    likeliest,
    outlier_channels,
    plan_site,
    search_site,
)
from ptq4vit_onnx.calibration.channel_scales import IN_STEP, channel_choices, thinned, with_channels
from ptq4vit_onnx.errors import UserError
from ptq4vit_onnx.images.embedded import embedded_digits
from ptq4vit_onnx.network.load import load, resolve
from ptq4vit_onnx.network.planned_product import quantized_product
from ptq4vit_onnx.network.recording import Recording
from ptq4vit_onnx.network.tape import record
from ptq4vit_onnx.plan.options import Metric, Options
from ptq4vit_onnx.plan.quantizers import Affine, Diffused, TwinGelu, TwinSoftmax, Uniform, as_float32
from ptq4vit_onnx.plan.scale_plan import SitePlan
from ptq4vit_onnx.plan.sites import Site
from ptq4vit_onnx.plan.weight_codes import pair_far_inputs
from ptq4vit_onnx.simulation.fake import simulate

QUICK: dict[str, Any] = {"candidates": 20, "rounds": 1}


@pytest.fixture(scope="module")
def digits() -> Any:
    model = load(resolve("vit_digits"))
    return model, embedded_digits(model.preprocessing, "calibration", 4)


@pytest.fixture(scope="module")
def published(digits: Any) -> Any:
    model, images = digits
    return calibrate(record(model.module, torch.from_numpy(images.images)), Options.paper(**QUICK))


def recording(source: str = "other", rows: int = 300, inputs: int = 64) -> Recording:
    generator = torch.Generator().manual_seed(0)
    lhs = torch.randn(rows, inputs, generator=generator)
    if source == "gelu":
        lhs = torch.nn.functional.gelu(lhs)
    rhs = torch.randn(inputs, 24, generator=generator)
    site = Site("fc", "linear", "fc", source)  # type: ignore[arg-type]
    return Recording(site, lhs, rhs, torch.randn(rows, 24, generator=generator))


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


def uneven(rows: int = 600, has_bias: bool = True) -> Recording:
    """A linear behind a LayerNorm whose channels have ranges from 1/8 to 8 around centres from -4 to 4."""
    item = recording(rows=rows, inputs=32)
    item.lhs.mul_(torch.logspace(-3, 3, 32, base=2)).add_(torch.linspace(-4, 4, 32))
    item.rhs.div_(torch.logspace(-3, 3, 32, base=2)[:, None])
    return replace(item, site=replace(item.site, norm="norm", has_bias=has_bias))


def error_of(item: Recording, plan: Any) -> float:
    moved = with_channels(item, plan.channels)
    return float((quantized_product(moved.lhs, moved.rhs, plan) - moved.lhs @ moved.rhs).square().mean())


@pytest.mark.parametrize("weights", ["per-channel", "per-tensor"])
@pytest.mark.parametrize("metric", ["hessian", "mse"])
def test_uneven_channels_behind_a_norm_are_brought_together_and_the_error_falls(weights: Any, metric: Any) -> None:
    item = uneven()
    plan = plan_site(item, Options(weights=weights, metric=metric, **QUICK))
    left_alone = plan_site(item, Options(weights=weights, metric=metric, channels="none", **QUICK))
    assert plan.channels is not None and left_alone.channels is None
    assert error_of(item, plan) < error_of(item, left_alone) / 4
    spread = with_channels(item, plan.channels).lhs.abs().amax(0)
    # ranges were 64 times apart; next to one scale per weight, the root of that may be the better half of the way
    assert spread.max() < (4 if weights == "per-channel" else 12) * spread.min()


def test_moved_channels_multiply_to_the_same_but_for_a_constant() -> None:
    item = uneven()
    (channels,) = channel_choices(item, Options())
    moved = with_channels(item, channels)
    constant = torch.tensor(channels.shift) @ item.rhs
    torch.testing.assert_close(moved.lhs @ moved.rhs + constant, item.lhs @ item.rhs, rtol=1e-4, atol=1e-3)


def test_without_a_bias_channels_are_scaled_but_not_moved() -> None:
    (channels,) = channel_choices(uneven(has_bias=False), Options())
    assert set(channels.shift) == {0.0} and max(channels.scale) > 4 * min(channels.scale)


def test_a_channel_that_never_moves_and_one_that_nobody_reads_stay_finite() -> None:
    item = uneven()
    item.lhs[:, 3] = 2.0
    item.rhs[5] = 0.0
    (channels,) = channel_choices(item, Options())
    moved = with_channels(item, channels)
    assert moved.lhs.isfinite().all() and moved.rhs.isfinite().all()
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
        return float((h.sum(0) * inputs.square()).sum() + IN_STEP * ((lhs / scale).square().T @ h * steps**2).sum())

    found = torch.tensor(channels.scale)
    assert found.log().mean().abs() < 1e-4
    generator = torch.Generator().manual_seed(0)
    others = [found * (spread * torch.randn(32, generator=generator)).exp() for spread in (0.05, 0.2, 0.5, 1) * 20]
    assert loss(found) < 1.1 * min(map(loss, (*others, torch.ones(32), reach, reach.sqrt())))


def test_next_to_one_scale_per_weight_less_of_the_scales_and_centres_alone_are_on_offer() -> None:
    full, half, centred = channel_choices(uneven(), Options(weights="per-tensor"))
    assert full.shift == half.shift == centred.shift
    torch.testing.assert_close(torch.tensor(half.scale).square(), torch.tensor(full.scale))
    assert set(centred.scale) == {1.0}
    assert len(channel_choices(uneven(has_bias=False), Options(weights="per-tensor"))) == 2  # no centres to take off


def test_a_thinned_recording_stands_for_the_whole_one() -> None:
    item = recording(rows=4000)
    item.grad.mul_(torch.logspace(-2, 0, 4000)[:, None])
    thin, scaled = thinned(item, 500, seed=0), item.grad / item.grad.abs().max()
    assert len(thin.lhs) == len(thin.grad) == 500
    weighed = (thin.lhs.square().sum(1) * thin.grad.square().sum(1)).sum()
    assert float(weighed / (item.lhs.square().sum(1) * scaled.square().sum(1)).sum()) == pytest.approx(1, rel=0.05)
    assert thin.grad.abs().mean() > 2 * scaled.abs().mean()  # rows that weigh much are drawn
    assert torch.equal(thinned(item, 4000, seed=0).lhs, item.lhs)
    assert not torch.equal(thinned(item, 500, seed=1).lhs, thin.lhs)


def test_a_row_of_huge_values_is_among_the_thinned() -> None:
    item = recording(rows=4000)
    item.lhs[1234] *= 100
    assert all(item.lhs[1234].tolist() in thinned(item, 200, seed).lhs.tolist() for seed in range(5))


@pytest.mark.parametrize("scale", [1e-30, 5e37])
def test_which_rows_are_thinned_does_not_depend_on_the_gradients_unit(scale: float) -> None:
    item = recording(rows=4000)
    other = thinned(replace(item, grad=item.grad * scale), 300, seed=0)
    assert torch.equal(other.lhs, thinned(item, 300, seed=0).lhs) and other.grad.isfinite().all()


def test_only_choices_that_look_best_on_a_few_rows_are_searched() -> None:
    item, options = uneven(rows=2000), Options(weights="per-tensor", **QUICK)
    choices = [None, *channel_choices(item, options)]
    losses = [search_site(with_channels(item, choice), options).losses["hessian"] for choice in choices]
    kept = likeliest(item, choices, options)
    assert choices[losses.index(min(losses))] in kept
    assert None not in kept and losses[0] > 4 * min(losses)
    assert likeliest(item, choices, replace(options, search="exhaustive")) == choices


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
    assert likeliest(item, list(choices), options) == [choices[index] for index in kept]
    assert seen == [(PREVIEW_ROWS, PREVIEW_CANDIDATES)] * 3
    seen.clear()
    likeliest(item, list(choices), replace(options, candidates=2))
    assert seen == [(PREVIEW_ROWS, 2)] * 3


def test_tokens_of_huge_values_are_seen_without_gradients_too() -> None:
    """As class tokens: at a fixed stride of rows, a preview would see none of them, and leave the channels alone."""
    generator = torch.Generator().manual_seed(0)
    lhs, rhs, grad = (torch.randn(*shape, generator=generator) for shape in ((6304, 48), (48, 48), (6304, 48)))
    lhs[torch.arange(32) * 197, :8] *= 10
    item = Recording(Site("fc", "linear", "fc", norm="norm", has_bias=True), lhs, rhs, grad)
    assert plan_site(item, Options(metric="mse", candidates=40)).channels is not None


def test_gradients_near_the_end_of_float32_are_no_error() -> None:
    item = uneven(rows=2000)
    plan = plan_site(replace(item, grad=item.grad / item.grad.abs().max() * 3e38), Options(**QUICK))
    assert plan.channels is not None


def test_the_fewer_bits_a_weight_has_the_less_its_rows_are_scaled() -> None:
    item = uneven()
    item.rhs.copy_(recording(inputs=32).rhs)  # rows alike: what evens out the inputs makes the weight uneven
    fine, coarse = (channel_choices(item, Options(weight_bits=k, activation_bits=11 - k))[0].scale for k in (8, 3))
    spread = [float(torch.tensor(scale).log().std()) for scale in (fine, coarse)]
    assert spread[1] < 0.9 * spread[0]


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


def test_channels_are_left_alone_where_nothing_can_be_folded_or_too_few_rows_count() -> None:
    item = uneven()
    assert channel_choices(replace(item, site=replace(item.site, norm="")), Options()) == []
    assert channel_choices(item, Options.paper()) == channel_choices(item, Options.base()) == []
    assert channel_choices(item, Options(metric="cosine")) == []
    assert len(channel_choices(item, Options())) == 1
    item.grad[400:] = 0.0  # as of all tokens but the class token in a last block
    assert channel_choices(item, Options()) == []


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
    monkeypatch.setattr("ptq4vit_onnx.calibration.bias_correction.CHUNK_ELEMENTS", 64 * 7)
    assert bias_correction(item, plan, "hessian") == pytest.approx(whole, abs=2e-6)  # a unit in the last place of 8


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
