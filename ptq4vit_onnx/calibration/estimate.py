"""Estimates the losses of all candidates of the left side with a handful of products instead of one product each.

Let B be the quantised right side, which is fixed, e = Q(x) - x the rounding error of the left side, and
E0 = x B - x rhs the error of the output at e = 0. The output's error is d = e B + E0. With weights h on the output:

    sum h d^2  =  sum h (e B)^2  +  2 sum e * ((h * E0) B^T)  +  sum h E0^2
                  quadratic         linear in e, exact           constant

The quadratic term is e G e^T for each row, where G = B diag(h) B^T is the Gauss-Newton matrix. The estimate takes only
its diagonal: sum e^2 * (h (B^2)^T). So it ignores that errors of different inputs are correlated. <d, o> and sum d, for
the other metrics, are linear in e and exact.

The tensors that e and e^2 are multiplied with cost one product each, once. After that a candidate costs no product:
activations are binned, Q is constant almost everywhere within a narrow bin, and so the bins' moments give the sums.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ptq4vit_onnx.calibration.grids import Grid, group_reduce
from ptq4vit_onnx.calibration.objective import Objective, Sums
from ptq4vit_onnx.plan.options import SUMS_OF_SQUARES

BINS = 1 << 14  # at 8 bits and a scale of 0.1 x the covering one there are still six bins to a step
BINS_PER_HEAD = 1 << 12


@dataclass(frozen=True)
class Terms:
    """The tensors that e^2 (quad) and e (cross, dot, total) are multiplied with, shaped as the searched side.

    cross: for the linear term. dot: for <d, o>. total: for sum d. None: zero, or not needed by the metric.
    offsets: the sums at e = 0, per group.
    """

    quad: Tensor
    cross: Tensor | None
    dot: Tensor | None
    total: Tensor | None
    offsets: Sums

    @property
    def linear(self) -> list[Tensor]:
        return [term for term in (self.cross, self.dot, self.total) if term is not None]


def lhs_terms(objective: Objective, rhs: Tensor | None, groups: int, axis: int) -> Terms:
    """The terms for searching the left side with the right side quantised to `rhs`; None: the right side is float."""
    error = None if rhs is None else objective.lhs @ rhs - objective.out  # E0, which is zero next to a float side
    other = objective.rhs if rhs is None else rhs

    def pull(output: Tensor, factor: Tensor) -> Tensor:
        """A tensor in the output's shape, multiplied back into the shape of the searched side."""
        return output @ factor.mT

    def total(x: Tensor) -> Tensor:
        return group_reduce(x, groups, axis, "sum").double()

    def weighed(output: Tensor) -> Tensor:
        return output if h is None else h * output

    h, out, metric = objective.h, objective.out, objective.metric
    weights = weighed(torch.ones_like(out))
    off = None if error is None else weighed(error)
    none = torch.zeros(groups, dtype=torch.float64)
    quad = pull(weights, other * other)
    cross = None if off is None else pull(off, other)
    squares = none if off is None or error is None else total(off * error)
    if metric in SUMS_OF_SQUARES:
        return Terms(quad, cross, None, None, Sums.of_squares(squares))
    offsets = Sums(
        squares, none if off is None else total(off * out), none if off is None else total(off),
        total(weighed(out) * out), total(weighed(out)), total(weights),
    )  # fmt: skip
    ones = pull(weights, other) if metric == "pearson" else None
    return Terms(quad, cross, pull(weighed(out), other), ones, offsets)


def rank(objective: Objective, x: Tensor, grid: Grid, terms: Terms) -> Tensor:
    """The estimated metric of every candidate, float64 [count, groups]."""
    found = iter(_sums_binned(x, grid, terms))
    squares = next(found)
    none = torch.zeros_like(squares)
    cross, dot, total = (none if term is None else next(found) for term in (terms.cross, terms.dot, terms.total))
    offsets = terms.offsets
    return Sums(
        squares + 2 * cross + offsets.quad, dot + offsets.dot, total + offsets.total,
        offsets.o_squared, offsets.o_total, offsets.size,
    ).value(objective.metric)  # fmt: skip


def _sums_binned(x: Tensor, grid: Grid, terms: Terms) -> list[Tensor]:
    """sum e^2 * quad, and sum e * term for each linear term, of every candidate: [count, groups] each.

    The groups are heads (axis -3), or there is one.
    """
    parts = [_by_group(tensor, grid.groups, grid.axis) for tensor in (x, terms.quad, *terms.linear)]
    columns = [_sums_of_group(grid, group, *(part[group] for part in parts)) for group in range(grid.groups)]
    return [torch.stack(tables, dim=1) for tables in zip(*columns, strict=True)]


def _sums_of_group(grid: Grid, group: int, x: Tensor, quad: Tensor, *linear: Tensor) -> list[Tensor]:
    """sum e^2 * quad and sum e * term for each linear term, over one group's values x: [count] each.

    Moments are taken around the bins' centres, which avoids numerical cancellation.
    """
    count = BINS if grid.groups == 1 else BINS_PER_HEAD
    low, high = x.min(), x.max()
    width = ((high - low) / count).clamp(min=1e-30)
    index = ((x - low) / width).to(torch.int32).clamp_(0, count - 1)
    centres = low + width * (torch.arange(count) + 0.5)
    offset = x - centres[index]
    bins = index.numpy()

    def moment(weight: Tensor) -> Tensor:
        return torch.from_numpy(np.bincount(bins, weight.numpy(), count))

    q1 = quad * offset
    errors = candidate_errors(grid, group, centres).double()
    squares = (errors * errors) @ moment(quad) - 2 * (errors @ moment(q1)) + q1.mul_(offset).sum(dtype=torch.float64)
    return [squares, *(errors @ moment(term) - (term * offset).sum(dtype=torch.float64) for term in linear)]


def candidate_errors(grid: Grid, group: int, x: Tensor) -> Tensor:
    """Q(x) - x for every candidate of one group, [count, len(x)]."""
    errors = x.new_empty(grid.count, len(x))
    for candidate, row in enumerate(errors):
        torch.sub(grid.single(candidate, group).fake_quantize(x), x, out=row)
    return errors


def _by_group(x: Tensor, groups: int, axis: int) -> Tensor:
    """[groups, elements of the group]."""
    if groups == 1:
        return x.reshape(1, -1)
    return x.movedim(axis, 0).reshape(groups, -1)
