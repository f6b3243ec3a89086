"""Small products that rank candidates as the whole one does.

With the candidate Q, the other side rounded to B and o = x rhs, the loss is sum h d^2 of d = Q(x) B - o. A sample makes
it smaller in two ways:

* Rows are left out by importance sampling. A row's chance to be drawn is proportional to how much it matters (`draw`),
  and its h is multiplied by the Horvitz-Thompson weight, the inverse of that chance, so that sums stay unbiased.
* Columns are added up by a Rademacher sketch. d is linear in B, so columns of B can be added up, each times a random
  sign s and the root of its weight a:

      E (sum_j s_j sqrt(a_j) d_j)^2  =  sum_j a_j d_j^2

A sketch sees all columns. In a product of two activations each head of each image is a product of its own, and the
sketch's noise averages out over them: 32 sketched columns do what 64 drawn ones do (DeiT-T). Next to a weight one
sketch would serve all rows, and that fails: a clipped weight errs most for the tokens to which its column matters, and
a sum of columns does not keep apart which column matters to which token. There a sketch only helps to draw rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from ptq4vit_onnx.calibration.objective import CHUNK_ELEMENTS, Objective, Product, Side, Turn
from ptq4vit_onnx.plan.quantizers import Quantizer
from ptq4vit_onnx.threads.side_by_side import MOST, side_by_side

RowErrors = Callable[[Tensor], Tensor]  # rows of the left side [n, K] -> the errors of their outputs [n, M]
FEW_ENTRIES = 8  # so many images or windows are never sampled
COLUMNS_FOR_A_SUM = 8  # columns drawn in place of one sketched column, where the metric forbids a sketch
FLOOR = 0.1  # the least weight a row is drawn by, as part of the mean weight
SETTLED = 10  # iterations after which chances that are cut off at 1 still add up
# The pilot candidates, as positions in the grid: one that clips, of a weight also one that does not (in a grid with
# zero points, one of those that clips a little).
PILOTS: dict[Side, tuple[float, ...]] = {"rhs": (0.84, 0.3), "lhs": (0.3,)}
# A pilot's errors are seen on all rows in a sketch of PILOT_COLUMNS. On the rows that then seem to matter most, one of
# PILOT_SHARE but at least LEAST_PILOT_ROWS, they are exact: one column may lose more than all others.
PILOT_COLUMNS, PILOT_SHARE, LEAST_PILOT_ROWS = 64, 4, 1024


@dataclass(frozen=True)
class Sample:
    """A small product that stands for a larger one.

    reduce_fixed: turns the larger product's fixed side, once that is quantised, into this one's.
    """

    objective: Objective
    reduce_fixed: Callable[[Tensor], Tensor]


def draw_fixed_rows(objective: Objective, seed: int, count: int) -> Sample:
    """Rows of the left side next to all of the right side, a weight, which is searched."""
    part, index = sample_rows(objective, seed, count)
    return Sample(part, _unchanged if index is None else lambda lhs: rows_of(lhs, index))


def draw_searched_rows(objective: Objective, seed: int, count: int) -> Sample:
    """Rows of the left side, which is searched, next to all of the right side, a weight."""
    return Sample(sample_rows(objective, seed, count)[0], _unchanged)


def draw_rows_and_sketch_columns(objective: Objective, seed: int, rows: int, count: int, share: float = 1.0) -> Sample:
    """Rows of the left side, which is searched, next to a sketch of `count` columns: for two activations.

    share: the part of the images or windows to look at, where there are more than FEW_ENTRIES.
    """
    entries = max(FEW_ENTRIES, round(share * objective.lhs.shape[0]))
    part, take = sample_entries(objective, seed, entries)
    part, _ = sample_rows(part, seed, rows)
    sketch = sketch_columns(part, seed, count)
    return replace(sketch, reduce_fixed=lambda rhs: sketch.reduce_fixed(take(rhs)))


def sketch_columns(objective: Objective, seed: int, count: int) -> Sample:
    """All of the left side next to a Rademacher sketch of the right side's columns.

    Under the Pearson metric columns are drawn instead: it needs sum d, which random signs do not keep.
    """
    if count >= objective.rhs.shape[-1]:
        return Sample(_contiguous(objective), _unchanged)
    if objective.metric == "pearson":
        sample = draw_fixed_rows(_with_all_weights(objective).transposed, seed, COLUMNS_FOR_A_SUM * count)
        small = _contiguous(_with_all_weights(sample.objective.transposed))
        return Sample(small, lambda rhs: sample.reduce_fixed(rhs.mT).mT.contiguous())
    signed, means = sketch_matrices(objective, count, seed)
    h = objective.h if objective.h_of_columns is None else objective.h_of_columns @ means
    small = Objective(objective.lhs, objective.rhs @ signed, h, objective.metric, objective.unit)
    return Sample(small, lambda rhs: rhs @ signed)


def sketch_matrices(objective: Objective, count: int, seed: int) -> tuple[Tensor, Tensor]:
    """The matrix of signs and weights that makes `count` columns of the right side's [.., K, n]; and the one that makes
    their h of the columns' h. Both are [.., n, count].

    The heaviest columns stand by themselves. The others are added up, a few neighbours each: the h of a sum is the mean
    of its columns' h, over their part in the sum.
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


def sample_rows(objective: Objective, seed: int, count: int) -> tuple[Objective, Tensor | None]:
    """`count` rows of the left side, and which they are (None: all of them).

    Of a product of two activations, `count` rows of every head of every image or window. h carries the
    Horvitz-Thompson weights.
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
    """A product of two activations on `count` of its images or windows, and the function that takes those of a side.

    Each head draws its own, by what they matter to it; h carries the Horvitz-Thompson weights.
    """
    entries, heads = objective.lhs.shape[:2]
    if count >= entries:
        return objective, _unchanged
    index, factors = draw(objective.row_weights.sum(2).T, count, seed)
    flat = (index * heads + torch.arange(heads)[:, None]).T.flatten()

    def take(x: Tensor) -> Tensor:
        taken = x.flatten(0, 1).index_select(0, flat)
        return taken.reshape(count, heads, *taken.shape[1:])

    h = factors.T[..., None, None]
    h = h if objective.h is None else h * take(objective.h)
    return Objective(take(objective.lhs), take(objective.rhs), h, objective.metric, objective.unit), take


def draw(weights: Tensor, count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Systematic sampling: `count` indices of the last axis of `weights` [.., n], and their Horvitz-Thompson weights.

    The chances are laid end to end on a line, and equidistant points with one random offset pick the intervals they
    fall into. A chance is proportional to the weight plus FLOOR of the mean weight, and 1 at most; the Horvitz-Thompson
    weight is its inverse. Both results are [.., count].
    """
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


def weigh_rows_by_pilots(product: Product, turn: Turn, sketch: Sample) -> Objective:
    """A copy of a linear whose row weights include the losses of the PILOTS of the side that is searched.

    A row may hardly matter by its norm and gradient, and still have a quarter of the loss (one of 6304 of
    blocks.7.mlp.fc1 of ViT-T). sketch: all rows of the linear next to a sketch of its columns.
    """
    grid, whole = turn.grid, product.whole
    positions = (int(part * (grid.count - 1)) for part in PILOTS[turn.side])
    pilots = [_pilot(product, turn, grid.pick([position] * grid.groups), sketch) for position in positions]
    exact_rows = max(LEAST_PILOT_ROWS, len(whole.lhs) // PILOT_SHARE)
    return weigh_rows_by_errors(whole, sketch.objective, pilots, exact_rows)


def _pilot(product: Product, turn: Turn, candidate: Quantizer, sketch: Sample) -> Pilot:
    """The errors of a candidate by itself: x (Q(w) - w) of a weight w, (Q(x) - x) w of an activation x."""
    whole = product.whole
    if turn.side == "rhs":
        change = product.quantize_rhs(whole.rhs, candidate, turn.other) - whole.rhs
        return Pilot(partial(torch.matmul, other=change), partial(torch.matmul, other=sketch.reduce_fixed(change)))
    rhs = product.quantize_fixed(turn, whole.rhs)
    error = partial(_rounding_errors, quantizer=candidate)
    return Pilot(partial(error, rhs=rhs), partial(error, rhs=sketch.reduce_fixed(rhs)))


def _rounding_errors(rows: Tensor, quantizer: Quantizer, rhs: Tensor) -> Tensor:
    """The output errors of rows of the left side that are rounded by `quantizer`."""
    return quantizer.fake_quantize(rows).sub_(rows) @ rhs


@dataclass(frozen=True)
class Pilot:
    """The output errors that one candidate makes on rows of a linear: exactly, and in a sketch of its columns."""

    exact: RowErrors
    sketched: RowErrors


def weigh_rows_by_errors(
    objective: Objective, sketch: Objective, pilots: Sequence[Pilot], exact_rows: int
) -> Objective:
    """A copy of a linear whose row weights include the loss of each pilot on the row, as a part of its loss on all.

    The losses are seen in `sketch`, the linear with its columns sketched; of the `exact_rows` rows that weigh most so
    far they are exact.
    """
    total = objective.row_weights / objective.row_weights.sum().clamp(min=1e-30)
    for pilot in pilots:
        lost = losses_of_rows(sketch, pilot.sketched)
        heaviest = (total + lost / lost.sum().clamp(min=1e-30)).topk(min(exact_rows, len(total))).indices
        lost[heaviest] = losses_of_rows(objective, pilot.exact, heaviest)
        total = total + lost / lost.sum().clamp(min=1e-30)
    return Objective(objective.lhs, objective.rhs, objective.h, objective.metric, objective.unit, total)


def losses_of_rows(objective: Objective, errors: RowErrors, rows: Tensor | None = None) -> Tensor:
    """sum h d^2 of each of the `rows` (None: all) of a linear; `errors` is asked for a few rows at a time, by several
    threads."""
    rows = torch.arange(len(objective.lhs)) if rows is None else rows
    most = CHUNK_ELEMENTS // max(objective.rhs.shape)
    parts = rows.tensor_split(max(MOST, -(-len(rows) // max(1, most))))

    def lost(part: Tensor) -> Tensor:
        return objective.weighed(errors(objective.lhs[part]).square_(), part).sum(-1)

    return torch.cat(side_by_side(lost, parts))


def rows_of(x: Tensor, index: Tensor) -> Tensor:
    """x [.., n, C] and index [.., m]: the rows [.., m, C]. Copying whole rows is far faster than gather."""
    if x.dim() == 2:
        return x.index_select(0, index)
    starts = torch.arange(0, index.numel() // index.shape[-1] * x.shape[-2], x.shape[-2])
    flat = (index.reshape(len(starts), -1) + starts[:, None]).flatten()
    return x.reshape(-1, x.shape[-1]).index_select(0, flat).reshape(*index.shape, x.shape[-1])


def _column_weights(objective: Objective) -> Tensor:
    """How much the columns of the right side [.., M] matter for the loss."""
    energy: Tensor = objective.rhs.square().sum(-2)
    return energy if objective.h is None else objective.h.sum(-2) * (energy + energy.mean())


def _with_all_weights(objective: Objective) -> Objective:
    """With h in the output's shape."""
    if objective.h is None:
        return objective
    h = objective.h.expand(*objective.lhs.shape[:-1], objective.rhs.shape[-1])
    return Objective(objective.lhs, objective.rhs, h, objective.metric, objective.unit)


def _contiguous(objective: Objective) -> Objective:
    """With h in the memory order of the output, beside which every candidate reads it."""
    if objective.h is None or objective.h.is_contiguous():
        return objective
    return Objective(objective.lhs, objective.rhs, objective.h.contiguous(), objective.metric, objective.unit)


def _unchanged(fixed: Tensor) -> Tensor:
    return fixed
