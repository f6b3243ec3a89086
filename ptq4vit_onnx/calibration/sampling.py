"""Small products that rank candidates as the whole one does.

With the candidate Q, the other side rounded to B and o = x rhs, the loss is sum h d^2 of d = Q(x) B - o. Rows of the
product can be left out: they are drawn by what they weigh, and weighted up by the inverse of their chance. In a product
of two activations, each head of each image is a product of its own. There d is linear in B, and so the columns of B can
be added up, each with a random sign s and the root of its weight a:

    E (sum_j s_j sqrt(a_j) d_j)^2  =  sum_j a_j d_j^2

Such sums see all columns, and what they get wrong averages out over heads and images: 32 of them do what 64 columns do
(DeiT-T). Not so next to a weight, where one set of sums would serve all rows: a weight that is clipped errs most for
those tokens to which it matters, and a sum weighs its tokens alike. There they only say which rows to look at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from ptq4vit_onnx.calibration.objective import Objective

Side = Literal["lhs", "rhs"]
MOST_HEADS = 1024  # of images or windows that the largest sample of a matmul looks at
FEW_ENTRIES = 8  # images or windows that are all looked at
COLUMNS_FOR_A_SUM = 8  # where columns cannot be added up
FLOOR, SETTLED = 0.1, 10  # of chances to be drawn: the least weight, as part of the mean; and steps until they add up


@dataclass(frozen=True)
class Sample:
    """objective: the small product. mix: makes its fixed side of the larger product's, once that is rounded."""

    objective: Objective
    mix: Callable[[Tensor], Tensor]
    most: int = 1

    def leaves(self, all_candidates: int) -> int:
        """How many candidates remain; fewer than `most` where there were few from the start."""
        return min(self.most, 1 + all_candidates // 4)


@dataclass(frozen=True)
class Stages:
    """What the search of one side looks at: samples, the largest first.

    fixed: the whole other side, in float. nested: each sample is taken from the one before. Of a matmul's right side,
    all have the sides exchanged.
    """

    fixed: Tensor
    samples: tuple[Sample, ...]
    nested: bool

    def mixed(self, fixed: Tensor) -> Iterator[Tensor]:
        """The fixed side of each sample, the whole one being rounded to `fixed`."""
        for sample in self.samples:
            mixed = sample.mix(fixed)
            fixed = mixed if self.nested else fixed
            yield mixed


def rows_of(x: Tensor, index: Tensor) -> Tensor:
    """x [.., n, C] and index [.., m]: the rows [.., m, C]; by whole rows, which is far faster than gather."""
    if x.dim() == 2:
        return x.index_select(0, index)
    starts = torch.arange(0, index.numel() // index.shape[-1] * x.shape[-2], x.shape[-2])
    flat = (index.reshape(len(starts), -1) + starts[:, None]).flatten()
    return x.reshape(-1, x.shape[-1]).index_select(0, flat).reshape(*index.shape, x.shape[-1])


def mix_of_columns(objective: Objective, count: int, seed: int) -> tuple[Tensor, Tensor]:
    """What the right side [.., K, n] is multiplied with to become a mix of `count` columns, and the same for h; both
    [.., n, count]. The heaviest columns stand by themselves; the others are added up, a few neighbours each.

    What a sum weighs is the mean of its columns' weights, over their part in it.
    """
    columns = objective.rhs.shape[-1]
    size = -(-columns // (count - count // 2))
    sums = -(-columns // size)
    kept = count - sums
    h = objective.h_of_columns
    weight = torch.ones_like(objective.rhs[..., 0, :]) if h is None else h.mean(-2)
    heavy = _column_weights(objective).argsort(dim=-1, descending=True, stable=True)[..., :kept]
    signs = torch.randint(0, 2, (columns,), generator=torch.Generator().manual_seed(seed)) * 2 - 1
    factors = (weight.sqrt() * signs).scatter_(-1, heavy, 0.0)
    where = (torch.arange(columns) // size + kept)[:, None].expand(*factors.shape, 1)
    signed = torch.zeros(*factors.shape, count).scatter_(-1, where, factors[..., None])
    parts = signed.square()
    means = (parts > 0) / parts.sum(-2, keepdim=True).clamp(min=1e-30)
    alone = torch.ones_like(heavy, dtype=torch.float32)[..., None, :]
    signed[..., :kept].scatter_(-2, heavy[..., None, :], alone)
    means[..., :kept].scatter_(-2, heavy[..., None, :], alone)
    return signed, means


def mixed_columns(objective: Objective, seed: int, count: int) -> Sample:
    """All of the left side next to a mix of the right side's columns."""
    if count >= objective.rhs.shape[-1]:
        return Sample(_contiguous(objective), _as_it_is)
    if objective.metric == "pearson":  # asks for sum d, which signs do not keep
        sample = fixed_rows(_with_all_weights(objective).transposed, seed, COLUMNS_FOR_A_SUM * count)
        small = _contiguous(_with_all_weights(sample.objective.transposed))
        return Sample(small, lambda rhs: sample.mix(rhs.mT).mT.contiguous())
    signed, means = mix_of_columns(objective, count, seed)
    h = objective.h if objective.h_of_columns is None else objective.h_of_columns @ means
    small = Objective(objective.lhs, objective.rhs @ signed, h, objective.metric, objective.unit)
    return Sample(small, lambda rhs: rhs @ signed)


def fixed_rows(objective: Objective, seed: int, count: int) -> Sample:
    """All of the right side next to some of the left side's rows: for the search of a weight."""
    part, index = sample_rows(objective, seed, count)
    return Sample(part, _as_it_is if index is None else lambda lhs: rows_of(lhs, index))


def searched_rows(objective: Objective, seed: int, count: int) -> Sample:
    """Rows of the left side next to all of the right side: for the search of an activation next to a weight."""
    return Sample(sample_rows(objective, seed, count)[0], _as_it_is)


def rows_and_mixed_columns(objective: Objective, seed: int, rows: int, count: int, share: float = 1.0) -> Sample:
    """Rows of the left side next to a mix of the right side's columns: for the search of one of two activations.

    share: what part of the images or windows to look at, where there are many.
    """
    entries = max(FEW_ENTRIES, round(share * objective.lhs.shape[0]))
    part, take = sample_entries(objective, seed, entries)
    part, _ = sample_rows(part, seed, rows)
    mixed = mixed_columns(part, seed, count)
    return replace(mixed, mix=lambda rhs: mixed.mix(take(rhs)))


def _with_all_weights(objective: Objective) -> Objective:
    """With h in the output's shape."""
    if objective.h is None:
        return objective
    h = objective.h.expand(*objective.lhs.shape[:-1], objective.rhs.shape[-1])
    return Objective(objective.lhs, objective.rhs, h, objective.metric, objective.unit)


def _contiguous(objective: Objective) -> Objective:
    """With h in the order of the output, next to which it is read for every candidate."""
    if objective.h is None or objective.h.is_contiguous():
        return objective
    return Objective(objective.lhs, objective.rhs, objective.h.contiguous(), objective.metric, objective.unit)


def _as_it_is(fixed: Tensor) -> Tensor:
    return fixed


def sample_rows(objective: Objective, seed: int, count: int) -> tuple[Objective, Tensor | None]:
    """`count` rows of the left side: of a linear of all its rows, of a matmul of every head of every image or window;
    and which (None: all).

    A row's chance goes with its weight; it is weighted up by the inverse, so that sums stay unbiased.
    """
    rows = objective.lhs.shape[-2]
    if count >= rows:
        return objective, None
    index, factors = draw(objective.row_weights, count, seed)
    h = factors[..., None]
    if objective.h is not None:
        h = h * (objective.h if objective.h.shape[-2] == 1 else rows_of(objective.h, index))
    return Objective(rows_of(objective.lhs, index), objective.rhs, h, objective.metric, objective.unit), index


def sample_entries(objective: Objective, seed: int, count: int) -> tuple[Objective, Callable[[Tensor], Tensor]]:
    """A matmul on `count` of its images or windows, for every head those that weigh most for it, drawn like rows; and
    what takes them of a side."""
    entries, heads = objective.lhs.shape[:2]
    if count >= entries:
        return objective, _as_it_is
    index, factors = draw(objective.row_weights.sum(2).T, count, seed)
    flat = (index * heads + torch.arange(heads)[:, None]).T.flatten()

    def take(x: Tensor) -> Tensor:
        taken = x.flatten(0, 1).index_select(0, flat)
        return taken.reshape(count, heads, *taken.shape[1:])

    h = factors.T[..., None, None]
    h = h if objective.h is None else h * take(objective.h)
    return Objective(take(objective.lhs), take(objective.rhs), h, objective.metric, objective.unit), take


def draw(weights: Tensor, count: int, seed: int) -> tuple[Tensor, Tensor]:
    """`count` of the last axis of `weights` [.., n], each with a chance proportional to its weight (1 at most), and
    the inverse of that chance: [.., count] each. No weight counts for less than a tenth of the mean."""
    weights = weights.double()
    weights = weights + FLOOR * weights.mean(-1, keepdim=True).clamp(min=1e-300)
    chances = (count * weights / weights.sum(-1, keepdim=True)).clamp(max=1.0)
    for _ in range(SETTLED):  # what is cut off at 1 is given to the others
        free = chances < 1
        left = count - (~free).sum(-1, keepdim=True)
        rest = (weights * free).sum(-1, keepdim=True).clamp(min=1e-300)
        chances = torch.where(free, (left * weights / rest).clamp(max=1.0), 1.0)
    ends = chances.cumsum(-1)
    ends *= count / ends[..., -1:]
    start = 0.999 * torch.rand((), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    points = (torch.arange(count) + start).expand(*ends.shape[:-1], count).contiguous()
    index = torch.searchsorted(ends, points).clamp(max=weights.shape[-1] - 1)
    return index, chances.gather(-1, index).reciprocal().to(torch.float32)


def _column_weights(objective: Objective) -> Tensor:
    """How much the columns of the right side [.., M] move the loss."""
    energy: Tensor = objective.rhs.square().sum(-2)
    return energy if objective.h is None else objective.h.sum(-2) * (energy + energy.mean())


# The samples of one search, the largest first: how they are taken, and the most candidates each leaves to the next
# larger one. Next to a weight all are drawn from all rows, and what the smaller ones said of a candidate still counts;
# a matmul's are drawn each from the one before. Where every channel of a weight picks its own scale, a sample must be
# right for each of them, and so is larger; so it is where no gradients make rows differ.
Steps = tuple[tuple[Callable[..., Sample], tuple[float, ...], int], ...]
CHANNELS: Steps = ((fixed_rows, (1536,), 1), (fixed_rows, (576,), 6), (fixed_rows, (192,), 14), (fixed_rows, (48,), 15))
WEIGHT: Steps = ((fixed_rows, (512,), 1), (fixed_rows, (192,), 4), (fixed_rows, (64,), 12), (fixed_rows, (32,), 15))
INPUT: Steps = ((searched_rows, (512,), 1), (searched_rows, (192,), 4), (searched_rows, (64,), 12))
EVEN_INPUT: Steps = ((searched_rows, (1024,), 1), (searched_rows, (384,), 4), (searched_rows, (128,), 12))
MATMUL: Steps = (
    (rows_and_mixed_columns, (144, 128, 0.75), 1),
    (rows_and_mixed_columns, (80, 36), 8),
    (rows_and_mixed_columns, (24, 18, 0.5), 26),
)


def stages_of(objective: Objective, weight: bool, side: Side, seed: int, per_channel: bool = False) -> Stages:
    """weight: the right side is one, and not an activation. per_channel: each of its columns has a scale."""
    if weight and side == "lhs":
        fixed, steps = objective.rhs, EVEN_INPUT if objective.h is None else INPUT
    elif weight:
        fixed, steps = objective.lhs, CHANNELS if per_channel or objective.h is None else WEIGHT
    else:
        objective, _ = sample_entries(objective, seed, max(2, MOST_HEADS // objective.lhs.shape[1]))
        objective = objective if side == "lhs" else objective.transposed
        fixed, steps = objective.rhs, MATMUL
    samples = []
    for step, (take, sizes, most) in enumerate(steps):
        sample = take(objective, seed + step, *sizes)  # other signs and rows each time
        samples.append(replace(sample, most=most))
        objective = objective if weight else sample.objective
    return Stages(fixed, tuple(samples), nested=not weight)
