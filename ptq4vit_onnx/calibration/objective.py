"""What the search minimises: how far a product's output moves, by the chosen metric, per group.

With d = quantised - float output and o = float output, over all elements of a group:
    hessian   sum g^2 d^2       (Eq. 7 of the paper: g = d loss / d output)
    mse       sum d^2
    cosine    1 - <o, o+d> / (|o| |o+d|)
    pearson   the same, both centred
All four follow from a few sums, so the exact value and the fast estimate share `value`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ptq4vit_onnx.calibration.grids import group_reduce
from ptq4vit_onnx.network.recording import Recording
from ptq4vit_onnx.plan.options import SUMS_OF_SQUARES, Metric

VANISHED = 1e-9  # of the float output's square: less is rounding errors
FEW = 8  # numbers whose direction says nothing, so that cosine and pearson would leave a scale to rounding errors
Move = Callable[[Tensor], Tensor]  # rows of a left side -> how far their outputs move
CHUNK_ELEMENTS = 4_000_000  # outputs held at once while a candidate is measured: bounds memory, not results


@dataclass(frozen=True)
class Sums:
    """Per group [groups], float64, each output weighed by h. quad: sum d^2; dot: <d, o>; total: sum d; of o alone:
    o_squared, o_total; size: how many outputs there are."""

    quad: Tensor
    dot: Tensor
    total: Tensor
    o_squared: Tensor
    o_total: Tensor
    size: Tensor

    @classmethod
    def of_squares(cls, quad: Tensor) -> Sums:
        """Where the metric asks for nothing else."""
        none = torch.zeros_like(quad)
        return cls(quad, none, none, none, none, none)

    def value(self, metric: Metric) -> Tensor:
        """Of groups of a few numbers, sum d^2 instead of what looks at directions alone."""
        if metric in SUMS_OF_SQUARES or self.size.max() < FEW:
            return self.quad
        quad, dot, o_squared = self.quad, self.dot, self.o_squared
        if metric == "pearson":
            quad = quad - self.total**2 / self.size
            dot = dot - self.total * self.o_total / self.size
            o_squared = o_squared - self.o_total**2 / self.size
        norm = (o_squared.clamp(min=0) * (o_squared + 2 * dot + quad).clamp(min=0)).sqrt()
        similar = (o_squared + dot) / norm.clamp(min=1e-30)
        vanished = norm <= VANISHED * self.o_squared  # nothing is left that could point anywhere, but rounding errors
        apart = 1 - torch.where(vanished, 0.0, similar.clamp(-1, 1))
        return torch.where(self.quad > 0, apart, 0.0)


class Objective:
    """One product with its float output and the weight h of each output element.

    lhs [.., n, K], rhs [.., K, M] or [K, M]. h is g^2 scaled to mean 1 for hessian, like the output. The other metrics
    weigh all outputs alike: None, or in a sample what each row, image or column stands for, as [.., n, 1],
    [images, heads, 1, 1] or in the output's shape.
    unit: what a loss must be multiplied by to be sum g^2 d^2 over all that the recording stands for.
    row_weights: how much each row of the left side [.., n] moves the loss, where more is known than can be seen here.
    """

    def __init__(
        self, lhs: Tensor, rhs: Tensor, h: Tensor | None, metric: Metric, unit: float = 1.0,
        row_weights: Tensor | None = None,
    ) -> None:  # fmt: skip
        self.lhs, self.rhs, self.h, self.metric, self.unit = lhs, rhs, h, metric, unit
        self._row_weights = row_weights

    @cached_property
    def out(self) -> Tensor:
        """The float output; made when it is first asked for, because a search looks at samples of the product alone."""
        return self.lhs @ self.rhs

    @cached_property
    def row_weights(self) -> Tensor:
        """How much each row of the left side [.., n] moves the loss; made once for all samples drawn by it."""
        if self._row_weights is not None:
            return self._row_weights
        energy: Tensor = self.lhs.square().sum(-1)
        energy = energy + energy.mean()
        return energy if self.h is None else self.h.sum(-1) * energy

    def losses_of_rows(self, move: Move, rows: Tensor | None = None) -> Tensor:
        """What each of the rows (None: all) of a linear loses if the output moves by `move`, which is asked with a few
        rows of the left side at a time."""
        rows = torch.arange(len(self.lhs)) if rows is None else rows
        parts = torch.split(rows, max(1, CHUNK_ELEMENTS // max(self.rhs.shape)))
        return torch.cat([self.weighed(move(self.lhs[part]).square_(), part).sum(-1) for part in parts])

    def drawn_by_errors(self, mixed: Objective, moves: Sequence[tuple[Move, Move]], exactly: int) -> Objective:
        """The same linear, its rows weighing also what they lose if the output moves by each of `moves`, and `mixed`,
        the linear with its columns mixed, by its second part: that says which rows to look at `exactly`."""
        total = self.row_weights / self.row_weights.sum().clamp(min=1e-30)
        for move, mixed_move in moves:
            lost = mixed.losses_of_rows(mixed_move)
            heaviest = (total + lost / lost.sum().clamp(min=1e-30)).topk(min(exactly, len(total))).indices
            lost[heaviest] = self.losses_of_rows(move, heaviest)
            total = total + lost / lost.sum().clamp(min=1e-30)
        return Objective(self.lhs, self.rhs, self.h, self.metric, self.unit, total)

    @property
    def h_of_columns(self) -> Tensor | None:
        """h, where it tells one column from another."""
        return None if self.h is None or self.h.shape[-1] == 1 else self.h

    def weighed(self, x: Tensor, part: slice | Tensor) -> Tensor:
        """x, of the outputs `part` of the leading axis, times what they weigh; in place."""
        return x if self.h is None else x.mul_(self.h[part])

    @property
    def size(self) -> int:
        """How many elements the output has."""
        return self.lhs.numel() // self.lhs.shape[-1] * self.rhs.shape[-1]

    @property
    def transposed(self) -> Objective:
        """The same matmul with its sides exchanged: rhs^T @ lhs^T."""
        h = None if self.h is None else self.h.mT
        return Objective(self.rhs.mT, self.lhs.mT, h, self.metric, self.unit)

    def chunks(self) -> Iterator[slice]:
        """Slices of the leading axis (rows of a linear, batches of a matmul)."""
        per_entry = max(1, self.out[0].numel())
        step = max(1, CHUNK_ELEMENTS // per_entry)
        for start in range(0, self.out.shape[0], step):
            yield slice(start, start + step)

    def loss(self, lhs: Tensor, rhs: Tensor, groups: int, axis: int) -> Tensor:
        """The metric of the quantised sides, per group along `axis` of the output: float64 [groups]."""
        sums: list[Tensor] = []
        for part in self.chunks():
            o = self.out[part]
            d = (lhs[part] @ (rhs if rhs.dim() == 2 else rhs[part])).sub_(o)
            pieces = [] if self.metric in SUMS_OF_SQUARES else [d * o, d.clone(), o * o, o.clone(), torch.ones_like(o)]
            pieces.insert(0, d.square_())
            pieces = [group_reduce(self.weighed(piece, part), groups, axis, "sum").double() for piece in pieces]
            sums.append(torch.stack(pieces))
        total = torch.stack(sums).sum(0)
        return total[0] if len(total) == 1 else Sums(*total).value(self.metric)


def objective_of(recording: Recording, metric: Metric) -> Objective:
    """The recording as an objective. Rows no gradient reaches do not count under the Hessian metric: they are left out
    (in the last block that is nearly all of them)."""
    lhs, rhs, grad = recording.lhs, recording.rhs, recording.grad
    if metric != "hessian":
        return Objective(lhs, rhs, None, metric)
    kept = (grad != 0).any(-1)
    if kept.dim() > 1:
        kept = kept.flatten(0, -2).any(0)
    if kept.any() and not kept.all():  # no gradient at all: all rows count alike
        index = kept.nonzero().flatten()
        lhs, grad = lhs.index_select(-2, index), grad.index_select(-2, index)
    h, mean = _squared_to_mean_one(grad)
    return Objective(lhs, rhs, h, metric, mean / recording.share)


def _squared_to_mean_one(grad: Tensor) -> tuple[Tensor, float]:
    """g^2 over its mean, and the mean; divided before squaring: squares of small gradients leave float32's range."""
    largest = grad.abs().max()
    if largest == 0:
        return torch.ones_like(grad), 0.0
    h = (grad / largest).square_()
    mean = h.mean(dtype=torch.float64)
    return h.div_(mean.to(torch.float32)), float(mean) * float(largest) ** 2
