"""The damage of clipping huge weights, which a small sample does not see."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from ptq4vit_onnx.calibrate import rhs_search_space
from ptq4vit_onnx.clipping import clip_damage
from ptq4vit_onnx.grids import UniformGrid
from ptq4vit_onnx.objective import Objective, objective_of
from ptq4vit_onnx.options import Options
from ptq4vit_onnx.quantizers import Uniform
from ptq4vit_onnx.search import Float, ProductSearch
from ptq4vit_onnx.sites import Site
from ptq4vit_onnx.tape import Recording


def test_one_weight_by_hand() -> None:
    # At scale 1 and 3 bits, 5 is clipped to 3 and -5.5 to -4; at scale 2 neither is.
    lhs, h = torch.tensor([[1.0, 2.0], [3.0, 0.5]]), torch.tensor([[1.0, 2.0], [4.0, 1.0]])
    objective = Objective(lhs, torch.tensor([[5.0, 1.0], [0.0, -5.5]]), h, "hessian")
    found = clip_damage(objective, UniformGrid(3, -1, np.array([[1.0, 1.0], [2.0, 2.0]], np.float32)))
    first = (1 * 1**2 + 4 * 3**2) * (5 - 3) ** 2
    second = (2 * 2**2 + 1 * 0.5**2) * (5.5 - 4) ** 2
    assert found.tolist() == [[first, second], [0.0, 0.0]]


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


@pytest.mark.parametrize("seed", range(3))
def test_a_huge_weight_for_a_few_tokens_is_not_clipped_away(seed: int) -> None:
    recording, options = massive(seed), Options.paper(seed=seed)
    objective = objective_of(recording, "hessian")
    grid, _ = rhs_search_space(recording, options)
    form = Float(Uniform(8, (1.0,)))
    losses = []
    for search in ("fast", "exhaustive"):
        product = ProductSearch(objective, replace(options, search=search), weight=True)
        found = product.search("rhs", grid, form)
        losses.append(float(product.loss(objective, form, found, 1, -1)))
    assert losses[0] <= 1.1 * losses[1]
