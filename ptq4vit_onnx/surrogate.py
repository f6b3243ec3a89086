"""Ranking all candidates of one side with a handful of products instead of one product each.

With the other side fixed and quantised (B), e = Q(x) - x on the side searched and E0 = x B - x rhs the error that is
there already, the output moves by d = e B + E0. So, for weights h on the output:

    sum h d^2  =  sum h (e B)^2  +  2 sum e * ((h * E0) B^T)  +  sum h E0^2
                  ~ sum e^2 * (h (B^2)^T)                        constant
                  (its diagonal)    exact, linear in e

and <d, o>, sum d are exact and linear in e as well. The tensors e is multiplied with cost one product each, once; after
that a candidate costs no product. Activations are binned first: Q is constant almost everywhere within a narrow bin, so
the bins' moments give the sums, and a candidate costs the bins alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ptq4vit_onnx.grids import Grid, group_reduce
from ptq4vit_onnx.objective import Objective, Sums

BINS = 1 << 14  # at 8 bits and a scale of 0.1 x the covering one there are still six bins to a step
BINS_PER_HEAD = 1 << 12


@dataclass(frozen=True)
class Terms:
    """What multiplies e^2 (quad) and e (linear: cross term; then, where the metric needs them, <., o> and sum).

    All have the shape of the side searched. offsets: the sums' values at e = 0, per group.
    """

    quad: Tensor
    linear: tuple[Tensor, ...]
    offsets: Sums


def lhs_terms(objective: Objective, rhs: Tensor, groups: int, axis: int) -> Terms:
    """The terms for searching the left side with the right side quantised to `rhs`."""
    return _terms(objective, objective.lhs @ rhs - objective.out, rhs.transpose(-1, -2), "lhs", groups, axis)


def rhs_terms(objective: Objective, lhs: Tensor, groups: int, axis: int) -> Terms:
    """The terms for searching the right side with the left side quantised to `lhs`."""
    return _terms(objective, lhs @ objective.rhs - objective.out, lhs.transpose(-1, -2), "rhs", groups, axis)


def _terms(objective: Objective, error: Tensor, other: Tensor, side: str, groups: int, axis: int) -> Terms:
    def pull(output: Tensor, factor: Tensor) -> Tensor:
        """An output-shaped weight, carried back to the side that is searched."""
        return output @ factor if side == "lhs" else factor @ output

    h, out = objective.h, objective.out
    ones = torch.ones_like(out) if h is None or objective.metric == "pearson" else out
    weighted = error if h is None else h * error
    linear = [pull(weighted, other)]
    if objective.metric in ("cosine", "pearson"):
        linear.append(pull(out, other))
    if objective.metric == "pearson":
        linear.append(pull(ones, other))
    quad = pull(ones if h is None else h, other * other)

    def total(x: Tensor) -> Tensor:
        return group_reduce(x, groups, axis, "sum").double()

    offsets = Sums(
        total(weighted * error), total(error * out), total(error), total(out * out), total(out),
        size=out.numel() / groups,
    )  # fmt: skip
    return Terms(quad, tuple(linear), offsets)


Apply = Callable[[Tensor, Any], Tensor]


def rank(objective: Objective, x: Tensor, grid: Grid, terms: Terms, apply: Apply | None = None) -> Tensor:
    """The estimated metric of every candidate, float64 [count, groups].

    apply(x, quantizer): how a candidate changes x where that is not element by element (weights made pair-safe);
    such tensors are not binned.
    """
    sums = _sums_binned(x, grid, terms) if apply is None else _sums_elementwise(x, grid, terms, apply)
    offsets = terms.offsets
    none = torch.zeros_like(sums[0])
    return Sums(
        sums[0] + 2 * sums[1] + offsets.quad,
        (sums[2] if len(sums) > 2 else none) + offsets.dot,
        (sums[3] if len(sums) > 3 else none) + offsets.total,
        offsets.o_squared, offsets.o_total, offsets.size,
    ).value(objective.metric)  # fmt: skip


def _sums_elementwise(x: Tensor, grid: Grid, terms: Terms, apply: Apply) -> list[Tensor]:
    """sum e^2 quad and sum e linear for every candidate, each [count, groups]."""
    tables: list[list[Tensor]] = []
    for candidate in range(grid.count):
        error = apply(x, grid.pick([candidate] * grid.groups)).sub_(x)
        sums = [linear * error for linear in terms.linear]
        sums.insert(0, error.square_().mul_(terms.quad))
        tables.append([group_reduce(product, grid.groups, grid.axis, "sum").double() for product in sums])
    return [torch.stack(column) for column in zip(*tables, strict=True)]


def _sums_binned(x: Tensor, grid: Grid, terms: Terms) -> list[Tensor]:
    """The same from moments in bins; groups lie on axis -3 (heads), or there is one."""
    parts = [_by_group(tensor, grid.groups, grid.axis) for tensor in (x, terms.quad, *terms.linear)]
    columns = [_sums_of_group(grid, group, *(part[group] for part in parts)) for group in range(grid.groups)]
    return [torch.stack(tables, dim=1) for tables in zip(*columns, strict=True)]


def _sums_of_group(grid: Grid, group: int, x: Tensor, quad: Tensor, *linear: Tensor) -> list[Tensor]:
    """For one group's values x and their weights: sum e^2 quad and each sum e linear, [count] each.

    Moments are taken around the bins' centres, so that nothing cancels.
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
    squares = (errors * errors) @ moment(quad) - 2 * (errors @ moment(q1)) + moment(q1 * offset).sum()
    return [squares, *(errors @ moment(term) - float(term.double() @ offset.double()) for term in linear)]


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
