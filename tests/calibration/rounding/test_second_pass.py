"""The second pass: whose weights are rounded together, next to which inputs, and that no plan gets worse by it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from ptq4vit_onnx.calibration.calibrate import plan_site
from ptq4vit_onnx.calibration.channel_scales import with_channels
from ptq4vit_onnx.calibration.rounding import second_pass
from ptq4vit_onnx.calibration.rounding.moments import Moments, MomentSums
from ptq4vit_onnx.calibration.rounding.nearest_plane import cost
from ptq4vit_onnx.calibration.rounding.second_pass import compensate, compensated_plan, listeners_of, product_of
from ptq4vit_onnx.network.planned_product import quantized_product, shipped_sides
from ptq4vit_onnx.network.recording import Recording
from ptq4vit_onnx.plan.code_file import require_sound
from ptq4vit_onnx.plan.options import Options
from ptq4vit_onnx.plan.outlier_split import COLUMNS, ROWS, without_channels
from ptq4vit_onnx.plan.quantizers import Compensated, Pixels, Uniform
from ptq4vit_onnx.plan.saturation_safe_weights import shipped
from ptq4vit_onnx.plan.scale_plan import SitePlan
from ptq4vit_onnx.plan.sites import Site
from tests.calibration.recordings import QUICK, attention, recording, uneven
from tests.calibration.rounding.inputs import alike, drawn

W4 = Options(weight_bits=4, **QUICK)
PIXELS = Pixels.of((0.5, 0.25, 0.5), (0.25, 0.5, 0.125), 3)


def plain() -> Recording:
    """A linear whose inputs are alike."""
    return replace(recording(), lhs=alike(300, 64) / 4)


def with_outliers() -> Recording:
    item = plain()
    item.lhs[:, 17] *= 60
    return item


def with_folding() -> Recording:
    item = uneven()
    item.lhs.copy_(alike(600, 32) / 3 * torch.logspace(-3, 3, 32, base=2) + torch.linspace(-4, 4, 32))
    return item


def with_pixels() -> Recording:
    """A patch embedding of bytes, 16 pixels of three colours."""
    steps, zeros = torch.tensor(PIXELS.row_steps(48)), torch.tensor(PIXELS.row_zeros(48))
    bytes_ = (128 + 40 * alike(300, 48) / 3).round().clamp(0, 255)
    return Recording(Site("patch", "conv", "patch"), (bytes_ - 128 + zeros) * steps, drawn(48, 24), drawn(300, 24))


ITEMS: dict[str, Callable[[], Recording]] = {
    "plain": plain, "outliers": with_outliers, "channels folded": with_folding, "pixels": with_pixels,
}  # fmt: skip


def searched(name: str, options: Options = W4) -> tuple[Recording, SitePlan, Moments]:
    item = ITEMS[name]()
    plan = plan_site(item, options, PIXELS if name == "pixels" else None)
    has = {"outliers": plan.outliers, "channels folded": plan.channels, "pixels": plan.lhs.colours or None}
    assert [key for key, value in has.items() if value is not None] == ([] if name == "plain" else [name])
    sums = listeners_of({"site": plan}, options)["site"]
    sums(item.lhs)(item.grad)
    return item, plan, sums.take()


def lost(item: Recording, plan: SitePlan) -> float:
    """sum d |q (Q - W)|^2 of the main product as the model would compute it, in values and not in steps."""
    seen = with_channels(item, plan.channels)
    weight = seen.rhs if plan.outliers is None else without_channels(seen.rhs, plan.outliers.channels, ROWS)
    error = (plan.lhs.fake_quantize(seen.lhs) @ (shipped_sides(seen.rhs, plan)[0] - weight)).double()
    return float((item.grad.double().square().mean(1).sqrt() * error.square().sum(1)).sum())


@pytest.mark.parametrize("name", ITEMS)
def test_the_moments_are_of_the_product_that_ships(name: str) -> None:
    """What a weight is rounded by falls by as much as the product's errors do, in channels and steps as they are."""
    item, plan, moments = searched(name)
    better = compensated_plan(item, moments, plan, W4)
    weight = product_of(item, plan).rhs.contiguous()
    costs = [cost(weight, shipped(weight, plan.lhs.in_steps, each.rhs), moments) for each in (plan, better)]
    before, after = lost(item, plan), lost(item, better)
    # Moments are float32 sums over the rows, of whose squares most cancel: relative to all of them.
    rounding = len(item.lhs) * 2**-24 * abs(costs[0])
    assert costs[0] - costs[1] == pytest.approx(before - after, abs=rounding)
    assert before - after > 10 * rounding
    assert isinstance(better.rhs, Compensated) and after < 0.7 * before


def test_the_product_is_the_one_that_the_search_looked_at() -> None:
    item, plan, _ = searched("outliers")
    main = product_of(item, plan)
    assert not main.lhs[:, 17].any() and not main.rhs[17].any()
    assert torch.equal(main.lhs, without_channels(item.lhs, [17], COLUMNS)) and item.lhs[:, 17].any()
    item, plan, _ = searched("channels folded")
    assert torch.equal(product_of(item, plan).lhs, with_channels(item, plan.channels).lhs)
    item, plan, _ = searched("pixels")
    main = product_of(item, plan)
    assert torch.allclose(main.lhs @ main.rhs, item.lhs @ item.rhs, rtol=0, atol=1e-3)
    assert not torch.allclose(main.rhs, item.rhs)


@pytest.mark.parametrize("name", ITEMS)
def test_its_loss_is_measured_again_as_the_search_measures_it(name: str) -> None:
    item, plan, moments = searched(name)
    better = compensated_plan(item, moments, plan, W4)
    main = product_of(item, plan)
    error = plan.lhs.in_steps.fake_quantize(main.lhs) @ shipped(main.rhs.contiguous(), plan.lhs.in_steps, better.rhs)
    squared = item.grad.double().square()
    squared /= squared.mean()
    expected = float((squared * (error - main.lhs @ main.rhs).double().square()).mean())
    assert better.losses["hessian"] == pytest.approx(expected, rel=1e-4)  # float32 products and sums
    assert better.losses["hessian"] < plan.losses["hessian"]
    kept = replace(better, rhs=plan.rhs, losses=plan.losses)
    assert kept == plan, "all else stays"


def test_outliers_stay_apart_and_the_codes_fit_their_file() -> None:
    item, plan, moments = searched("outliers")
    rhs = compensated_plan(item, moments, plan, W4).rhs
    assert isinstance(rhs, Compensated) and rhs.stored.values is not None
    assert not rhs.stored.values[17].any()
    require_sound(replace(plan, rhs=rhs), rhs.stored.values)


def test_a_plan_is_replaced_only_where_that_costs_less(monkeypatch: pytest.MonkeyPatch) -> None:
    item, plan, moments = searched("plain")
    better = compensated_plan(item, moments, plan, W4).rhs
    nearest = shipped(item.rhs, plan.lhs, plan.rhs)
    assert better != plan.rhs
    for rhs, taken in ((better, True), (plan.rhs, False), (Uniform(2, plan.rhs.scale), False)):
        monkeypatch.setattr(second_pass, "compensated", lambda *_, answer=rhs: answer)
        assert (compensated_plan(item, moments, plan, W4) is not plan) is taken
    assert cost(item.rhs, nearest, moments) > cost(item.rhs, shipped(item.rhs, plan.lhs, better), moments)


def test_biases_are_corrected_for_the_new_codes() -> None:
    options = replace(W4, bias_correction="always")
    item = plain()
    item.lhs.add_(0.4)
    plan = plan_site(item, options)
    sums = MomentSums(plan, crossed=False)
    sums(item.lhs)(item.grad)
    better = compensated_plan(item, sums.take(), plan, options)
    assert isinstance(better.rhs, Compensated) and better.bias_correction is not None
    corrected = torch.tensor(better.bias_correction)
    error = (quantized_product(item.lhs, item.rhs, better) - item.lhs @ item.rhs).mean(0)
    touched = corrected != 0
    assert touched.any() and better.bias_correction != plan.bias_correction
    assert (error + corrected)[touched].abs().max() < 1e-4


@pytest.mark.parametrize(
    ("options", "heard", "crossed"),
    [
        (W4, ["fc"], False),
        (replace(W4, activation_bits=6), ["fc"], True),
        (replace(W4, rounding="diffused"), [], False),
        (replace(W4, rounding="nearest"), [], False),
        (Options(**QUICK), [], False),
        (Options.paper(weight_bits=4), [], False),
    ],
)
def test_weights_below_eight_bits_are_heard_and_errors_of_inputs_below_eight_bits(
    options: Options, heard: list[str], crossed: bool
) -> None:
    side = Uniform(options.weight_bits, (0.5,))
    plans = {"qk": SitePlan("matmul", "other", side, side), "fc": SitePlan("linear", "other", side, side)}
    found = listeners_of(plans, options)
    assert list(found) == heard and all(sums.asks_crossed is crossed for sums in found.values())


def test_every_site_is_told_of_once_with_the_plan_it_gets() -> None:
    items = [replace(attention(), site=replace(attention().site, name="qk")), plain()]
    plans = {item.site.name: plan_site(item, W4) for item in items}
    sums, told = listeners_of(plans, W4), []

    def observed() -> Any:
        for item in items:
            if item.site.name in sums:
                sums[item.site.name](item.lhs)(item.grad)
            yield item

    found = compensate(observed(), sums, plans, W4, lambda item, plan: told.append((item.site.name, plan)))
    assert told == list(found.items()) and list(found) == ["qk", "fc"]
    assert found["qk"] is plans["qk"] and isinstance(found["fc"].rhs, Compensated)
    assert not isinstance(plans["fc"].rhs, Compensated), "the plans that were given stay"


def test_a_site_that_was_heard_and_not_recorded_is_not_left_as_it_was_in_silence() -> None:
    item = plain()
    plans = {"fc": plan_site(item, W4)}
    sums = listeners_of(plans, W4)
    sums["fc"](item.lhs)(item.grad)
    with pytest.raises(AssertionError, match="a site with moments was not recorded"):
        compensate([], sums, plans, W4)
