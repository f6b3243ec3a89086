"""The search of both sides of a product: separately, alternating, and among several forms."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from ptq4vit_onnx.calibration.calibrate import plan_site
from ptq4vit_onnx.calibration.grids import Grid, UniformGrid, form_grid, uniform_grid
from ptq4vit_onnx.calibration.objective import Objective, objective_of
from ptq4vit_onnx.calibration.search import ProductSearch
from ptq4vit_onnx.network.planned_product import quantized_product
from ptq4vit_onnx.plan.options import Options
from ptq4vit_onnx.plan.quantizers import Affine, Uniform
from tests.calibration.recordings import attention, linear


def test_heads_are_searched_independently() -> None:
    recording = attention()
    options = Options(search="exhaustive")
    objective = objective_of(recording, "hessian")
    grid = uniform_grid(recording.lhs, 6, 3, -3, options)
    rhs = Uniform(6, (0.125,))
    together = ProductSearch(objective, options, weight=False).search("lhs", grid, rhs)
    for head in range(3):
        part = slice(head, head + 1)
        assert objective.h is not None
        single = Objective(objective.lhs[:, part], objective.rhs[:, part], objective.h[:, part], "hessian")
        alone = ProductSearch(single, options, weight=False).search(
            "lhs", uniform_grid(recording.lhs[:, part], 6, 1, -3, options), rhs
        )
        assert isinstance(together, Uniform) and isinstance(alone, Uniform)
        assert together.scale[head] == alone.scale[0]


@pytest.mark.parametrize("search", ["fast", "exhaustive"])
@pytest.mark.parametrize("cheap", [0, 1_000_000_000])
def test_what_no_gradient_reaches_is_not_clipped(search: Any, cheap: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ptq4vit_onnx.calibration.successive_halving.CHEAP", cheap)
    item = linear(rows=3000)
    item.grad[:, 5] = 0
    plan = plan_site(item, Options(search=search))
    assert isinstance(plan.rhs, Uniform)
    assert plan.rhs.scale[5] * 127 >= float(item.rhs[:, 5].abs().max())


def test_without_any_gradient_all_rows_count() -> None:
    item = linear(rows=300)
    item.lhs[0] = 0
    plan = plan_site(replace(item, grad=torch.zeros_like(item.grad)), Options())
    exact = item.lhs @ item.rhs
    assert (quantized_product(item.lhs, item.rhs, plan) - exact).norm() < 0.02 * exact.norm()


def test_searched_separately_each_side_is_the_best_next_to_the_other_in_float() -> None:
    recording, options = linear(), Options(search="exhaustive", rounds=0, weight_bits=4, activation_bits=4)
    product = ProductSearch(objective_of(recording, "hessian"), options, weight=True)
    lhs_grid = uniform_grid(recording.lhs, 4, 1, -3, options)
    rhs_grid = uniform_grid(recording.rhs, 4, 1, -1, options)
    found = product.run([lhs_grid], rhs_grid, Uniform(4, (1.0,)))
    out, h = product.whole.out, product.whole.h
    assert h is not None
    left = [float((h * (q.fake_quantize(recording.lhs) @ recording.rhs - out) ** 2).sum()) for q in every(lhs_grid)]
    right = [float((h * (recording.lhs @ q.fake_quantize(recording.rhs) - out) ** 2).sum()) for q in every(rhs_grid)]
    assert found.lhs == every(lhs_grid)[int(np.argmin(left))]
    assert found.rhs == every(rhs_grid)[int(np.argmin(right))]


def every(grid: UniformGrid) -> list[Uniform]:
    return [grid.pick([index]) for index in range(grid.count)]


def test_searched_separately_the_form_with_the_smaller_loss_of_both_sides_is_taken() -> None:
    recording = linear()
    recording = replace(recording, lhs=recording.lhs.abs())  # a symmetric range wastes half its codes on these
    options = Options(rounds=0, weight_bits=8, activation_bits=3)
    product = ProductSearch(objective_of(recording, "hessian"), options, weight=True)
    grids: list[Any] = [uniform_grid(recording.lhs, 3, 1, -3, options), form_grid(Affine, recording.lhs, 3, options)]
    rhs_grid = uniform_grid(recording.rhs, 8, 1, -1, options)
    assert isinstance(product.run(grids, rhs_grid, Uniform(8, (1.0,))).lhs, Affine)


@pytest.mark.parametrize(("weight", "order"), [(True, ["rhs", "lhs", "rhs", "lhs"]), (False, ["lhs", "rhs"] * 2)])
def test_weights_take_the_first_turn_of_every_round(
    weight: bool, order: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    turns: list[str] = []
    recording = linear() if weight else attention()
    options = Options(rounds=2, weight_bits=3, activation_bits=3, twin="none", activations="symmetric")
    product = ProductSearch(objective_of(recording, "hessian"), options, weight)
    search = product.search

    def noted(side: Any, *rest: Any) -> Any:
        turns.append(side)
        return search(side, *rest)

    monkeypatch.setattr(product, "search", noted)
    product.run([uniform_grid(recording.lhs, 3, 1, -3, options)], uniform_grid(recording.rhs, 3, 1, -1, options),
                Uniform(3, (0.5,)))  # fmt: skip
    assert turns == order


def test_another_left_form_goes_on_where_its_first_round_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    turns: list[tuple[str, str]] = []
    recording = linear()
    recording.lhs.add_(3)  # a zero point pays
    options = Options(rounds=3, weight_bits=3, activation_bits=3)
    product = ProductSearch(objective_of(recording, "hessian"), options, weight=True)
    search = product.search

    def noted(side: Any, grid: Any, *rest: Any) -> Any:
        turns.append((side, type(grid).__name__))
        return search(side, grid, *rest)

    monkeypatch.setattr(product, "search", noted)
    forms: list[Grid] = [uniform_grid(recording.lhs, 3, 1, -3, options), form_grid(Affine, recording.lhs, 3, options)]
    product.run(forms, uniform_grid(recording.rhs, 3, 1, -1, options), Uniform(3, (0.5,)))
    second = turns.index(("lhs", "ListGrid"))
    assert [side for side, _ in turns[second : second + 3]] == ["lhs", "rhs", "lhs"]
