"""The search for one product's two sides: the alternating one of Algorithm 1, or each side by itself.

Alternating, a side is chosen so that its errors make up for the other's. They do, for the inputs of the float model;
but in the quantised model the inputs are off already, most of all at few bits, and such luck does not carry over
(ViT-T at four bits: KL 2.6 apart, 2.9 after one round; in the published form 3.2 after one, 4.0 after three). So
`rounds` 0, each side next to the float other side, is the default; `rounds` 3 is the paper.
"""

from __future__ import annotations

import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import torch
from torch import Tensor

from ptq4vit_onnx.calibration import sampling as samples
from ptq4vit_onnx.calibration.clipping import ClipDamage, corrected
from ptq4vit_onnx.calibration.estimate import lhs_terms, rank
from ptq4vit_onnx.calibration.grids import Grid, UniformGrid
from ptq4vit_onnx.calibration.halving import Known, best_of, scouts, with_neighbours
from ptq4vit_onnx.calibration.objective import Move, Objective
from ptq4vit_onnx.calibration.sampling import Sample, Side, Stages
from ptq4vit_onnx.calibration.threads import side_by_side
from ptq4vit_onnx.plan.options import Options
from ptq4vit_onnx.plan.quantizers import Quantizer, Uniform
from ptq4vit_onnx.plan.weight_codes import pair_limit, shipped

RANKED = 28  # candidates of an activation next to a weight that an estimate leaves
SHORTLIST = 6  # candidates that later rounds look at again
# Next to or of a weight, the candidates whose errors on all rows say which rows to draw, as parts of the grid: one that
# clips, of a weight also one that does not (of a grid with zero points, one of those that clips a little). A row may
# have little of what makes rows weigh, and a quarter of the loss (one of 6304 of blocks.7.mlp.fc1 of ViT-T).
PROBES: dict[Side, tuple[float, ...]] = {"rhs": (0.84, 0.3), "lhs": (0.3,)}
# On all rows those errors are seen in so many columns, the heaviest and sums of all others. On the rows that then seem
# to matter most, one of four but not fewer than a thousand, they are exact: one column may lose more than all others.
PROBED_COLUMNS, PROBED, LEAST_PROBED = 64, 4, 1024
MOST_AT_ONCE = 12_000_000  # elements of a left side of which every thread may have a copy: 48 MB
CHEAP = 1_000_000_000  # multiply-adds for which all candidates are measured exactly: the few rows of a last block


@dataclass(frozen=True)
class Float:
    """A side that is not quantised yet; of a left side the form it will take, which decides what weights it allows."""

    form: Quantizer | None = None

    def fake_quantize(self, x: Tensor) -> Tensor:
        return x


@dataclass(frozen=True)
class Found:
    """The best quantizers of both sides, and the loss on all recorded rows; of a fast search an estimate of it.

    forms: where several forms of the left side were compared, by quantizer class: the expected damage of the best pair
    of each in nats per image (Hessian metric), or its loss.
    """

    lhs: Quantizer
    rhs: Uniform
    loss: float
    forms: Mapping[str, float]


class ProductSearch:
    """Searches the two sides of one product. `weight`: the rhs is a constant that ships as pair-safe int8 codes."""

    def __init__(self, objective: Objective, options: Options, weight: bool) -> None:
        self.whole, self.options, self.weight = objective, options, weight
        self._alone: dict[int, Uniform] = {}
        self._shortlists: dict[Side, Tensor] = {}
        self._losses: dict[tuple[Quantizer, Uniform], float] = {}
        self._stages: dict[Side, Stages] = {}
        self._damages: list[Tensor] = []

    def stages(self, side: Side) -> Stages:
        """The samples that one side is searched on; rows are drawn by what they weigh, unless `_probe` said more."""
        if side not in self._stages:
            self._stages[side] = self._stages_of(self.whole, side)
        return self._stages[side]

    def _stages_of(self, product: Objective, side: Side) -> Stages:
        per_channel = self.options.weights == "per-channel"
        return samples.stages_of(product, self.weight, side, self.options.seed, per_channel)

    def _probe(self, side: Side, grid: Grid, other: Quantizer | Float) -> None:
        """Before the first search of one side of a linear: samples whose rows are drawn by what they lose."""
        if side in self._stages or not self.weight:
            return
        picks = (int(part * (grid.count - 1)) for part in PROBES[side])
        probes = [grid.pick([pick] * grid.groups) for pick in picks]
        mixed = self._mixed
        moves: list[tuple[Move, Move]] = []
        for probe in probes:
            if side == "rhs":
                change = self.quantize_rhs(self.whole.rhs, probe, other) - self.whole.rhs
                moves.append((partial(torch.matmul, other=change), partial(torch.matmul, other=mixed.mix(change))))
            else:
                rhs = self._round(side, other, self.whole.rhs, grid)
                moves.append((partial(_moved, by=probe, rhs=rhs), partial(_moved, by=probe, rhs=mixed.mix(rhs))))
        exactly = max(LEAST_PROBED, len(self.whole.lhs) // PROBED)
        self._stages[side] = self._stages_of(self.whole.drawn_by_errors(mixed.objective, moves, exactly), side)

    @cached_property
    def _mixed(self) -> Sample:
        """All rows of a linear, next to a mix of its columns."""
        return samples.mixed_columns(self.whole, self.options.seed, PROBED_COLUMNS)

    def run(self, lhs_grids: Sequence[Grid], rhs_grid: Grid, start: Uniform) -> Found:
        """The best pair of quantizers over all forms of the left side; `start` is the right side to begin with.

        Forms are compared only once the right side is good: a left side found next to a bad one makes up for its
        errors and says nothing about the form. For the same reason a weight is searched once next to the float left
        side first. Another form gets one round, and the others if it is better.
        """
        if self.options.rounds == 0:
            return self._found([self.apart(grid, rhs_grid) for grid in lhs_grids])
        rhs = start
        if self.weight:
            form = lhs_grids[0].pick([0] * lhs_grids[0].groups)
            rhs = typing.cast(Uniform, self.search("rhs", rhs_grid, Float(form)))
        best = self.alternate(lhs_grids[0], rhs_grid, rhs, self.options.rounds)
        tried = [best]
        for grid in lhs_grids[1:]:
            other = self.alternate(grid, rhs_grid, best[1], 1)
            if self._priced(other) < self._priced(best) and self.options.rounds > 1:
                other = self.alternate(grid, rhs_grid, other[1], self.options.rounds - 1, other[0])
            tried.append(other)
            best = min(best, other, key=self._priced)
        return self._found(tried)

    def _found(self, pairs: list[tuple[Quantizer, Uniform]]) -> Found:
        """The cheapest of the pairs, one for each form."""
        best = min(pairs, key=self._priced) if len(pairs) > 1 else pairs[0]
        forms = {type(pair[0]).__name__: self._damage(pair) for pair in pairs} if len(pairs) > 1 else {}
        return Found(*best, self._loss_of(*best), forms)

    def apart(self, lhs_grid: Grid, rhs_grid: Grid) -> tuple[Quantizer, Uniform]:
        """Each side by itself, the other one in float. Left forms that allow the same weights share the right side."""
        lhs = self.search("lhs", lhs_grid, Float())
        limit = pair_limit(lhs) if self.weight else 0
        if limit not in self._alone:
            again = len(self._alone) > 0  # another limit hardly changes which candidates are good
            self._alone[limit] = typing.cast(Uniform, self.search("rhs", rhs_grid, Float(lhs), again))
        return lhs, self._alone[limit]

    def alternate(
        self, lhs_grid: Grid, rhs_grid: Grid, rhs: Uniform, rounds: int, lhs: Quantizer | None = None
    ) -> tuple[Quantizer, Uniform]:
        """One side, the other side, .. until neither moves, at most `rounds` times.

        A weight goes first in a round, as in the authors' code: what is searched last makes up for the errors found
        there, and a weight that does so for the float model's inputs is wrong for others (ViT-T at four bits, one
        round: KL 3.2 with the weights first, 3.6 with them last). `rhs`: where to begin, for a weight its first turn.
        `lhs`: found next to it, where rounds went before.
        """
        for _ in range(rounds):
            before, again = (lhs, rhs), lhs is not None
            if self.weight and lhs is not None:
                rhs = typing.cast(Uniform, self.search("rhs", rhs_grid, lhs, again))
            lhs = self.search("lhs", lhs_grid, rhs, again)
            if not self.weight:
                rhs = typing.cast(Uniform, self.search("rhs", rhs_grid, lhs, again))
            if (lhs, rhs) == before:
                break
        assert lhs is not None
        return lhs, rhs

    def _priced(self, pair: tuple[Quantizer, Uniform]) -> float:
        """The damage, and what the form costs at run time."""
        if self.options.metric == "hessian":
            return self._damage(pair) + pair[0].price_in_nats
        return self._damage(pair) * pair[0].price_as_ratio

    def _damage(self, pair: tuple[Quantizer, Uniform]) -> float:
        """Expected, in nats per image, under the Hessian metric; of another metric its loss."""
        loss = self._loss_of(*pair)
        return loss * self.whole.unit / 2 / self.options.images if self.options.metric == "hessian" else loss

    def _loss_of(self, lhs: Quantizer, rhs: Uniform) -> float:
        """On all recorded rows; fast: on the largest sample, scaled up to stand for them."""
        if (lhs, rhs) not in self._losses:
            self._losses[lhs, rhs] = self._measure_pair(lhs, rhs)
        return self._losses[lhs, rhs]

    def _measure_pair(self, lhs: Quantizer, rhs: Uniform) -> float:
        if self.options.search == "exhaustive":
            return float(self.loss(self.whole, lhs, rhs, 1, -1))
        stages = self.stages("lhs")
        sample = stages.samples[0]
        fixed = sample.mix(self.quantize_rhs(stages.fixed, rhs, lhs))
        return float(sample.objective.loss(lhs.fake_quantize(sample.objective.lhs), fixed, 1, -1))

    def search(self, side: Side, grid: Grid, other: Quantizer | Float, again: bool = False) -> Quantizer:
        """The best candidate of `grid` for one side, the other side fixed.

        Fast: samples of the product, the smallest first, each leave the best few to the next. Of a weight the smallest
        sample looks at one candidate of every few, and leaves those around the best. For an activation next
        to a weight, whose samples cost most, an estimate leaves some before. It does not see errors that add up in
        step, which in a product of two activations is not a matter of small differences (blocks.0.attn.qk of ViT-T at
        four bits: 50 times the smallest loss). again: only those that were best when this side was last searched, for
        the other side has moved little since. Where all are alike, as for a unit that no gradient reaches, the first
        and largest scale is taken, which clips nothing.
        """
        order = torch.arange(grid.count).flip(0)[:, None].expand(-1, grid.groups)
        if not again:
            self._shortlists.pop(side, None)
        if self.options.search == "exhaustive" or self._is_cheap(grid):
            fixed = self._round(side, other, self.whole.rhs if side == "lhs" else self.whole.lhs, grid)
            order = best_of(order, self.measure(self.whole, side, fixed, grid, other, order), 1)
        else:
            order = self._narrow(side, grid, other, self._shortlists.get(side, order) if again else order)
        return grid.pick(order[0].tolist())

    def _narrow(self, side: Side, grid: Grid, other: Quantizer | Float, order: Tensor) -> Tensor:
        """The best of the candidates `order` [n, groups] of one side, sample by sample: [1, groups]."""
        self._probe(side, grid, other)
        stages = self.stages(side)
        whole = self._round(side, other, stages.fixed, grid)
        estimated = self.weight and side == "lhs" and len(order) > RANKED
        scouted = self.weight and side == "rhs" and len(order) == grid.count
        if estimated:
            estimates = self.rank(grid, stages.samples[1].objective, whole, other)
            order = best_of(order, estimates.gather(0, order), RANKED)
        varied: Side = side if self.weight else "lhs"  # of a matmul's right side, the samples have the sides exchanged
        needed = [sample for sample in stages.samples if sample.leaves(grid.count) < len(order)]
        smallest_first = list(enumerate(zip(needed, stages.mixed(whole), strict=False)))[::-1]
        known = Known.nothing_of(order)
        for turn, (stage, (sample, fixed)) in enumerate(smallest_first):
            scouting = scouted and turn == 0
            # of all rows: a larger one would be the same
            is_whole = self.weight and len(sample.objective.lhs) == len(self.whole.lhs)
            leaves = 1 if is_whole and not scouting else sample.leaves(grid.count)
            tried = scouts(order) if scouting else order
            if len(tried) <= leaves:
                continue
            losses = self.measure(sample.objective, varied, fixed, grid, other, tried)
            if self.weight and side == "rhs":
                losses = self._with_clipping(grid, stage, tried, losses)
            if scouting:
                order = with_neighbours(best_of(tried, losses, leaves), grid.count)
                known = Known.nothing_of(order)
                continue
            if not stages.nested:
                known = known.and_of(losses, len(sample.objective.lhs))
                losses = known.losses
            places = losses
            if turn == 0 and estimated:  # by the estimate or by the sample, whichever thinks better of it
                places = places.argsort(dim=0, stable=True).argsort(dim=0)
                places = places.minimum(torch.arange(len(order))[:, None])
            best = places.argsort(dim=0, stable=True)[: max(leaves, SHORTLIST)]
            order = order.gather(0, best)
            if len(order) >= SHORTLIST:
                self._shortlists[side] = order[:SHORTLIST]
            order, known = order[:leaves], known.of(best[:leaves])
        return order

    def _with_clipping(self, grid: Grid, stage: int, tried: Tensor, losses: Tensor) -> Tensor:
        """Losses of a weight's candidates on the sample `stage`, with what clipping does on all rows."""
        if self.whole.h is None or not isinstance(grid, UniformGrid):
            return losses
        if not self._damages:
            damage = ClipDamage(self.whole.rhs, grid)
            products = [*(sample.objective for sample in self.stages("rhs").samples), self.whole]
            self._damages = [damage.on(product) for product in products]
        return corrected(losses, *(self._damages[index].gather(0, tried) for index in (stage, -1)))

    def _round(self, side: Side, other: Quantizer | Float, fixed: Tensor, grid: Grid) -> Tensor:
        """The fixed side, rounded once for all candidates: those of a grid ask the same of a weight next to them."""
        if side == "lhs" and self.weight:
            return self.quantize_rhs(fixed, other, grid.pick([0] * grid.groups))
        return other.fake_quantize(fixed)

    def measure(
        self,
        product: Objective,
        varied: Side,
        fixed: Tensor,
        grid: Grid,
        other: Quantizer | Float,
        candidates: Tensor,
    ) -> Tensor:
        """Losses on `product`, shaped as `candidates` [n, groups]: each row is one quantizer of its `varied` side.

        fixed: its other side, rounded by `other`.
        """

        @torch.no_grad()  # which each thread says for itself
        def loss_of(row: Tensor) -> Tensor:
            quantizer = grid.pick(row.tolist())
            if varied == "lhs":
                sides = quantizer.fake_quantize(product.lhs), fixed
            else:
                sides = fixed, self.quantize_rhs(product.rhs, quantizer, other)
            return product.loss(*sides, grid.groups, grid.axis)

        _ = product.out  # made here, once, and not by each of the threads
        small = product.lhs.numel() <= MOST_AT_ONCE
        return torch.stack(side_by_side(loss_of, candidates) if small else [loss_of(row) for row in candidates])

    def _is_cheap(self, grid: Grid) -> bool:
        return grid.count * self.whole.size * self.whole.lhs.shape[-1] <= CHEAP

    def rank(self, grid: Grid, objective: Objective, rhs: Tensor, other: Quantizer | Float) -> Tensor:
        """Estimated losses [count, groups] of all candidates of an activation next to the weight `rhs`."""
        terms = lhs_terms(objective, None if isinstance(other, Float) else rhs, grid.groups, grid.axis)
        return rank(objective, objective.lhs, grid, terms)

    def loss(
        self, objective: Objective, lhs: Quantizer | Float, rhs: Quantizer | Float, groups: int, axis: int
    ) -> Tensor:
        """The exact metric per group, float64 [groups]."""
        return objective.loss(
            lhs.fake_quantize(objective.lhs), self.quantize_rhs(objective.rhs, rhs, lhs), groups, axis
        )

    def quantize_rhs(self, rhs: Tensor, quantizer: Quantizer | Float, lhs: Quantizer | Float) -> Tensor:
        """The right side as it will be: a weight in the codes that ship next to `lhs`."""
        if not self.weight or isinstance(quantizer, Float):
            return quantizer.fake_quantize(rhs)
        form = lhs.form if isinstance(lhs, Float) else lhs
        assert form is not None
        return shipped(rhs, form, typing.cast(Uniform, quantizer))


def _moved(x: Tensor, by: Quantizer, rhs: Tensor) -> Tensor:
    """What the output moves by if these rows of the left side are rounded."""
    return by.fake_quantize(x).sub_(x) @ rhs
