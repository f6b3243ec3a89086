"""The damage of clipping huge weights, which a small sample does not see."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from ptq4vit_onnx.calibration.calibrate import rhs_search_space
from ptq4vit_onnx.calibration.clipping import WEIGHTS, ClipDamage, corrected
from ptq4vit_onnx.calibration.grids import UniformGrid
from ptq4vit_onnx.calibration.objective import Float, Objective, objective_of
from ptq4vit_onnx.calibration.search import ProductSearch
from ptq4vit_onnx.network.recording import Recording
from ptq4vit_onnx.plan.options import Options
from ptq4vit_onnx.plan.quantizers import Uniform
from ptq4vit_onnx.plan.sites import Site


def test_one_weight_by_hand() -> None:
    # At scale 1 and 3 bits, 5 is clipped to 3 and -5.5 to -4; at scale 2 neither is.
    lhs, h = torch.tensor([[1.0, 2.0], [3.0, 0.5]]), torch.tensor([[1.0, 2.0], [4.0, 1.0]])
    objective = Objective(lhs, torch.tensor([[5.0, 1.0], [0.0, -5.5]]), h, "hessian")
    damage = ClipDamage(objective.rhs, UniformGrid(3, -1, np.array([[1.0, 1.0], [2.0, 2.0]], np.float32)))
    first = (1 * 1**2 + 4 * 3**2) * (5 - 3) ** 2
    second = (2 * 2**2 + 1 * 0.5**2) * (5.5 - 4) ** 2
    assert damage.on(objective).tolist() == [[first, second], [0.0, 0.0]]


def test_the_weights_looked_at_are_those_that_stand_out_from_their_group() -> None:
    # Columns of 100 inputs: the second is a hundred times as large throughout, and has nothing that stands out.
    generator = torch.Generator().manual_seed(0)
    rhs = torch.rand(100, 2, generator=generator) * torch.tensor([1.0, 100.0])
    rhs[3, 0] = -9.0
    grid = UniformGrid(4, -1, np.array([[0.1, 1000.0]], np.float32))
    objective = Objective(torch.ones(1, 100), rhs, torch.ones(1, 2), "hessian")
    damage = ClipDamage(rhs, grid)
    assert (int(damage.input[0]), int(damage.column[0])) == (3, 0)
    clipped = [-9.0, *rhs[:, 0].sort().values[-WEIGHTS:].tolist()]
    most = sum((abs(w) - 0.1 * (7 if w > 0 else 8)) ** 2 for w in clipped if abs(w) > 0.7)
    assert (9 - 0.8) ** 2 < float(damage.on(objective)[0, 0]) <= most
    assert float(damage.on(objective)[0, 1]) == 0.0


def test_the_real_damage_takes_the_place_of_the_one_seen() -> None:
    losses, seen, real = torch.tensor([[10.0, 10.0, 3.0], [4.0, 0.0, 6.0], [7.0, 5.0, 2.0]], dtype=torch.float64)
    # The third errs by less than the damage seen, for errors of others make up for half of it: as they do for the rest.
    assert corrected(losses, seen, real).tolist() == [13.0, 15.0, 1.0]


def massive(seed: int) -> Recording:
    """One input that is huge on few tokens, next to one huge weight; little gradient, so that few of them are drawn."""
    generator = torch.Generator().manual_seed(seed)
    lhs = torch.randn(6000, 192, generator=generator)
    rhs = torch.randn(192, 192, generator=generator) / 8
    grad = torch.randn(6000, 192, generator=generator).pow(3)
    lhs[::60, 17], rhs[17, 41] = 60.0, 2.5
    grad[::60] = 0.0
    grad[::60, 41] = 3.0
    return Recording(Site("fc", "linear", "fc"), lhs, rhs, grad)


@pytest.mark.parametrize("alone", ["what clipping does on all rows", "rows drawn by their errors"])
@pytest.mark.parametrize(
    ("make", "bits", "seed"),
    [(Options.paper, 8, 1), (Options.paper, 8, 2), (Options, 4, 0), (Options, 4, 1)],  # with neither, all fail
)
def test_a_huge_weight_for_a_few_tokens_is_not_clipped_away(
    make: Callable[..., Options], bits: int, seed: int, alone: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if alone == "what clipping does on all rows":
        monkeypatch.setattr(
            "ptq4vit_onnx.calibration.successive_halving.weigh_rows_by_pilots",
            lambda product, turn, sketch: product.whole,
        )
    else:
        monkeypatch.setattr("ptq4vit_onnx.calibration.successive_halving.corrected", lambda losses, seen, real: losses)
    recording, options = massive(seed), make(seed=seed, weight_bits=bits)
    objective = objective_of(recording, "hessian")
    grid, _ = rhs_search_space(recording, options)
    form = Float(Uniform(8, (1.0,)))
    losses = []
    for search in ("fast", "exhaustive"):
        product = ProductSearch(objective, replace(options, search=search), weight=True)
        found = product.search("rhs", grid, form)
        losses.append(float(product.product.loss(form, found)))
    assert losses[0] <= 1.1 * losses[1]


def test_a_sample_that_saw_no_damage_does_not_hide_it() -> None:
    losses, seen, real = torch.tensor([[0.0, 4.0]]), torch.zeros(1, 2), torch.tensor([[3.0, 1.0]])
    torch.testing.assert_close(corrected(losses, seen, real), torch.tensor([[3.0, 5.0]]))
