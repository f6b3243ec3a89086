"""Samples of a product: what they keep, and that their losses stand for the whole one's."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ptq4vit_onnx.calibration.objective import Objective
from ptq4vit_onnx.calibration.sampling import (
    Pilot,
    draw,
    draw_fixed_rows,
    draw_rows_and_sketch_columns,
    losses_of_rows,
    rows_of,
    sample_entries,
    sample_rows,
    sketch_columns,
    sketch_matrices,
    weigh_rows_by_errors,
)
from ptq4vit_onnx.plan.quantizers import Uniform

round_off = Uniform(5, (0.25,)).fake_quantize


def product(rows: int = 4000, heads: int = 0, batch: int = 6, seed: int = 0, metric: str = "hessian") -> Objective:
    """A linear, or with heads a matmul of images that weigh very differently."""
    generator = torch.Generator().manual_seed(seed)
    leading = (batch, heads) if heads else ()
    lhs = torch.randn(*leading, rows, 24, generator=generator)
    rhs = torch.randn(*leading, 24, 16, generator=generator)
    h = torch.randn(*leading, rows, 16, generator=generator).pow(6)
    if heads:
        h = h * torch.rand(batch, 1, 1, 1, generator=generator).pow(4)
    return Objective(lhs, rhs, h if metric == "hessian" else None, metric)  # type: ignore[arg-type]


def loss_of_lhs(objective: Objective, rhs: Tensor) -> float:
    return float(objective.loss(round_off(objective.lhs), rhs, 1, -1))


def wide(columns: int = 600, heads: tuple[int, ...] = ()) -> Objective:
    """A product whose columns weigh very differently."""
    generator = torch.Generator().manual_seed(0)
    lhs = torch.randn(*heads, 16, 24, generator=generator)
    rhs = torch.randn(*heads, 24, columns, generator=generator)
    return Objective(lhs, rhs, torch.randn(*heads, 16, columns, generator=generator).pow(6), "hessian")


def test_rows_of_each_head_are_its_own() -> None:
    x = torch.arange(2 * 3 * 4 * 2.0).reshape(2, 3, 4, 2)
    index = torch.tensor([[[0, 3], [1, 1], [2, 0]], [[3, 2], [0, 0], [1, 3]]])
    torch.testing.assert_close(rows_of(x, index), x.take_along_dim(index[..., None], -2))


def test_a_sketch_by_hand() -> None:
    h = torch.tensor([[4.0, 100.0, 1.0, 9.0]])
    objective = Objective(torch.ones(1, 1), torch.ones(1, 4), h, "hessian")
    signed, means = sketch_matrices(objective, 3, seed=0)
    # the second column stands by itself; the others are added up in twos, each by the root of what it weighs
    assert signed.abs().tolist() == [[0, 2, 0], [1, 0, 0], [0, 0, 1], [0, 0, 3]]
    torch.testing.assert_close(h @ means, torch.tensor([[100.0, 1.0, 1.0]]))


def test_a_sketch_keeps_the_heaviest_columns_of_each_head_and_adds_up_all_others() -> None:
    objective = wide(100, heads=(2, 3))
    assert objective.h is not None
    objective.h[1, 2, :, 41] = 1e4
    signed, _ = sketch_matrices(objective, 20, seed=0)
    sketched = objective.rhs @ signed
    assert sketched.shape == (2, 3, 24, 20)
    torch.testing.assert_close(sketched[1, 2, :, 0], objective.rhs[1, 2, :, 41])
    assert bool(((signed != 0).sum(-1) == 1).all())  # every column is in the sketch once
    assert bool(((signed[..., :10] != 0).sum(-2) == 1).all())  # alone
    assert bool(((signed[..., 10:] != 0).sum(-2) > 3).all())  # or with others


def test_a_sketch_has_the_loss_of_the_whole_on_average() -> None:
    objective = wide()
    whole = loss_of_lhs(objective, objective.rhs)
    samples = [sketch_columns(objective, seed, 64) for seed in range(40)]
    losses = [loss_of_lhs(sample.objective, sample.reduce_fixed(objective.rhs)) for sample in samples]
    assert sum(losses) / len(losses) == pytest.approx(whole, rel=0.05)
    assert max(abs(loss / whole - 1) for loss in losses) < 0.5


def test_a_rounded_fixed_side_is_sketched_like_the_float_one() -> None:
    objective = wide()
    sample = sketch_columns(objective, 0, 64)
    torch.testing.assert_close(sample.reduce_fixed(objective.rhs), sample.objective.rhs)
    torch.testing.assert_close(sample.reduce_fixed(objective.out), sample.objective.out, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("metric", ["hessian", "mse", "cosine", "pearson"])
def test_rows_and_sketched_columns_have_the_loss_of_the_whole(metric: str) -> None:
    objective = product(rows=60, heads=3, batch=16, metric=metric)
    sample = draw_rows_and_sketch_columns(objective, 0, 30, 8)
    assert sample.objective.lhs.shape == (16, 3, 30, 24)
    part = loss_of_lhs(sample.objective, sample.reduce_fixed(objective.rhs))
    assert part == pytest.approx(loss_of_lhs(objective, objective.rhs), rel=0.15)


@pytest.mark.parametrize("metric", ["hessian", "mse", "cosine", "pearson"])
def test_sampled_rows_stay_close_to_the_whole_loss(metric: str) -> None:
    objective = product(metric=metric)
    part, index = sample_rows(objective, 0, 1000)
    assert index is not None and part.lhs.shape[0] == 1000
    torch.testing.assert_close(part.lhs, objective.lhs[index])
    assert loss_of_lhs(part, part.rhs) == pytest.approx(loss_of_lhs(objective, objective.rhs), rel=0.1)


def test_row_weights_include_what_a_pilot_loses_on_them() -> None:
    objective = product(rows=600)
    assert objective.h is not None
    change = round_off(objective.rhs) - objective.rhs
    objective.lhs[17] = 100 * change[:, 0] / change[:, 0].norm()  # errs most, in a column of little weight
    objective.h[17] = 0.001 * objective.h[17]
    pilot = Pilot(lambda x: x @ change, lambda x: x @ change)
    weighed = weigh_rows_by_errors(objective, objective, [pilot], exact_rows=0)
    lost = (objective.h * (objective.lhs @ change).square()).sum(-1)
    expected = objective.row_weights / objective.row_weights.sum() + lost / lost.sum()
    torch.testing.assert_close(weighed.row_weights, expected)
    torch.testing.assert_close(weighed.lhs, objective.lhs)


def test_rows_that_seem_to_lose_much_are_looked_at_exactly() -> None:
    objective, asked = product(rows=600), []

    def exact_errors(x: Tensor) -> Tensor:
        asked.append(len(x))
        return 2 * x[:, :16]

    weighed = weigh_rows_by_errors(objective, objective, [Pilot(exact_errors, lambda x: x[:, :16])], exact_rows=200)
    seen = losses_of_rows(objective, lambda x: x[:, :16])
    exact = 4 * seen
    start = objective.row_weights / objective.row_weights.sum()
    assert sum(asked) == 200
    lost = torch.where((start + seen / seen.sum()).argsort(descending=True).argsort() < 200, exact, seen)
    torch.testing.assert_close(weighed.row_weights, start + lost / lost.sum())


def test_a_sketch_shows_which_rows_lose_much() -> None:
    objective = wide()
    change = round_off(objective.rhs) - objective.rhs
    objective.lhs[3] = 40 * change[:, 500] / change[:, 500].norm()  # errs most in one of 600 columns
    sketch = sketch_columns(objective, 0, 64)
    seen = losses_of_rows(sketch.objective, lambda x: x @ sketch.reduce_fixed(change))
    assert int(seen.argmax()) == 3


def test_the_rows_a_weight_is_searched_on_are_taken_from_the_rounded_side_too() -> None:
    objective = product(rows=600)
    sample = draw_fixed_rows(objective, 0, 64)
    torch.testing.assert_close(sample.reduce_fixed(round_off(objective.lhs)), round_off(sample.objective.lhs))


def test_sampled_rows_of_a_matmul_are_of_every_image_and_head_the_heaviest_among_them() -> None:
    objective = product(rows=20, heads=3, batch=4)
    assert objective.h is not None
    objective.h[2, 1, 7] *= 1000
    part, _ = sample_rows(objective, 0, 10)
    assert part.lhs.shape == (4, 3, 10, 24)
    assert any(torch.equal(row, objective.lhs[2, 1, 7]) for row in part.lhs[2, 1])


def test_chances_go_with_weights_and_add_up() -> None:
    weights = torch.tensor([1000.0, 3.0, 2.0, 1.0, 1.0, 1.0])
    drawn = [draw(weights, 3, seed) for seed in range(400)]
    assert all(len(set(index.tolist())) == 3 and 0 in index for index, _ in drawn)
    counts = torch.stack([torch.bincount(index, minlength=6) for index, _ in drawn]).double().mean(0)
    assert counts[0] == 1 and counts.sum() == 3
    estimates = torch.stack([(weights[index] * factors).sum() for index, factors in drawn])
    assert estimates.mean().item() == pytest.approx(weights.sum().item(), rel=0.02)


def test_rows_without_any_weight_can_still_be_drawn() -> None:
    index, factors = draw(torch.zeros(2, 5), 2, seed=0)
    assert index.shape == (2, 2) and bool(factors.isfinite().all())


@pytest.mark.parametrize("metric", ["hessian", "mse"])
def test_of_many_windows_the_heaviest_of_each_head_and_some_others_stand_for_all(metric: str) -> None:
    objective = product(rows=4, heads=3, batch=600, metric=metric)
    part, take = sample_entries(objective, 0, 300)
    torch.testing.assert_close(part.lhs, take(objective.lhs))
    index = take(torch.arange(600).reshape(600, 1, 1, 1).expand(600, 3, 1, 1))[..., 0, 0]
    assert index.shape == (300, 3)
    if objective.h is not None:
        heaviest = objective.row_weights.sum(2).argmax(0)
        assert all(int(entry) in index[:, head] for head, entry in enumerate(heaviest))
    assert loss_of_lhs(part, part.rhs) == pytest.approx(loss_of_lhs(objective, objective.rhs), rel=0.1)


@pytest.mark.parametrize("metric", ["hessian", "cosine"])
def test_an_image_with_huge_values_in_one_head_is_looked_at_there(metric: str) -> None:
    objective = product(rows=4, heads=3, batch=60, metric=metric)
    objective.lhs[17, 1] *= 100
    if objective.h is not None:
        objective.h[17, 1] = objective.h.mean()
    _, take = sample_entries(objective, 0, 10)
    index = take(torch.arange(60).reshape(60, 1, 1, 1).expand(60, 3, 1, 1))[..., 0, 0]
    assert 17 in index[:, 1]


def test_a_product_smaller_than_a_sample_is_taken_whole() -> None:
    objective = product(rows=30)
    assert sample_rows(objective, 0, 30) == (objective, None)
    assert sketch_columns(objective, 0, 64).objective is objective
