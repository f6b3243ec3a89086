"""Successive halving: its choice against exhaustive search, and how little it measures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from ptq4vit_onnx.calibration.grids import covering, uniform_grid
from ptq4vit_onnx.calibration.objective import Float, Objective, Product, Side, Turn, objective_of
from ptq4vit_onnx.calibration.sampling import PILOT_SHARE, PILOTS, Pilot, sketch_matrices, weigh_rows_by_errors
from ptq4vit_onnx.calibration.search import ProductSearch
from ptq4vit_onnx.calibration.successive_halving import (
    MOST_HEADS,
    NEIGHBOURS,
    RANKED,
    SHORTLIST,
    Survivors,
    build_ladder,
    scouts,
    with_neighbours,
)
from ptq4vit_onnx.plan.options import Options
from ptq4vit_onnx.plan.quantizers import Uniform
from tests.calibration.recordings import attention, linear


def note_measurements(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """A list that every later measurement adds to: the outputs of the sample, and how many candidates it measured."""
    measured: list[tuple[int, int]] = []
    measure = Product.measure

    def noted(self: Product, objective: Objective, turn: Turn, fixed: Tensor, candidates: Tensor) -> Tensor:
        measured.append((objective.size, len(candidates)))
        return measure(self, objective, turn, fixed, candidates)

    monkeypatch.setattr(Product, "measure", noted)
    monkeypatch.setattr("ptq4vit_onnx.calibration.successive_halving.CHEAP", 0)
    return measured


@pytest.mark.parametrize("metric", ["hessian", "mse", "cosine", "pearson"])
@pytest.mark.parametrize("side", ["lhs", "rhs"])
@pytest.mark.parametrize("bits", [4, 8])
def test_fast_search_finds_the_exhaustive_optimum_within_three_percent(
    metric: str, side: Any, bits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ptq4vit_onnx.calibration.successive_halving.CHEAP", 0)
    recording = linear(rows=6000)
    options = Options(metric=metric, search="exhaustive")  # type: ignore[arg-type]
    exhaustive = ProductSearch(objective_of(recording, options.metric), options, weight=True)
    fast = ProductSearch(objective_of(recording, options.metric), replace(options, search="fast"), weight=True)
    x, fixed, axis = (recording.lhs, recording.rhs, -3) if side == "lhs" else (recording.rhs, recording.lhs, -1)
    grid, other = uniform_grid(x, bits, 1, axis, options), covering(fixed, bits, 1, -1)
    losses = []
    for search in (fast, exhaustive):
        found = search.search(side, grid, other)
        pair = (found, other) if side == "lhs" else (other, found)
        losses.append(exhaustive.product.loss(pair[0], pair[1]).item())
    assert losses[0] <= losses[1] * 1.03


@pytest.mark.parametrize("bits", [4, 8])
def test_of_two_activations_the_fast_search_finds_the_exhaustive_optimum(bits: int, monkeypatch: Any) -> None:
    monkeypatch.setattr("ptq4vit_onnx.calibration.successive_halving.CHEAP", 0)
    recording, options = attention(batch=16), Options(activation_bits=bits)
    exhaustive = ProductSearch(objective_of(recording, "hessian"), replace(options, search="exhaustive"), weight=False)
    fast = ProductSearch(objective_of(recording, "hessian"), options, weight=False)
    grid, other = uniform_grid(recording.rhs, bits, 3, -3, options), Uniform(bits, (0.125,))
    losses = [exhaustive.product.loss(other, search.search("rhs", grid, other)).item() for search in (fast, exhaustive)]
    assert losses[0] <= losses[1] * 1.05


def test_later_rounds_look_at_the_shortlist_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    recording, options = linear(rows=4000), Options()
    search = ProductSearch(objective_of(recording, "hessian"), options, weight=True)
    grid, other = uniform_grid(recording.lhs, 8, 1, -3, options), Uniform(8, (0.015625,))
    measured = note_measurements(monkeypatch)
    first = search.search("lhs", grid, other)
    assert max(count for _, count in measured) > SHORTLIST
    measured.clear()
    assert search.search("lhs", grid, other, again=True) == first
    assert max(count for _, count in measured) == SHORTLIST


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 6, 7, 8, 20, 99, 100])
def test_scouts_and_their_neighbours_are_all_candidates(count: int) -> None:
    every = torch.arange(count).flip(0)[:, None].expand(-1, 3)
    few = scouts(every)
    assert len(few) == -(-count // NEIGHBOURS)
    around = with_neighbours(few, count)
    assert all(set(column.tolist()) == set(range(count)) for column in around.T)


@pytest.mark.parametrize("weights", ["per-tensor", "per-channel"])
@pytest.mark.parametrize(("side", "weight"), [("lhs", True), ("rhs", True), ("lhs", False), ("rhs", False)])
def test_samples_grow_while_candidates_shrink_and_all_costs_a_tenth_of_exhaustive_search(
    side: Side, weight: bool, weights: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    recording, options = linear(rows=6000) if weight else attention(16, tokens=200), Options(weights=weights)
    search = ProductSearch(objective_of(recording, "hessian"), options, weight)
    grid = uniform_grid(recording.lhs if side == "lhs" else recording.rhs, 8, 1, -1, options)
    measured = note_measurements(monkeypatch)
    search.search(side, grid, Float(Uniform(8, (1.0,))))
    sizes, counts = zip(*measured, strict=True)
    assert list(sizes) == sorted(set(sizes))
    after_scouts = counts[1:] if weight and side == "rhs" else counts
    assert list(after_scouts) == sorted(set(after_scouts), reverse=True)
    assert sum(size * count for size, count in measured) <= search.whole.size * grid.count / 10


def test_a_weight_is_scouted_before_all_candidates_near_the_best_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    recording, options = linear(rows=3000), Options(weights="per-tensor")
    search = ProductSearch(objective_of(recording, "hessian"), options, weight=True)
    measured = note_measurements(monkeypatch)
    search.search("rhs", uniform_grid(recording.rhs, 8, 1, -1, options), Float(Uniform(8, (1.0,))))
    (_, scouted), (_, near), *_ = measured
    assert scouted == -(-options.candidates // NEIGHBOURS)
    assert near < options.candidates and near % NEIGHBOURS == 0


@pytest.mark.parametrize(("candidates", "preselected"), [(20, False), (200, True)])
def test_an_estimate_preselects_where_an_activation_next_to_a_weight_has_many_candidates(
    candidates: int, preselected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    recording, options = linear(rows=3000), Options(candidates=candidates)
    search = ProductSearch(objective_of(recording, "hessian"), options, weight=True)
    measured = note_measurements(monkeypatch)
    search.search("lhs", uniform_grid(recording.lhs, 8, 1, -3, options), Float())
    assert measured[0][1] == (RANKED if preselected else candidates)


@pytest.mark.parametrize("metric", ["hessian", "cosine"])
@pytest.mark.parametrize("side", ["lhs", "rhs"])
def test_a_linears_rows_are_drawn_by_what_the_pilots_lose_on_them(
    side: Side, metric: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once for all rounds, by the errors of the side that is searched: on all rows in a sketch, on some exactly."""
    monkeypatch.setattr("ptq4vit_onnx.calibration.successive_halving.CHEAP", 0)
    monkeypatch.setattr("ptq4vit_onnx.calibration.search.PILOT_COLUMNS", 8)
    recording = linear(rows=6000)
    asked: list[tuple[list[tuple[Tensor, Tensor]], int]] = []

    def noted(objective: Objective, sketch: Objective, pilots: Sequence[Pilot], exact_rows: int) -> Objective:
        assert len(sketch.lhs) == len(objective.lhs) and sketch.rhs.shape[-1] == 8
        asked.append(([(pilot.exact(objective.lhs), pilot.sketched(sketch.lhs)) for pilot in pilots], exact_rows))
        return weigh_rows_by_errors(objective, sketch, pilots, exact_rows)

    monkeypatch.setattr("ptq4vit_onnx.calibration.sampling.weigh_rows_by_errors", noted)
    options = Options(metric=metric)
    search = ProductSearch(objective_of(recording, metric), options, weight=True)
    grid = uniform_grid(recording.lhs if side == "lhs" else recording.rhs, 8, 1, -1, options)
    other = Float(Uniform(8, (1.0,)))
    search.search(side, grid, other)
    search.search(side, grid, other, again=True)
    [(errors, exact_rows)] = asked
    assert len(errors) == len(PILOTS[side]) and exact_rows == 6000 // PILOT_SHARE
    candidate = grid.pick([int(PILOTS[side][-1] * (grid.count - 1))])
    lhs, rhs = recording.lhs, recording.rhs
    as_shipped = search.product.quantize_rhs(rhs, candidate, other)
    expected = (candidate.fake_quantize(lhs) - lhs) @ rhs if side == "lhs" else lhs @ (as_shipped - rhs)
    signed, _ = sketch_matrices(search.whole, 8, options.seed)
    torch.testing.assert_close(errors[-1], (expected, expected @ signed))


@pytest.mark.parametrize("side", ["lhs", "rhs"])
@pytest.mark.parametrize("metric", ["mse", "cosine", "pearson"])
def test_a_few_rows_that_are_huge_are_not_clipped_away_without_gradients_either(
    metric: Any, side: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three of 3000 rows have most of the output; drawn evenly, samples would have one or none of them."""
    monkeypatch.setattr("ptq4vit_onnx.calibration.successive_halving.CHEAP", 0)
    recording = linear(rows=3000, outputs=520)
    recording.lhs[::1000] *= 40
    options = Options(metric=metric, candidates=40)
    grid = uniform_grid(recording.lhs if side == "lhs" else recording.rhs, 8, 1, -1, options)
    other = Float(Uniform(8, (1.0,)))
    losses = []
    for search in ("fast", "exhaustive"):
        product = ProductSearch(objective_of(recording, metric), replace(options, search=search), weight=True)
        found = product.search(side, grid, other)
        lhs, rhs = (found, Float()) if side == "lhs" else (other, found)
        losses.append(float(product.product.loss(lhs, rhs)))
    assert losses[0] <= 1.03 * losses[1]


@pytest.mark.parametrize("side", ["lhs", "rhs"])
def test_a_sample_that_is_the_whole_product_is_the_last(side: Side, monkeypatch: pytest.MonkeyPatch) -> None:
    recording, options = linear(rows=150), Options()
    search = ProductSearch(objective_of(recording, "hessian"), options, weight=True)
    measured = note_measurements(monkeypatch)
    x, axis = (recording.lhs, -3) if side == "lhs" else (recording.rhs, -1)
    search.search(side, uniform_grid(x, 8, 1, axis, options), Float(Uniform(8, (1.0,))))
    sizes = [size for size, _ in measured]
    assert sizes.count(search.whole.size) == 1 and sizes[-1] == search.whole.size


def test_the_mean_over_samples_weighs_them_by_the_squares_of_their_rows() -> None:
    survivors = Survivors.of(torch.tensor([[7], [8], [9]]))
    survivors = survivors.averaged_with(torch.tensor([[1.0], [2.0], [4.0]]), 10).keep(torch.tensor([[2], [0]]))
    assert survivors.candidates.tolist() == [[9], [7]]
    torch.testing.assert_close(survivors.losses, torch.tensor([[4.0], [1.0]], dtype=torch.float64))
    survivors = survivors.averaged_with(torch.tensor([[8.0], [5.0]]), 30)
    torch.testing.assert_close(survivors.losses, torch.tensor([[7.6], [4.6]], dtype=torch.float64))


def test_behind_an_estimate_a_candidate_takes_the_better_of_its_two_places() -> None:
    losses = torch.tensor([[9.0], [8.0], [1.0], [7.0]])  # in the estimate's order
    survivors = Survivors.of(torch.arange(4)[:, None], estimated=True).averaged_with(losses, 10)
    assert survivors.rank().flatten().tolist() == [0, 2, 1, 3]  # places 0, 1, 0, 1; ties go by the estimate
    assert replace(survivors, estimated=False).rank().flatten().tolist() == [2, 3, 1, 0]


def test_images_are_limited_by_the_heads_of_all_together() -> None:
    ladder = build_ladder(objective_of(attention(MOST_HEADS, tokens=4), "hessian"), False, "lhs", seed=0)
    assert ladder.fixed.shape[:2] == (MOST_HEADS // 3, 3)


@pytest.mark.parametrize(("side", "weight"), [("lhs", True), ("rhs", True), ("lhs", False), ("rhs", False)])
def test_the_fixed_sides_of_all_samples_fit_them(side: Side, weight: bool) -> None:
    objective = objective_of(linear(rows=5000) if weight else attention(tokens=200), "hessian")
    ladder = build_ladder(objective, weight, side, seed=0)
    steps = ladder.climb(ladder.fixed, 100, 100)
    assert len(steps) == len(ladder.rungs)
    for step in steps:
        expected = step.sample.lhs if weight and side == "rhs" else step.sample.rhs
        torch.testing.assert_close(step.fixed, expected)


def test_of_few_candidates_fewer_are_left() -> None:
    rung = build_ladder(objective_of(attention(), "hessian"), False, "lhs", seed=0).rungs[-1]
    assert rung.leaves(1000) == rung.most and rung.leaves(11) == 3 and rung.leaves(1) == 1


def test_one_image_is_enough() -> None:
    ladder = build_ladder(objective_of(attention(batch=1, tokens=200), "hessian"), False, "lhs", seed=0)
    assert {rung.sample.objective.lhs.shape[0] for rung in ladder.rungs} == {1}
