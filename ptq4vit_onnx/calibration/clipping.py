"""The loss from clipping the largest weights: a control variate for losses on small samples.

A small sample misjudges clipping. A huge weight may matter to a few tokens only: input 417 of blocks.7.mlp.fc2 of ViT-T
reaches 213 on four tokens of an image, next to a weight 16 times as large as the others of its row. A sample holds one
or two such tokens, and the scale found on it had up to five times the smallest loss.

The loss from clipping single weights is cheap on all rows (r), and exact except for correlated errors:

    sum_r h[r, c] x[r, k]^2 (w[k, c] - clipped)^2

A control variate is a quantity whose total is known and which varies with the one that is estimated. Here it is that
sum: its value on all rows replaces its value on the sample's rows.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ptq4vit_onnx.calibration.grids import UniformGrid
from ptq4vit_onnx.calibration.objective import Objective

WEIGHTS = 64  # weights that are looked at: the largest in proportion to the root mean square of their group


class ClipDamage:
    """The loss from clipping, for every candidate of a linear's weight under the Hessian metric.

    The groups of `grid` are columns. squared_excess: (|w| - clipped)^2 of the weights looked at, [count, WEIGHTS].
    """

    def __init__(self, weight: Tensor, grid: UniformGrid) -> None:
        """weight: [inputs, outputs]."""
        inputs, self.groups = weight.shape[0], grid.groups
        columns = weight.T.reshape(self.groups, -1)
        root_mean_square = columns.square().mean(1, keepdim=True).sqrt()
        proportion = (columns.abs() / root_mean_square.clamp(min=1e-30)).flatten()
        place = proportion.topk(min(WEIGHTS, len(proportion))).indices
        self.input, self.column, self.group = place % inputs, place // inputs, place // columns.shape[1]
        chosen = columns.flatten()[place].double()
        limit = (2 ** (grid.bits - 1) - (chosen > 0).double()) * torch.from_numpy(grid.scales).double()[:, self.group]
        self.squared_excess = (chosen.abs() - limit).clamp(min=0).square()

    def on(self, objective: Objective) -> Tensor:
        """The loss from clipping alone on this product's rows, per candidate: float64 [count, groups]."""
        assert objective.h is not None
        energy = objective.lhs[:, self.input].square()
        moment = (objective.h[:, self.column] * energy).sum(0, dtype=torch.float64)
        damage = torch.zeros(len(self.squared_excess), self.groups, dtype=torch.float64)
        return damage.index_add(1, self.group, self.squared_excess * moment)


def corrected(losses: Tensor, seen: Tensor, real: Tensor) -> Tensor:
    """The control variate: a sample's losses plus (real - seen) damage; all are [n, groups].

    seen: the loss from clipping on the sample's rows. real: the same on all rows.
    Where a loss is smaller than the damage seen, other weights' errors cancel a part of it. They are taken to cancel
    the same part of the difference. A sample that saw no damage does not tell, so nothing is cancelled.
    """
    remaining = torch.where(seen > 0, (losses / seen.clamp(min=1e-300)).clamp(max=1.0), 1.0)
    return losses + (real - seen) * remaining
