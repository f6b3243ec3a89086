"""The estimate of a loss without products, against arithmetic by hand and the exact loss."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from ptq4vit_onnx.calibration.estimate import lhs_terms, rank
from ptq4vit_onnx.calibration.grids import ListGrid, form_grid, uniform_grid
from ptq4vit_onnx.calibration.objective import Objective, objective_of
from ptq4vit_onnx.calibration.sampling import sample_rows
from ptq4vit_onnx.plan.options import Options
from ptq4vit_onnx.plan.quantizers import Affine, Uniform
from tests.calibration.recordings import linear


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
