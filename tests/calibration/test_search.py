"""The search: its estimate against arithmetic by hand, its choice against exhaustive search."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from ptq4vit_onnx.calibration.calibrate import plan_site
from ptq4vit_onnx.calibration.estimate import lhs_terms, rank
from ptq4vit_onnx.calibration.grids import (
    Grid,
    ListGrid,
    UniformGrid,
    channel_grid,
    covering,
    factors,
    form_grid,
    group_reduce,
    uniform_grid,
)
from ptq4vit_onnx.calibration.halving import NEIGHBOURS, Known, scouts, with_neighbours
from ptq4vit_onnx.calibration.objective import Objective, objective_of
from ptq4vit_onnx.calibration.sampling import mix_of_columns, sample_rows
from ptq4vit_onnx.calibration.search import RANKED, SHORTLIST, Float, ProductSearch
from ptq4vit_onnx.network.planned_product import quantized_product
from ptq4vit_onnx.network.recording import Recording
from ptq4vit_onnx.plan.options import Options
from ptq4vit_onnx.plan.quantizers import Affine, Uniform
from ptq4vit_onnx.plan.sites import Site

SITE = Site("fc", "linear", "fc")


def linear(rows: int = 400, inputs: int = 24, outputs: int = 16, seed: int = 0) -> Recording:
    generator = torch.Generator().manual_seed(seed)
    lhs = torch.randn(rows, inputs, generator=generator)
    rhs = torch.randn(inputs, outputs, generator=generator) / 4
    return Recording(SITE, lhs, rhs, torch.randn(rows, outputs, generator=generator).pow(3))


def attention(batch: int = 6, heads: int = 3, seed: int = 0) -> Recording:
    generator = torch.Generator().manual_seed(seed)
    lhs = torch.randn(batch, heads, 20, 8, generator=generator) * torch.tensor([1.0, 4.0, 0.3])[:, None, None]
    rhs = torch.randn(batch, heads, 8, 20, generator=generator)
    grad = torch.randn(batch, heads, 20, 20, generator=generator)
    return Recording(Site("qk", "matmul", "attn", heads=heads), lhs, rhs, grad)


def test_one_value_by_hand_gives_the_exact_quadratic_and_cross_terms() -> None:
    # out = x w with x = 1.3, w = 0.9, quantised weight 1.0, h = 4: E0 = 1.3 * 0.1 = 0.13.
    # Candidate scale 1.0 rounds x to 1: e = -0.3, d = e * 1.0 + E0 = -0.17, loss = 4 * 0.17^2 = 0.1156.
    objective = Objective(torch.tensor([[1.3]]), torch.tensor([[0.9]]), torch.tensor([[4.0]]), "hessian")
    terms = lhs_terms(objective, torch.tensor([[1.0]]), 1, -3)
    assert terms.cross is not None and terms.cross.item() == pytest.approx(4 * 0.13 * 1.0, rel=1e-5)
    assert terms.quad.item() == pytest.approx(4.0)
    grid = ListGrid((Uniform(8, (1.0,)),))
    assert rank(objective, objective.lhs, grid, terms).item() == pytest.approx(4 * 0.17**2, rel=1e-4)


@pytest.mark.parametrize("metric", ["hessian", "mse", "cosine", "pearson"])
def test_a_float_other_side_is_the_case_of_no_error_on_it(metric: str) -> None:
    recording, options = linear(), Options(metric=metric)  # type: ignore[arg-type]
    objective = objective_of(recording, options.metric)
    grid = uniform_grid(objective.lhs, 5, 1, -3, options)
    shortened = rank(objective, objective.lhs, grid, lhs_terms(objective, None, 1, -3))
    whole = rank(objective, objective.lhs, grid, lhs_terms(objective, objective.rhs, 1, -3))
    torch.testing.assert_close(shortened, whole)


def test_with_one_input_channel_the_estimate_is_the_exact_loss_for_every_candidate() -> None:
    # With K = 1 the quadratic term has no off-diagonal part, so nothing is left to approximate.
    recording = linear(inputs=1, rows=50)
    options = Options()
    objective = objective_of(recording, "hessian")
    grid = form_grid(Affine, recording.lhs, 6, options)
    rhs = Uniform(6, (float(np.float32(0.02)),)).fake_quantize(recording.rhs)
    estimates = rank(objective, objective.lhs, grid, lhs_terms(objective, rhs, 1, -3))[:, 0]
    exact = torch.stack([objective.loss(q.fake_quantize(objective.lhs), rhs, 1, -3) for q in grid.quantizers])[:, 0]
    usable = exact < 100 * exact.min()
    torch.testing.assert_close(estimates[usable], exact[usable], rtol=2e-2, atol=0.0)


@pytest.mark.parametrize("rounded", [True, False])
@pytest.mark.parametrize("metric", ["hessian", "mse", "cosine", "pearson"])
def test_so_it_is_of_a_sample_whose_rows_stand_for_several(metric: Any, rounded: bool) -> None:
    recording = linear(inputs=1, rows=300)
    recording.lhs.mul_(torch.linspace(0.1, 3, 300)[:, None])
    objective, index = sample_rows(objective_of(recording, metric), 0, 60)
    assert index is not None
    grid = form_grid(Affine, recording.lhs, 6, Options())
    rhs = Uniform(6, (float(np.float32(0.02)),)).fake_quantize(recording.rhs) if rounded else None
    estimates = rank(objective, objective.lhs, grid, lhs_terms(objective, rhs, 1, -3))[:, 0]
    fixed = recording.rhs if rhs is None else rhs
    exact = torch.stack([objective.loss(q.fake_quantize(objective.lhs), fixed, 1, -3) for q in grid.quantizers])[:, 0]
    usable = exact < 100 * exact.min()
    torch.testing.assert_close(estimates[usable], exact[usable], rtol=2e-2, atol=1e-6)


@pytest.mark.parametrize("metric", ["hessian", "mse", "cosine", "pearson"])
@pytest.mark.parametrize("side", ["lhs", "rhs"])
@pytest.mark.parametrize("bits", [4, 8])
def test_fast_search_finds_the_exhaustive_optimum_within_three_percent(
    metric: str, side: Any, bits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ptq4vit_onnx.calibration.search.CHEAP", 0)
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
        losses.append(exhaustive.loss(exhaustive.whole, pair[0], pair[1], 1, -1).item())
    assert losses[0] <= losses[1] * 1.03


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


def test_rows_without_gradient_are_left_out_and_change_nothing() -> None:
    recording = linear()
    grad = recording.grad.clone()
    grad[50:] = 0
    sparse = objective_of(Recording(SITE, recording.lhs, recording.rhs, grad), "hessian")
    assert sparse.lhs.shape[0] == 50
    dense = objective_of(Recording(SITE, recording.lhs[:50], recording.rhs, grad[:50]), "hessian")
    quantized = Uniform(4, (0.5,)).fake_quantize
    a = sparse.loss(quantized(sparse.lhs), sparse.rhs, 1, -1)
    assert a.item() == dense.loss(quantized(dense.lhs), dense.rhs, 1, -1).item()


def test_exchanged_sides_have_the_same_loss() -> None:
    objective = objective_of(attention(), "hessian")
    lhs, rhs = (Uniform(4, (0.5,)).fake_quantize(side) for side in (objective.lhs, objective.rhs))
    torch.testing.assert_close(
        objective.transposed.loss(rhs.mT, lhs.mT, 3, -3), objective.loss(lhs, rhs, 3, -3), rtol=1e-4, atol=0.0
    )


@pytest.mark.parametrize("bits", [4, 8])
def test_of_two_activations_the_fast_search_finds_the_exhaustive_optimum(bits: int, monkeypatch: Any) -> None:
    monkeypatch.setattr("ptq4vit_onnx.calibration.search.CHEAP", 0)
    recording, options = attention(batch=16), Options(activation_bits=bits)
    exhaustive = ProductSearch(objective_of(recording, "hessian"), replace(options, search="exhaustive"), weight=False)
    fast = ProductSearch(objective_of(recording, "hessian"), options, weight=False)
    grid, other = uniform_grid(recording.rhs, bits, 3, -3, options), Uniform(bits, (0.125,))
    losses = [
        exhaustive.loss(exhaustive.whole, other, search.search("rhs", grid, other), 1, -1).item()
        for search in (fast, exhaustive)
    ]
    assert losses[0] <= losses[1] * 1.05


def test_later_rounds_look_at_the_shortlist_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ptq4vit_onnx.calibration.search.CHEAP", 0)
    recording, options = linear(rows=4000), Options()
    product = ProductSearch(objective_of(recording, "hessian"), options, weight=True)
    grid, other = uniform_grid(recording.lhs, 8, 1, -3, options), Uniform(8, (0.015625,))
    counts, measure = [], product.measure

    def counted(*given: Any) -> Any:
        counts.append(len(given[-1]))
        return measure(*given)

    monkeypatch.setattr(product, "measure", counted)
    first = product.search("lhs", grid, other)
    assert counts == [RANKED, 12, 4]
    assert product.search("lhs", grid, other, again=True) == first
    assert counts[3:] == [SHORTLIST, 4]


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 6, 7, 8, 20, 99, 100])
def test_scouts_and_their_neighbours_are_all_candidates(count: int) -> None:
    every = torch.arange(count).flip(0)[:, None].expand(-1, 3)
    few = scouts(every)
    assert len(few) == -(-count // NEIGHBOURS)
    around = with_neighbours(few, count)
    assert all(set(column.tolist()) == set(range(count)) for column in around.T)


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        ("per-tensor", [(32, 25), (64, 60), (192, 12), (512, 4)]),
        ("per-channel", [(48, 25), (192, 60), (576, 14), (1536, 6)]),
    ],
)
def test_a_weight_is_scouted_before_all_candidates_near_the_best_are_measured(
    weights: Any, expected: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ptq4vit_onnx.calibration.search.CHEAP", 0)
    recording = linear(rows=3000)
    options = Options(weights=weights)
    search = ProductSearch(objective_of(recording, "hessian"), options, weight=True)
    tried: list[tuple[int, int]] = []
    measure = search.measure

    def counted(product: Objective, *rest: Any) -> torch.Tensor:
        tried.append((len(product.lhs), len(rest[-1])))
        return measure(product, *rest)

    monkeypatch.setattr(search, "measure", counted)
    search.search("rhs", uniform_grid(recording.rhs, 8, 1, -1, options), Float(Uniform(8, (1.0,))))
    assert tried == expected


@pytest.mark.parametrize("metric", ["hessian", "cosine"])
@pytest.mark.parametrize(("side", "probes"), [("lhs", 1), ("rhs", 2)])
def test_a_linears_rows_are_drawn_by_what_the_probes_lose_on_them(
    side: Any, probes: int, metric: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once for both rounds, by the errors of the side that is searched: all rows in a mix of columns, some exactly."""
    monkeypatch.setattr("ptq4vit_onnx.calibration.search.CHEAP", 0)
    monkeypatch.setattr("ptq4vit_onnx.calibration.search.PROBED_COLUMNS", 8)
    recording = linear(rows=6000)
    asked: list[tuple[list[tuple[torch.Tensor, torch.Tensor]], int]] = []
    drawn = Objective.drawn_by_errors

    def noted(self: Objective, mixed: Objective, moves: Any, exactly: int) -> Objective:
        assert len(mixed.lhs) == len(self.lhs) and mixed.rhs.shape[-1] == 8
        asked.append(([(move(self.lhs), in_mix(mixed.lhs)) for move, in_mix in moves], exactly))
        return drawn(self, mixed, moves, exactly)

    monkeypatch.setattr(Objective, "drawn_by_errors", noted)
    options = Options(metric=metric)
    search = ProductSearch(objective_of(recording, metric), options, weight=True)
    grid = uniform_grid(recording.lhs if side == "lhs" else recording.rhs, 8, 1, -1, options)
    other = Float(Uniform(8, (1.0,)))
    search.search(side, grid, other)
    search.search(side, grid, other, again=True)
    [(moves, exactly)] = asked
    assert len(moves) == probes and exactly == 1500
    clipping = grid.pick([29])  # 0.3 of a hundred
    lhs, rhs = recording.lhs, recording.rhs
    as_shipped = search.quantize_rhs(rhs, clipping, other)
    moved = (clipping.fake_quantize(lhs) - lhs) @ rhs if side == "lhs" else lhs @ (as_shipped - rhs)
    signed, _ = mix_of_columns(search.whole, 8, options.seed)
    torch.testing.assert_close(moves[-1], (moved, moved @ signed))


@pytest.mark.parametrize("side", ["lhs", "rhs"])
@pytest.mark.parametrize("metric", ["mse", "cosine", "pearson"])
def test_a_few_rows_that_are_huge_are_not_clipped_away_without_gradients_either(
    metric: Any, side: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three of 3000 rows have most of the output; drawn evenly, samples would have one or none of them."""
    monkeypatch.setattr("ptq4vit_onnx.calibration.search.CHEAP", 0)
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
        losses.append(float(product.loss(product.whole, lhs, rhs, 1, -1)))
    assert losses[0] <= 1.03 * losses[1]


@pytest.mark.parametrize(("most", "at_once"), [(400 * 24, True), (400 * 24 - 1, False)])
def test_a_large_left_side_is_not_copied_by_every_thread(
    most: int, at_once: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []

    def noted(function: Any, items: Any) -> Any:
        calls.append(len(items))
        return [function(item) for item in items]

    monkeypatch.setattr("ptq4vit_onnx.calibration.search.MOST_AT_ONCE", most)
    monkeypatch.setattr("ptq4vit_onnx.calibration.search.side_by_side", noted)
    recording, options = linear(), Options(search="exhaustive")
    search = ProductSearch(objective_of(recording, "hessian"), options, weight=True)
    search.search("lhs", uniform_grid(recording.lhs, 8, 1, -1, options), Float())
    assert calls == ([100] if at_once else [])


@pytest.mark.parametrize("side", ["lhs", "rhs"])
def test_a_sample_that_is_the_whole_product_is_the_last(side: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ptq4vit_onnx.calibration.search.CHEAP", 0)
    recording, options = linear(rows=150), Options()
    product = ProductSearch(objective_of(recording, "hessian"), options, weight=True)
    measured: list[int] = []
    measure = product.measure

    def noted(sample: Objective, *rest: Any) -> Any:
        measured.append(len(sample.lhs))
        return measure(sample, *rest)

    monkeypatch.setattr(product, "measure", noted)
    x, axis = (recording.lhs, -3) if side == "lhs" else (recording.rhs, -1)
    product.search(side, uniform_grid(x, 8, 1, axis, options), Float(Uniform(8, (1.0,))))
    assert measured.count(150) == 1 and measured[-1] == 150


def test_what_smaller_samples_said_counts_by_the_square_of_their_rows() -> None:
    known = Known.nothing_of(torch.zeros(3, 1, dtype=torch.int64))
    known = known.and_of(torch.tensor([[1.0], [2.0], [4.0]]), 10).of(torch.tensor([[2], [0]]))
    torch.testing.assert_close(known.losses, torch.tensor([[4.0], [1.0]], dtype=torch.float64))
    known = known.and_of(torch.tensor([[8.0], [5.0]]), 30)
    torch.testing.assert_close(known.losses, torch.tensor([[7.6], [4.6]], dtype=torch.float64))


def test_cosine_and_pearson_equal_their_definitions() -> None:
    recording = linear()
    quantized = Uniform(3, (0.75,)).fake_quantize(recording.lhs)
    out, moved = (recording.lhs @ recording.rhs).double().flatten(), (quantized @ recording.rhs).double().flatten()
    cosine = objective_of(recording, "cosine").loss(quantized, recording.rhs, 1, -1).item()
    pearson = objective_of(recording, "pearson").loss(quantized, recording.rhs, 1, -1).item()
    assert cosine == pytest.approx(1 - torch.cosine_similarity(out, moved, dim=0).item(), abs=1e-6)
    assert pearson == pytest.approx(1 - np.corrcoef(out, moved)[0, 1], abs=1e-6)


def test_a_metric_of_directions_says_nothing_of_an_output_that_is_gone() -> None:
    """Not 1 - residue / 1e-30, nor a root of less than zero."""
    item = linear(rows=50, outputs=1)
    for metric in ("cosine", "pearson"):
        objective = Objective(item.lhs, item.rhs, None, metric)
        gone = objective.loss(item.lhs * 1e-12, item.rhs, 1, -1)
        assert gone == 1
        flat = Objective(torch.full((50, 1), 0.1), torch.full((1, 1), 0.3), None, metric)
        assert 0 <= float(flat.loss(flat.lhs * 1.1, flat.rhs, 1, -1)) <= 1


@pytest.mark.parametrize("search", ["fast", "exhaustive"])
@pytest.mark.parametrize("cheap", [0, 1_000_000_000])
def test_what_no_gradient_reaches_is_not_clipped(search: Any, cheap: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ptq4vit_onnx.calibration.search.CHEAP", cheap)
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


def test_candidates_span_alpha_to_beta_without_zero() -> None:
    assert factors(Options(candidates=4, beta=1.2)).tolist() == pytest.approx([0.3, 0.6, 0.9, 1.2])
    assert factors(Options(candidates=3, alpha=0.5, beta=1.5)).tolist() == pytest.approx([0.5, 1.0, 1.5])


def test_channel_grid_reaches_the_scale_at_which_no_pair_is_unsafe() -> None:
    weight = torch.tensor([[1.0, 0.5], [1.0, -0.5], [0.1, 0.1], [0.0, 0.0]])
    grid = channel_grid(weight, 8, Options(candidates=12, beta=1.2))
    assert grid.scales[-3].tolist() == pytest.approx([2.0 / 128, 0.5 / 128])  # the candidate of factor 1.0


def test_group_reduce_cuts_the_axis_into_equal_consecutive_parts() -> None:
    x = torch.arange(12.0).reshape(2, 6)
    assert group_reduce(x, 3, -1, "sum").tolist() == [0 + 1 + 6 + 7, 2 + 3 + 8 + 9, 4 + 5 + 10 + 11]
    assert group_reduce(x.reshape(2, 3, 2, 1), 3, -3, "amax").tolist() == [7, 9, 11]


def test_apart_each_side_is_the_best_next_to_the_other_in_float() -> None:
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


def test_apart_the_form_with_the_smaller_loss_of_both_sides_is_taken() -> None:
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
