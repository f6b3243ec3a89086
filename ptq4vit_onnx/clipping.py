"""What clipping the largest weights does to the loss, on all rows.

A weight is clipped where it is huge, and it may be huge for the sake of a few tokens: input 417 of blocks.7.mlp.fc2 of
ViT-T reaches 213 on four tokens of an image, next to a weight 16 times as large as that row's others. A small sample
has a token or two of that kind, and may think nothing of clipping it; the scale so found had four times the smallest
loss. For single weights the damage on all rows is cheap, and exact but for errors that add up in step:

    sum_r h[r, c] x[r, k]^2 (w[k, c] - clipped)^2
"""

from __future__ import annotations

import torch
from torch import Tensor

from ptq4vit_onnx.grids import UniformGrid
from ptq4vit_onnx.objective import Objective

WEIGHTS = 64  # the largest that are looked at, shared among the groups; at least one of each


def clip_damage(objective: Objective, grid: UniformGrid) -> Tensor:
    """The loss that clipping the largest weights makes by itself, for every candidate: float64 [count, groups].

    objective: of a linear, under the Hessian metric. grid: of its weight, the groups being columns.
    """
    assert objective.h is not None
    inputs, groups = objective.rhs.shape[0], grid.groups
    columns = objective.rhs.T.reshape(groups, -1)
    place = columns.abs().topk(min(max(1, WEIGHTS // groups), columns.shape[1]), dim=1).indices
    weight = columns.gather(1, place).double()
    first = torch.arange(groups)[:, None] * (columns.shape[1] // inputs)
    h = objective.h[:, (first + place // inputs).flatten()]
    energy = objective.lhs[:, (place % inputs).flatten()].square()
    moment = (h * energy).sum(0, dtype=torch.float64).reshape(place.shape)
    scale = torch.from_numpy(grid.scales).double()[..., None]
    limit = 2 ** (grid.bits - 1) - (weight > 0).double()
    excess = (weight.abs() - limit * scale).clamp(min=0)
    damage: Tensor = (excess.square() * moment).sum(-1)
    return damage
