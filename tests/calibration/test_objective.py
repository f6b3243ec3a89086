"""The loss of a quantised product: its metrics against their definitions, and how candidates are measured."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from ptq4vit_onnx.calibration.grids import uniform_grid
from ptq4vit_onnx.calibration.objective import Float, Objective, objective_of
from ptq4vit_onnx.calibration.search import ProductSearch
from ptq4vit_onnx.network.recording import Recording
from ptq4vit_onnx.plan.options import Options
from ptq4vit_onnx.plan.quantizers import Uniform
from tests.calibration.recordings import SITE, attention, linear


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


@pytest.mark.parametrize(("most", "at_once"), [(400 * 24, True), (400 * 24 - 1, False)])
def test_a_large_left_side_is_not_copied_by_every_thread(
    most: int, at_once: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []

    def noted(function: Any, items: Any) -> Any:
        calls.append(len(items))
        return [function(item) for item in items]

    monkeypatch.setattr("ptq4vit_onnx.calibration.objective.MOST_AT_ONCE", most)
    monkeypatch.setattr("ptq4vit_onnx.calibration.objective.side_by_side", noted)
    recording, options = linear(), Options(search="exhaustive")
    search = ProductSearch(objective_of(recording, "hessian"), options, weight=True)
    search.search("lhs", uniform_grid(recording.lhs, 8, 1, -1, options), Float())
    assert calls == ([100] if at_once else [])


def test_cosine_and_pearson_equal_their_definitions() -> None:
    recording = linear()
    quantized = Uniform(3, (0.75,)).fake_quantize(recording.lhs)
    out, rounded = (recording.lhs @ recording.rhs).double().flatten(), (quantized @ recording.rhs).double().flatten()
    cosine = objective_of(recording, "cosine").loss(quantized, recording.rhs, 1, -1).item()
    pearson = objective_of(recording, "pearson").loss(quantized, recording.rhs, 1, -1).item()
    assert cosine == pytest.approx(1 - torch.cosine_similarity(out, rounded, dim=0).item(), abs=1e-6)
    assert pearson == pytest.approx(1 - np.corrcoef(out, rounded)[0, 1], abs=1e-6)


def test_a_metric_of_directions_says_nothing_of_an_output_that_is_gone() -> None:
    """Not 1 - residue / 1e-30, nor a root of less than zero."""
    item = linear(rows=50, outputs=1)
    for metric in ("cosine", "pearson"):
        objective = Objective(item.lhs, item.rhs, None, metric)
        gone = objective.loss(item.lhs * 1e-12, item.rhs, 1, -1)
        assert gone == 1
        flat = Objective(torch.full((50, 1), 0.1), torch.full((1, 1), 0.3), None, metric)
        assert 0 <= float(flat.loss(flat.lhs * 1.1, flat.rhs, 1, -1)) <= 1
