"""Successive halving: one side of a product is chosen on a ladder of samples, each of which drops most candidates.

The smallest sample measures many candidates and keeps the best few, the next larger one measures those, and so on up to
one candidate. Two kinds of product have a cheaper first step:

* An activation next to a weight, whose samples cost most: an estimate without products (see estimate.py) pre-selects
  RANKED candidates. The estimate ignores correlated errors, so products of two activations skip it: there it missed the
  best by a factor of 50 (loss of blocks.0.attn.qk of ViT-T at four bits).
* A weight: the smallest sample measures one of every NEIGHBOURS candidates, and those around the best go on.

The rows of a linear's samples are drawn by the errors of a few pilot candidates on them (`weigh_rows_by_pilots`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ptq4vit_onnx.calibration.clipping import ClipDamage, corrected
from ptq4vit_onnx.calibration.estimate import lhs_terms, rank
from ptq4vit_onnx.calibration.grids import UniformGrid
from ptq4vit_onnx.calibration.objective import Float, Objective, Product, Side, Turn
from ptq4vit_onnx.calibration.sampling import (
    Sample,
    draw_fixed_rows,
    draw_rows_and_sketch_columns,
    draw_searched_rows,
    sample_entries,
    weigh_rows_by_pilots,
)
from ptq4vit_onnx.plan.options import Options
from ptq4vit_onnx.plan.quantizers import Quantizer

RANKED = 28  # candidates of an activation next to a weight that the estimate pre-selects
NEIGHBOURS = 4  # candidates of a weight of which the smallest sample measures one
SHORTLIST = 6  # candidates that later rounds look at again
MOST_HEADS = 1024  # heads of all images or windows together that the largest sample of two activations holds
CHEAP = 1_000_000_000  # multiply-adds up to which all candidates are measured on all rows: the few rows of a last block


@dataclass(frozen=True)
class Rung:
    """One sample of the ladder, and how many candidates it may leave to the next larger one."""

    sample: Sample
    most: int

    def leaves(self, all_candidates: int) -> int:
        """How many candidates remain: fewer than `most` where the grid is small."""
        return min(self.most, 1 + all_candidates // 4)


@dataclass(frozen=True)
class Ladder:
    """The samples that one side is searched on, the largest first.

    fixed: the side that is not searched, in float. nested: each sample is drawn from the one before; otherwise all are
    drawn from the whole product. For the right side of two activations, all samples have the sides exchanged.
    """

    fixed: Tensor
    rungs: tuple[Rung, ...]
    nested: bool

    def climb(self, fixed: Tensor, candidates: int, all_candidates: int) -> list[Step]:
        """The steps from the smallest sample to the largest; samples that would drop nobody are left out.

        fixed: the whole fixed side, quantised.
        """
        needed = [rung for rung in self.rungs if rung.leaves(all_candidates) < candidates]
        steps = []
        for place, rung in enumerate(needed):
            reduced = rung.sample.reduce_fixed(fixed)
            steps.append(Step(place, rung.sample.objective, reduced, rung.leaves(all_candidates)))
            fixed = reduced if self.nested else fixed
        return steps[::-1]


@dataclass(frozen=True)
class Step:
    """One sample with its quantised fixed side. place: in the ladder. leaves: how many candidates remain."""

    place: int
    sample: Objective
    fixed: Tensor
    leaves: int


@dataclass(frozen=True)
class Schedule:
    """How the samples of one kind of search are drawn, the largest first.

    sizes: for each sample the arguments of `draw` (rows; columns of the sketch; share of the images), and the most
    candidates it leaves.
    """

    draw: Callable[..., Sample]
    sizes: tuple[tuple[tuple[float, ...], int], ...]


# Where each column of a weight picks its own scale, a sample must be right for each of them, and so is larger. Without
# gradients, rows differ less in weight, and samples are larger, too.
PER_CHANNEL_WEIGHT = Schedule(draw_fixed_rows, (((1536,), 1), ((576,), 6), ((192,), 14), ((48,), 15)))
PER_TENSOR_WEIGHT = Schedule(draw_fixed_rows, (((512,), 1), ((192,), 4), ((64,), 12), ((32,), 15)))
INPUT = Schedule(draw_searched_rows, (((512,), 1), ((192,), 4), ((64,), 12)))
INPUT_WITHOUT_GRADIENTS = Schedule(draw_searched_rows, (((1024,), 1), ((384,), 4), ((128,), 12)))
TWO_ACTIVATIONS = Schedule(draw_rows_and_sketch_columns, (((144, 128, 0.75), 1), ((80, 36), 8), ((24, 18, 0.5), 26)))


def build_ladder(objective: Objective, weight: bool, side: Side, seed: int, per_channel: bool = False) -> Ladder:
    """The ladder of one side. weight: the right side is one. per_channel: each of the weight's columns has a scale."""
    if weight and side == "lhs":
        fixed, schedule = objective.rhs, INPUT_WITHOUT_GRADIENTS if objective.h is None else INPUT
    elif weight:
        fixed = objective.lhs
        schedule = PER_CHANNEL_WEIGHT if per_channel or objective.h is None else PER_TENSOR_WEIGHT
    else:
        objective, _ = sample_entries(objective, seed, max(2, MOST_HEADS // objective.lhs.shape[1]))
        objective = objective if side == "lhs" else objective.transposed
        fixed, schedule = objective.rhs, TWO_ACTIVATIONS
    rungs = []
    for place, (size, most) in enumerate(schedule.sizes):
        sample = schedule.draw(objective, seed + place, *size)  # other random signs and rows each time
        rungs.append(Rung(sample, most))
        objective = objective if weight else sample.objective
    return Ladder(fixed, tuple(rungs), nested=not weight)


@dataclass(frozen=True)
class Survivors:
    """Candidates [n, groups] that no sample has dropped yet, and the mean of their losses on the samples so far.

    estimated: they are in the order of an estimate, and no sample has measured them.
    The mean weighs samples by rows squared: a larger sample is certain to hold more of the heavy rows, so its loss is
    more reliable than in proportion to its rows.
    """

    candidates: Tensor
    losses: Tensor
    weight: int = 0
    estimated: bool = False

    @classmethod
    def of(cls, candidates: Tensor, estimated: bool = False) -> Survivors:
        return cls(candidates, torch.zeros(candidates.shape, dtype=torch.float64), estimated=estimated)

    def averaged_with(self, losses: Tensor, rows: int) -> Survivors:
        """With the losses on one more sample, of `rows` rows."""
        weight = self.weight + rows**2
        mean = self.losses + (losses - self.losses) * (rows**2 / weight)
        return Survivors(self.candidates, mean, weight, self.estimated)

    def rank(self) -> Tensor:
        """Indices [n, groups], the best first. Behind an estimate, a candidate takes the better of its two places."""
        order = self.losses.argsort(dim=0, stable=True)
        if not self.estimated:
            return order
        places = order.argsort(dim=0).minimum(torch.arange(len(order))[:, None])
        return places.argsort(dim=0, stable=True)

    def keep(self, index: Tensor) -> Survivors:
        return Survivors(self.candidates.gather(0, index), self.losses.gather(0, index), self.weight)


class SideSearch:
    """Chooses the quantizer of one side of a product; its samples and its shortlist serve all rounds of the search.

    sketch: gives all rows of a linear next to a sketch of its columns.
    """

    def __init__(self, product: Product, side: Side, options: Options, sketch: Callable[[], Sample]) -> None:
        self.product, self.side, self.options, self._sketch = product, side, options, sketch
        self._ladder: Ladder | None = None
        self._shortlist: Tensor | None = None
        self._clip_damages: list[Tensor] = []  # of all candidates, on each sample and then on all rows

    @property
    def ladder(self) -> Ladder:
        """The samples of this side; before its first halving, drawn without pilots."""
        if self._ladder is None:
            self._ladder = self._ladder_of(self.product.whole)
        return self._ladder

    def best(self, turn: Turn, again: bool = False) -> Quantizer:
        """The best candidate. again: among the shortlist of the last time, for the other side has changed little since.

        Where all candidates are alike, as for a unit that no gradient reaches, the first and largest scale is taken,
        which clips nothing.
        """
        if not again:
            self._shortlist = None
        if self.options.search == "exhaustive" or self._is_cheap(turn):
            best = best_of(turn.candidates, self.product.measure_all(turn), 1)
        else:
            best = self._narrow(turn, turn.candidates if self._shortlist is None else self._shortlist)
        return turn.grid.pick(best[0].tolist())

    def _is_cheap(self, turn: Turn) -> bool:
        whole = self.product.whole
        return turn.grid.count * whole.size * whole.lhs.shape[-1] <= CHEAP

    def _narrow(self, turn: Turn, candidates: Tensor) -> Tensor:
        """The best of `candidates` [n, groups] by successive halving: [1, groups]."""
        self._draw_by_pilots(turn)
        if not self.product.weight:
            turn = replace(turn, side="lhs")  # the samples of a right side have the sides exchanged
        fixed = self.product.quantize_fixed(turn, self.ladder.fixed)
        survivors = self._preselect(turn, fixed, candidates)
        steps = self.ladder.climb(fixed, len(survivors.candidates), turn.grid.count)
        if steps and self._is_weight and len(candidates) == turn.grid.count:
            survivors, steps = self._scout(turn, steps[0], candidates), steps[1:]
        for step in steps:
            survivors = self._halve(turn, step, survivors)
        return survivors.candidates

    @property
    def _is_weight(self) -> bool:
        """The side itself is a weight."""
        return self.product.weight and self.side == "rhs"

    def _preselect(self, turn: Turn, fixed: Tensor, candidates: Tensor) -> Survivors:
        """Of an activation next to the weight `fixed`, the RANKED best by the estimate; otherwise all candidates."""
        if not self.product.weight or self.side == "rhs" or len(candidates) <= RANKED:
            return Survivors.of(candidates)
        sample = self.ladder.rungs[1].sample.objective
        terms = lhs_terms(sample, None if isinstance(turn.other, Float) else fixed, turn.grid.groups, turn.grid.axis)
        estimates = rank(sample, sample.lhs, turn.grid, terms).gather(0, candidates)
        return Survivors.of(best_of(candidates, estimates, RANKED), estimated=True)

    def _scout(self, turn: Turn, step: Step, candidates: Tensor) -> Survivors:
        """The candidates around the best of a few that stand for their neighbours; all, where there are not many."""
        few = scouts(candidates)
        if len(few) <= step.leaves:
            return Survivors.of(candidates)
        best = best_of(few, self._measure(turn, step, few), step.leaves)
        return Survivors.of(with_neighbours(best, turn.grid.count))

    def _halve(self, turn: Turn, step: Step, survivors: Survivors) -> Survivors:
        """The candidates that one sample leaves. One that holds all rows is the last: larger ones would be the same."""
        is_whole = self.product.weight and len(step.sample.lhs) == len(self.product.whole.lhs)
        leaves = 1 if is_whole else step.leaves
        if len(survivors.candidates) <= leaves:
            return survivors
        losses = self._measure(turn, step, survivors.candidates)
        if self.ladder.nested:  # the smaller samples were drawn from this one, so their losses add nothing
            survivors = replace(survivors, losses=losses)
        else:
            survivors = survivors.averaged_with(losses, len(step.sample.lhs))
        order = survivors.rank()
        if len(order) >= SHORTLIST:
            self._shortlist = survivors.keep(order[:SHORTLIST]).candidates
        return survivors.keep(order[:leaves])

    def _measure(self, turn: Turn, step: Step, candidates: Tensor) -> Tensor:
        """Losses on one sample, shaped as `candidates` [n, groups].

        Those of a weight under the Hessian metric have a control variate: the damage of clipping on all rows.
        """
        losses = self.product.measure(step.sample, turn, step.fixed, candidates)
        whole = self.product.whole
        if not self._is_weight or whole.h is None or not isinstance(turn.grid, UniformGrid):
            return losses
        if not self._clip_damages:
            damage = ClipDamage(whole.rhs, turn.grid)
            samples = [rung.sample.objective for rung in self.ladder.rungs]
            self._clip_damages = [damage.on(objective) for objective in (*samples, whole)]
        seen, real = (self._clip_damages[place].gather(0, candidates) for place in (step.place, -1))
        return corrected(losses, seen, real)

    def _draw_by_pilots(self, turn: Turn) -> None:
        """Before the first halving of a side of a linear: a ladder whose rows are drawn by the pilots' errors."""
        if self._ladder is None and self.product.weight:
            self._ladder = self._ladder_of(weigh_rows_by_pilots(self.product, turn, self._sketch()))

    def _ladder_of(self, whole: Objective) -> Ladder:
        per_channel = self.options.weights == "per-channel"
        return build_ladder(whole, self.product.weight, self.side, self.options.seed, per_channel)


def best_of(candidates: Tensor, losses: Tensor, count: int) -> Tensor:
    """The `count` candidates of each group with the smallest losses, the best first; all are [n, groups]."""
    return candidates.gather(0, losses.argsort(dim=0, stable=True)[:count])


def scouts(candidates: Tensor) -> Tensor:
    """One of every NEIGHBOURS candidates [n, groups], which are all there are, the largest scale first."""
    index = torch.arange(0, len(candidates), NEIGHBOURS) + NEIGHBOURS // 2
    return candidates[index.clamp(max=len(candidates) - 1)]


def with_neighbours(scouts: Tensor, count: int) -> Tensor:
    """The candidates that `scouts` [n, groups] stand for, of `count` in all: [n * NEIGHBOURS, groups]."""
    around = scouts[:, None] + torch.arange(-1, NEIGHBOURS - 1).flip(0)[:, None]
    return around.clamp(0, count - 1).flatten(0, 1)
