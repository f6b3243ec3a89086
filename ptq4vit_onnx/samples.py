"""Small products that rank candidates as the whole one does.

With the candidate Q, the other side rounded to B and o = x rhs, the loss is sum h d^2 of d = Q(x) B - o. Rows of the
product can be left out: they are drawn by what they weigh, and weighted up by the inverse of their chance. In a product
of two activations, each head of each image is a product of its own. There d is linear in B, and so the columns of B can
be added up, each with a random sign s and the root of its weight a:

    E (sum_j s_j sqrt(a_j) d_j)^2  =  sum_j a_j d_j^2

Such sums see all columns, and what they get wrong averages out over heads and images: 32 of them do what 64 columns do
(DeiT-T). Not so next to a weight, where one set of sums would serve all rows: a weight that is clipped errs most for
those tokens to which it matters, and a sum weighs its tokens alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from ptq4vit_onnx.objective import Objective

Side = Literal["lhs", "rhs"]
MOST_HEADS = 1024  # of images or windows that the largest sample of a matmul looks at
ROWS_FOR_A_SUM = 8  # where rows cannot be added up
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


@dataclass(frozen=True)
class Mix:
    """The heaviest rows [.., n, C] one by one, then signed sums of the others: `size` neighbours each."""

    heavy: Tensor  # [.., kept]
    factors: Tensor  # [.., n]; zero where a row stands by itself
    size: int

    def __call__(self, x: Tensor) -> Tensor:
        return torch.cat([rows_of(x, self.heavy), sums_of_neighbours(self.factors, x, self.size)], -2)

    def weights(self, h: Tensor) -> Tensor:
        """What the rows of the mix weigh: of a sum, the mean of its rows' weights over their part in it."""
        shares = self.factors.square()
        light = (shares > 0).to(h.dtype)
        total = sums_of_neighbours(light, h, self.size)
        total /= sums_of_neighbours(shares, torch.ones_like(shares)[..., None], self.size).clamp(min=1e-30)
        return torch.cat([rows_of(h, self.heavy), total], -2)


def rows_of(x: Tensor, index: Tensor) -> Tensor:
    """x [.., n, C] and index [.., m]: the rows [.., m, C]; by whole rows, which is far faster than gather."""
    if x.dim() == 2:
        return x.index_select(0, index)
    starts = torch.arange(0, index.numel() // index.shape[-1] * x.shape[-2], x.shape[-2])
    flat = (index.reshape(len(starts), -1) + starts[:, None]).flatten()
    return x.reshape(-1, x.shape[-1]).index_select(0, flat).reshape(*index.shape, x.shape[-1])


def sums_of_neighbours(factors: Tensor, x: Tensor, size: int) -> Tensor:
    """factors [.., n], x [.., n, C]: sum factors * x over each `size` rows in turn, [.., ceil(n / size), C]."""
    *leading, rows, columns = x.shape
    whole = rows // size
    end = whole * size
    blocks = x[..., :end, :].reshape(*leading, whole, size, columns)
    sums: Tensor = (factors[..., :end].reshape(*leading, whole, 1, size) @ blocks).squeeze(-2)
    if end == rows:
        return sums
    return torch.cat([sums, factors[..., None, end:] @ x[..., end:, :]], -2)


def mix_of_rows(objective: Objective, count: int, seed: int) -> Mix | None:
    """A mix of about `count` rows of the left side; None where there are no more than that."""
    rows = objective.lhs.shape[-2]
    if count >= rows:
        return None
    weight = torch.ones(objective.lhs.shape[:-1]) if objective.h is None else objective.h.mean(-1)
    kept = count // 2
    heavy = _by_weight(objective)[..., :kept]
    generator = torch.Generator().manual_seed(seed)
    signs = torch.randint(0, 2, (rows,), generator=generator) * 2 - 1
    factors = (weight.sqrt() * signs).scatter_(-1, heavy, 0.0)
    return Mix(heavy, factors, -(-rows // (count - kept)))


def mixed_rows(objective: Objective, seed: int, count: int) -> Sample:
    """All of the right side next to a mix of the left side's rows."""
    if objective.metric == "pearson":  # asks for sum d, which signs do not keep
        return fixed_rows(objective, seed, ROWS_FOR_A_SUM * count)
    mix = mix_of_rows(objective, count, seed)
    if mix is None:
        return Sample(objective, _as_it_is)
    h = None if objective.h is None else mix.weights(objective.h)
    return Sample(Objective(mix(objective.lhs), objective.rhs, h, objective.metric, objective.unit), mix)


def fixed_rows(objective: Objective, seed: int, count: int, power: float = 1.0) -> Sample:
    """All of the right side next to some of the left side's rows: for the search of a weight."""
    part, index = sample_rows(objective, seed, count, power)
    return Sample(part, _as_it_is if index is None else lambda lhs: rows_of(lhs, index))


def searched_rows(objective: Objective, seed: int, count: int, power: float = 1.0) -> Sample:
    """Rows of the left side next to all of the right side: for the search of an activation next to a weight."""
    return Sample(sample_rows(objective, seed, count, power)[0], _as_it_is)


def rows_and_mixed_columns(objective: Objective, seed: int, rows: int, count: int, share: float = 1.0) -> Sample:
    """Rows of the left side next to a mix of the right side's columns: for the search of one of two activations.

    share: what part of the images or windows to look at.
    """
    part, entries = sample_entries(objective, seed, max(1, round(share * objective.lhs.shape[0])))
    part, _ = sample_rows(part, seed, rows)
    mixed = mixed_rows(part.transposed, seed, count)
    small = mixed.objective.transposed
    h = None if small.h is None else small.h.contiguous()  # it is read once for every candidate
    product = Objective(small.lhs, small.rhs.contiguous(), h, small.metric, small.unit)

    def mix(rhs: Tensor) -> Tensor:
        return mixed.mix((rhs if entries is None else rhs[entries]).mT).mT.contiguous()

    return Sample(product, mix)


def _as_it_is(fixed: Tensor) -> Tensor:
    return fixed


def sample_rows(objective: Objective, seed: int, count: int, power: float = 1.0) -> tuple[Objective, Tensor | None]:
    """`count` rows of the left side: of a linear of all its rows, of a matmul of every head of every image or window;
    and which (None: all).

    A row's chance goes with its weight to the `power`; it is weighted up by the inverse, so that sums stay unbiased.
    Below 1 a sample is less sharp, and safer where the errors are not where the weight is.
    """
    rows = objective.lhs.shape[-2]
    if count >= rows:
        return objective, None
    if objective.h is None:
        index = torch.randperm(rows, generator=torch.Generator().manual_seed(seed))[:count].sort().values
        index = index.expand(*objective.lhs.shape[:-2], count)
        h, unit = None, objective.unit * rows / count
    else:
        index, factors = draw(_row_weights(objective) ** power, count, seed)
        h, unit = rows_of(objective.h, index) * factors[..., None], objective.unit
    return Objective(rows_of(objective.lhs, index), objective.rhs, h, objective.metric, unit), index


def sample_entries(objective: Objective, seed: int, count: int) -> tuple[Objective, Tensor | None]:
    """A matmul on `count` of its images or windows, drawn like rows; and which (None: all)."""
    entries = objective.lhs.shape[0]
    if count >= entries:
        return objective, None
    if objective.h is None:
        index = torch.randperm(entries, generator=torch.Generator().manual_seed(seed))[:count].sort().values
        h, unit = None, objective.unit * entries / count
    else:
        index, factors = draw(objective.h.sum((1, 2, 3)), count, seed)
        h, unit = objective.h[index] * factors[:, None, None, None], objective.unit
    return Objective(objective.lhs[index], objective.rhs[index], h, objective.metric, unit), index


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


def _by_weight(objective: Objective) -> Tensor:
    """The rows of the left side [.., n], those first that move the loss most."""
    return _row_weights(objective).argsort(dim=-1, descending=True, stable=True)


def _row_weights(objective: Objective) -> Tensor:
    energy: Tensor = torch.linalg.vector_norm(objective.lhs, dim=-1).square_()
    return energy if objective.h is None else objective.h.sum(-1) * (energy + energy.mean())


# The samples of one search, the largest first: how they are taken, and the most candidates each leaves to the next
# larger one. Next to a weight all are drawn from all rows; a matmul's are drawn each from the one before.
Steps = tuple[tuple[Callable[..., Sample], tuple[float, ...], int], ...]
WEIGHT: Steps = ((fixed_rows, (1280, 0.5), 1), (fixed_rows, (320, 0.5), 4), (fixed_rows, (96,), 12))
INPUT: Steps = ((searched_rows, (2048, 0.5), 1), (searched_rows, (768, 0.5), 4), (searched_rows, (128, 0.5), 12))
MATMUL: Steps = (
    (rows_and_mixed_columns, (160, 96), 1),
    (rows_and_mixed_columns, (64, 32), 8),
    (rows_and_mixed_columns, (20, 12, 0.5), 36),
)


def stages_of(objective: Objective, weight: bool, side: Side, seed: int) -> Stages:
    """weight: the right side is one, and not an activation."""
    if weight:
        fixed, steps = (objective.rhs, INPUT) if side == "lhs" else (objective.lhs, WEIGHT)
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
