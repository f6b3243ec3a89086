"""What the search minimises: the error of a product's output, by the chosen metric, per group.

With d = quantised - float output and o = float output, over all elements of a group:
    hessian   sum g^2 d^2       (Eq. 7 of the paper: g = d loss / d output)
    mse       sum d^2
    cosine    1 - <o, o+d> / (|o| |o+d|)
    pearson   the same, both centred
g^2 is the diagonal of the Fisher information, which stands for the Hessian of the loss in the output's values.
All four metrics follow from a few sums (`Sums`), which the exact measurement and the fast estimate share.

`Objective` measures tensors that are quantised already; `Product` measures candidates of a grid.
"""

from __future__ import annotations

import typing
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from ptq4vit_onnx.calibration.grids import Grid, group_reduce
from ptq4vit_onnx.network.recording import Recording
from ptq4vit_onnx.plan.options import SUMS_OF_SQUARES, Metric
from ptq4vit_onnx.plan.quantizers import Quantizer, Uniform
from ptq4vit_onnx.plan.saturation_safe_weights import shipped
from ptq4vit_onnx.threads.side_by_side import side_by_side

Side = Literal["lhs", "rhs"]
VANISHED = 1e-9  # relative to the float output's square: anything smaller is rounding error
FEW = 8  # in groups of fewer outputs cosine and pearson are ignored: rounding errors would decide about the scale
CHUNK_ELEMENTS = 4_000_000  # outputs held at once while a candidate is measured: bounds memory, not results
MOST_AT_ONCE = 12_000_000  # elements of a left side of which every thread may have a copy: 48 MB


@dataclass(frozen=True)
class Sums:
    """The sums that all metrics follow from, per group: float64 [groups] each. Every output counts with its weight h.

    quad: sum d^2. dot: <d, o>. total: sum d. o_squared: sum o^2. o_total: sum o. size: sum of the weights.
    """

    quad: Tensor
    dot: Tensor
    total: Tensor
    o_squared: Tensor
    o_total: Tensor
    size: Tensor

    @classmethod
    def of_squares(cls, quad: Tensor) -> Sums:
        """For metrics that need sum d^2 alone."""
        none = torch.zeros_like(quad)
        return cls(quad, none, none, none, none, none)

    def value(self, metric: Metric) -> Tensor:
        """The metric per group. Groups of fewer than FEW outputs get sum d^2 instead of cosine or pearson."""
        if metric in SUMS_OF_SQUARES or self.size.max() < FEW:
            return self.quad
        quad, dot, o_squared = self.quad, self.dot, self.o_squared
        if metric == "pearson":
            quad = quad - self.total**2 / self.size
            dot = dot - self.total * self.o_total / self.size
            o_squared = o_squared - self.o_total**2 / self.size
        norm = (o_squared.clamp(min=0) * (o_squared + 2 * dot + quad).clamp(min=0)).sqrt()
        similarity = (o_squared + dot) / norm.clamp(min=1e-30)
        vanished = norm <= VANISHED * self.o_squared  # an output of rounding errors alone has no direction
        distance = 1 - torch.where(vanished, 0.0, similarity.clamp(-1, 1))
        return torch.where(self.quad > 0, distance, 0.0)


class Objective:
    """One product with its float output and the weight h of each output element.

    lhs [.., n, K], rhs [.., K, M] or [K, M]. Under the Hessian metric h is the Fisher diagonal g^2, scaled to mean 1,
    in the output's shape. The other metrics weigh all outputs alike, so h is None. In a sample h is multiplied by the
    Horvitz-Thompson weights of its rows, images or columns: [.., n, 1], [images, heads, 1, 1] or the output's shape.
    unit: a loss times this is sum g^2 d^2 over all that the recording stands for.
    row_weights: how much each row of the left side [.., n] matters for the loss; None: see the property.
    """

    def __init__(
        self, lhs: Tensor, rhs: Tensor, h: Tensor | None, metric: Metric, unit: float = 1.0,
        row_weights: Tensor | None = None,
    ) -> None:  # fmt: skip
        self.lhs, self.rhs, self.h, self.metric, self.unit = lhs, rhs, h, metric, unit
        self._row_weights = row_weights

    @cached_property
    def out(self) -> Tensor:
        """The float output. It is computed on first use, because most searches look at samples of the product only."""
        return self.lhs @ self.rhs

    @cached_property
    def row_weights(self) -> Tensor:
        """How much each row of the left side [.., n] matters: its squared norm (plus the mean one), times its h.

        It is computed once for all samples that are drawn by it.
        """
        if self._row_weights is not None:
            return self._row_weights
        energy: Tensor = self.lhs.square().sum(-1)
        energy = energy + energy.mean()
        return energy if self.h is None else self.h.sum(-1) * energy

    @property
    def h_of_columns(self) -> Tensor | None:
        """h, or None where it is the same for all columns."""
        return None if self.h is None or self.h.shape[-1] == 1 else self.h

    def weighed(self, x: Tensor, part: slice | Tensor) -> Tensor:
        """x times h, in place. `part`: which entries of the leading axis x holds."""
        return x if self.h is None else x.mul_(self.h[part])

    @property
    def size(self) -> int:
        """How many elements the output has."""
        return self.lhs.numel() // self.lhs.shape[-1] * self.rhs.shape[-1]

    @property
    def transposed(self) -> Objective:
        """The same product of two activations with its sides exchanged: rhs^T @ lhs^T."""
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


@dataclass(frozen=True)
class Float:
    """A side that is left in float. form: of a left side, the quantizer it will get, which decides which weights ship.

    Only the form's largest code matters (see saturation_safe_weights), not its scale.
    """

    form: Quantizer | None = None

    def fake_quantize(self, x: Tensor) -> Tensor:
        return x


@dataclass(frozen=True)
class Turn:
    """One search: `side` takes a candidate of `grid`, while the other side stays quantised by `other`."""

    side: Side
    grid: Grid
    other: Quantizer | Float

    @property
    def candidates(self) -> Tensor:
        """All of them, the largest scale first: [count, groups]. A column is the order of one group's candidates."""
        return torch.arange(self.grid.count).flip(0)[:, None].expand(-1, self.grid.groups)


@dataclass(frozen=True)
class Product:
    """The whole product whose sides are searched. weight: its right side is a constant that ships as int8 codes."""

    whole: Objective
    weight: bool

    def quantize_rhs(self, rhs: Tensor, quantizer: Quantizer | Float, lhs: Quantizer | Float) -> Tensor:
        """The right side as the file will hold it: a weight in the pair-safe codes that ship next to `lhs`."""
        if not self.weight or isinstance(quantizer, Float):
            return quantizer.fake_quantize(rhs)
        form = lhs.form if isinstance(lhs, Float) else lhs
        assert form is not None
        return shipped(rhs, form, typing.cast(Uniform, quantizer))

    def quantize_fixed(self, turn: Turn, fixed: Tensor) -> Tensor:
        """The side that is not searched, quantised once: all candidates of one grid ship the same weight."""
        if turn.side == "lhs" and self.weight:
            return self.quantize_rhs(fixed, turn.other, turn.grid.pick([0] * turn.grid.groups))
        return turn.other.fake_quantize(fixed)

    def measure(self, objective: Objective, turn: Turn, fixed: Tensor, candidates: Tensor) -> Tensor:
        """The exact losses on `objective`, the whole product or a sample of it, shaped as `candidates` [n, groups].

        Each row of `candidates` is one quantizer of the searched side. fixed: the other side, quantised.
        """

        @torch.no_grad()  # a setting of each thread by itself
        def loss_of(row: Tensor) -> Tensor:
            quantizer = turn.grid.pick(row.tolist())
            if turn.side == "lhs":
                sides = quantizer.fake_quantize(objective.lhs), fixed
            else:
                sides = fixed, self.quantize_rhs(objective.rhs, quantizer, turn.other)
            return objective.loss(*sides, turn.grid.groups, turn.grid.axis)

        _ = objective.out  # computed before the threads start, or each of them would
        small = objective.lhs.numel() <= MOST_AT_ONCE
        return torch.stack(side_by_side(loss_of, candidates) if small else [loss_of(row) for row in candidates])

    def measure_all(self, turn: Turn) -> Tensor:
        """The exact losses of all candidates on the whole product: [count, groups], as `turn.candidates`."""
        fixed = self.quantize_fixed(turn, self.whole.rhs if turn.side == "lhs" else self.whole.lhs)
        return self.measure(self.whole, turn, fixed, turn.candidates)

    def loss(self, lhs: Quantizer | Float, rhs: Quantizer | Float, groups: int = 1, axis: int = -1) -> Tensor:
        """The exact metric of one pair on the whole product, float64 [groups]."""
        return self.whole.loss(
            lhs.fake_quantize(self.whole.lhs), self.quantize_rhs(self.whole.rhs, rhs, lhs), groups, axis
        )


def objective_of(recording: Recording, metric: Metric) -> Objective:
    """The recording as an objective.

    Under the Hessian metric, rows that no gradient reaches are left out. In the last block that is nearly all of them.
    """
    lhs, rhs, grad = recording.lhs, recording.rhs, recording.grad
    if metric != "hessian":
        return Objective(lhs, rhs, None, metric)
    kept = (grad != 0).any(-1)
    if kept.dim() > 1:
        kept = kept.flatten(0, -2).any(0)
    if kept.any() and not kept.all():  # without any gradient all rows count alike
        index = kept.nonzero().flatten()
        lhs, grad = lhs.index_select(-2, index), grad.index_select(-2, index)
    h, mean = _squared_to_mean_one(grad)
    return Objective(lhs, rhs, h, metric, mean / recording.share)


def _squared_to_mean_one(grad: Tensor) -> tuple[Tensor, float]:
    """g^2 over its mean, and that mean. g is scaled before squaring: squares of small numbers leave float32's range."""
    largest = grad.abs().max()
    if largest == 0:
        return torch.ones_like(grad), 0.0
    h = (grad / largest).square_()
    mean = h.mean(dtype=torch.float64)
    return h.div_(mean.to(torch.float32)), float(mean) * float(largest) ** 2
