"""What clipping the largest weights does to the loss, on all rows.

A weight is clipped where it is huge, and it may be huge for the sake of a few tokens: input 417 of blocks.7.mlp.fc2 of
ViT-T reaches 213 on four tokens of an image, next to a weight 16 times as large as that row's others. A small sample
has a token or two of that kind, and may think nothing of clipping it; the scale so found had up to five times the
smallest loss. For single weights the damage on all rows is cheap, and exact but for errors that add up in step:

    sum_r h[r, c] x[r, k]^2 (w[k, c] - clipped)^2

So it takes the place of the same sum over the sample's rows.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ptq4vit_onnx.calibration.grids import UniformGrid
from ptq4vit_onnx.calibration.objective import Objective

WEIGHTS = 64  # that are looked at: those that stand out most from their group


class ClipDamage:
    """Of the candidates of a linear's weight, under the Hessian metric; the groups of `grid` are columns."""

    def __init__(self, weight: Tensor, grid: UniformGrid) -> None:
        """weight: [inputs, outputs]."""
        inputs, self.groups = weight.shape[0], grid.groups
        columns = weight.T.reshape(self.groups, -1)
        spread = columns.square().mean(1, keepdim=True).sqrt()
        standing_out = (columns.abs() / spread.clamp(min=1e-30)).flatten()
        place = standing_out.topk(min(WEIGHTS, len(standing_out))).indices
        self.input, self.column, self.group = place % inputs, place // inputs, place // columns.shape[1]
        chosen = columns.flatten()[place].double()
        limit = (2 ** (grid.bits - 1) - (chosen > 0).double()) * torch.from_numpy(grid.scales).double()[:, self.group]
        self.squared_excess = (chosen.abs() - limit).clamp(min=0).square()  # [count, weights]

    def on(self, objective: Objective) -> Tensor:
        """The loss that clipping makes by itself on this product's rows, per candidate: float64 [count, groups]."""
        assert objective.h is not None
        energy = objective.lhs[:, self.input].square()
        moment = (objective.h[:, self.column] * energy).sum(0, dtype=torch.float64)
        damage = torch.zeros(len(self.squared_excess), self.groups, dtype=torch.float64)
        return damage.index_add(1, self.group, self.squared_excess * moment)


def corrected(losses: Tensor, seen: Tensor, real: Tensor) -> Tensor:
    """A sample's losses, with the damage on all rows, `real`, in place of the damage it has `seen`; all [n, groups].

    Where the loss is smaller than the damage seen, errors of other weights make up for it, and do so for the rest; a
    sample that saw none says nothing about that.
    """
    left = torch.where(seen > 0, (losses / seen.clamp(min=1e-300)).clamp(max=1.0), 1.0)
    return losses + (real - seen) * left
