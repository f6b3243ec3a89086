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
from typing import Literal

import torch
from torch import Tensor

from ptq4vit_onnx.grids import Grid
from ptq4vit_onnx.objective import Objective, subsample
from ptq4vit_onnx.options import Options
from ptq4vit_onnx.quantizers import Quantizer, TwinGelu, TwinSoftmax, Uniform
from ptq4vit_onnx.surrogate import lhs_terms, rank, rhs_terms
from ptq4vit_onnx.weight_codes import pair_limit, shipped

Side = Literal["lhs", "rhs"]
# How many elements of a side or of the output each stage looks at, and how many candidates it leaves.
RANK_ELEMENTS, RANKED = 4_000_000, 50  # by an estimate
GLANCE_ELEMENTS, GLANCED = 400_000, 8  # exactly
VERIFY_ELEMENTS = 2_000_000  # exactly
SHORTLIST = 20  # candidates that later rounds look at again
CHEAP = 1_000_000_000  # multiply-adds for which all candidates are measured exactly: the few rows of a last block


# What the expected damage (1/2 g^2 d^2, in nats per image) must fall by before a twin is worth its second product. The
# two are in the ratio of what they cost in time: of a DeiT-S, twelve second P@V take 2 %, twelve second fc2 27 %.
SOFTMAX_NATS, GELU_NATS = 2.5e-5, 4e-4
# The same for metrics without nats: how many times smaller the loss must be.
SOFTMAX_RATIO, GELU_RATIO = 1.1, 8.0


def needs_second_product(lhs: Quantizer) -> bool:
    return isinstance(lhs, (TwinSoftmax, TwinGelu)) and not lhs.fits_a_byte


def price_in_nats(lhs: Quantizer) -> float:
    if not needs_second_product(lhs):
        return 0.0
    return SOFTMAX_NATS if isinstance(lhs, TwinSoftmax) else GELU_NATS


def price_as_ratio(lhs: Quantizer) -> float:
    if not needs_second_product(lhs):
        return 1.0
    return SOFTMAX_RATIO if isinstance(lhs, TwinSoftmax) else GELU_RATIO


@dataclass(frozen=True)
class Float:
    """A side that is not quantised yet; of a left side the form it will take, which decides what weights it allows."""

    form: Quantizer | None = None

    def fake_quantize(self, x: Tensor) -> Tensor:
        return x


@dataclass(frozen=True)
class Found:
    """The best quantizers of both sides, and the loss on all recorded rows (per group of the rhs, summed).

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
        self._damages: dict[tuple[Quantizer, Uniform], float] = {}
        self.ranked = objective
        self.stages: dict[Side, tuple[Objective, Objective]] = {}
        if options.search == "fast":
            self.stages = {"lhs": self._samples(objective)}
            self.stages["rhs"] = self.stages["lhs"] if weight else self._samples(objective.transposed)
            self.ranked = subsample(objective, RANK_ELEMENTS, options.seed) if weight else objective

    def _samples(self, objective: Objective) -> tuple[Objective, Objective]:
        """A few rows and more rows of the side that is searched."""
        seed = self.options.seed
        return subsample(objective, GLANCE_ELEMENTS, seed), subsample(objective, VERIFY_ELEMENTS, seed)

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
                other = self.alternate(grid, rhs_grid, other[1], self.options.rounds - 1)
            tried.append(other)
            best = min(best, other, key=self._priced)
        return self._found(tried)

    def _found(self, pairs: list[tuple[Quantizer, Uniform]]) -> Found:
        """The cheapest of the pairs, one for each form."""
        best = min(pairs, key=self._priced) if len(pairs) > 1 else pairs[0]
        forms = {type(pair[0]).__name__: self._damage(pair) for pair in pairs} if len(pairs) > 1 else {}
        return Found(*best, float(self.loss(self.whole, *best, 1, -1)), forms)

    def apart(self, lhs_grid: Grid, rhs_grid: Grid) -> tuple[Quantizer, Uniform]:
        """Each side by itself, the other one in float. Left forms that allow the same weights share the right side."""
        lhs = self.search("lhs", lhs_grid, Float())
        limit = pair_limit(lhs) if self.weight else 0
        if limit not in self._alone:
            self._alone[limit] = typing.cast(Uniform, self.search("rhs", rhs_grid, Float(lhs)))
        return lhs, self._alone[limit]

    def alternate(self, lhs_grid: Grid, rhs_grid: Grid, rhs: Uniform, rounds: int) -> tuple[Quantizer, Uniform]:
        """One side, the other side, .. until neither moves, at most `rounds` times.

        A weight goes first in a round, as in the authors' code: what is searched last makes up for the errors found
        there, and a weight that does so for the float model's inputs is wrong for others (ViT-T at four bits, one
        round: KL 3.2 with the weights first, 3.6 with them last). `rhs`: where to begin, for a weight its first turn.
        """
        lhs: Quantizer | None = None
        for turn in range(rounds):
            before, again = (lhs, rhs), turn > 0
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
            return self._damage(pair) + price_in_nats(pair[0])
        return self._damage(pair) * price_as_ratio(pair[0])

    def _damage(self, pair: tuple[Quantizer, Uniform]) -> float:
        """Expected, in nats per image, under the Hessian metric; of another metric its loss."""
        if pair not in self._damages:
            _, verified = self.stages.get("lhs", (self.whole, self.whole))
            loss = float(self.loss(verified, *pair, 1, -1))
            nats = verified.unit / 2 / self.options.images
            self._damages[pair] = loss * nats if self.options.metric == "hessian" else loss
        return self._damages[pair]

    def search(self, side: Side, grid: Grid, other: Quantizer | Float, again: bool = False) -> Quantizer:
        """The best candidate of `grid` for one side, the other side fixed.

        Fast: next to a weight, an estimate leaves half of the candidates; a few rows leave the best of these; more rows
        decide. The estimate leaves out errors that add up in step. In a product of two activations that is not a
        matter of small differences (blocks.0.attn.qk of ViT-T at four bits: 50 times the smallest loss), so there the
        few rows, which cost little, see all candidates. again: only those that were best when this side was last
        searched, for the other side has moved little since.
        """
        order = torch.arange(grid.count)[:, None].expand(-1, grid.groups)
        decisive = self.whole
        if self.options.search == "fast" and not self._is_cheap(grid):
            if again:
                order = self._shortlists[side]
            elif self.weight:
                order = self.rank(side, grid, other).argsort(dim=0, stable=True)[:RANKED]
            glanced, decisive = self.stages[side]
            order = _best(order, self.measure(glanced, side, grid, other, order), SHORTLIST)
            self._shortlists[side], order = order, order[:GLANCED]
        best = _best(order, self.measure(decisive, side, grid, other, order), 1)
        return grid.pick(best[0].tolist())

    def measure(
        self, objective: Objective, side: Side, grid: Grid, other: Quantizer | Float, candidates: Tensor
    ) -> Tensor:
        """Exact losses, shaped as `candidates` [n, groups]: each row is one quantizer. The other side is rounded once.

        objective: of a matmul's right side, its sample of the product with the sides exchanged, or the whole product.
        """
        picked = [grid.pick(row.tolist()) for row in candidates]
        if side == "rhs" and not self.weight and objective is not self.whole:
            fixed = other.fake_quantize(objective.rhs)
            pairs = ((q.fake_quantize(objective.lhs), fixed) for q in picked)
        elif side == "lhs":
            fixed = self.quantize_rhs(objective.rhs, other, picked[0])  # all of a grid ask the same of a weight
            pairs = ((q.fake_quantize(objective.lhs), fixed) for q in picked)
        else:
            fixed = other.fake_quantize(objective.lhs)
            pairs = ((fixed, self.quantize_rhs(objective.rhs, q, other)) for q in picked)
        losses = [objective.loss(lhs, rhs, grid.groups, grid.axis) for lhs, rhs in pairs]
        return torch.stack(losses)

    def _is_cheap(self, grid: Grid) -> bool:
        return grid.count * self.whole.out.numel() * self.whole.lhs.shape[-1] <= CHEAP

    def rank(self, side: Side, grid: Grid, other: Quantizer | Float) -> Tensor:
        """Estimated losses [count, groups] of all candidates of a product with a weight."""
        objective = self.ranked
        if side == "lhs":
            form = grid.pick([0] * grid.groups)  # all candidates of a grid ask the same of the weights next to them
            rhs = None if isinstance(other, Float) else self.quantize_rhs(objective.rhs, other, form)
            return rank(objective, objective.lhs, grid, lhs_terms(objective, rhs, grid.groups, grid.axis))
        lhs = None if isinstance(other, Float) else other.fake_quantize(objective.lhs)
        terms = rhs_terms(objective, lhs, grid.groups, grid.axis)

        def ship(x: Tensor, candidate: int) -> Tensor:
            return self.quantize_rhs(x, grid.pick([candidate] * grid.groups), other)

        return rank(objective, objective.rhs, grid, terms, ship)

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


def _best(candidates: Tensor, losses: Tensor, count: int) -> Tensor:
    """The `count` candidates of each group with the smallest losses, best first; all are [n, groups]."""
    return candidates.gather(0, losses.argsort(dim=0, stable=True)[:count])
