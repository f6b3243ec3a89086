"""The alternating search of Algorithm 1: one side, then the other, for one product at a time."""

from __future__ import annotations

import typing
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ptq4vit_onnx.grids import Grid
from ptq4vit_onnx.objective import Objective, subsample
from ptq4vit_onnx.options import Options
from ptq4vit_onnx.quantizers import Quantizer, TwinGelu, TwinSoftmax, Uniform
from ptq4vit_onnx.surrogate import lhs_terms, rank, rhs_terms
from ptq4vit_onnx.weight_codes import shipped

Side = Literal["lhs", "rhs"]
RANK_ELEMENTS = 2_000_000  # elements of a side or of the output that the ranking looks at
VERIFY_ELEMENTS = 1_000_000  # and the exact verification of the best
VERIFIED = 5  # candidates measured exactly after ranking
CHEAP = 1_000_000_000  # multiply-adds for which all candidates are measured exactly: the few rows of a last block


# How many times smaller a twin's loss must be than a single range's before it is worth a second product. The second
# P@V is small next to a block; the second fc2 is a quarter of it.
SOFTMAX_PRICE, GELU_PRICE = 1.1, 2.0


def price(lhs: Quantizer) -> float:
    if isinstance(lhs, TwinSoftmax):
        return 1.0 if lhs.fits_a_byte else SOFTMAX_PRICE
    if isinstance(lhs, TwinGelu):
        return 1.0 if lhs.fits_a_byte else GELU_PRICE
    return 1.0


@dataclass(frozen=True)
class Float:
    """A left side that is not quantised yet, and the form it will take (which decides what weights it allows)."""

    form: Quantizer

    def fake_quantize(self, x: Tensor) -> Tensor:
        return x


@dataclass(frozen=True)
class Found:
    """The best quantizers of both sides, and the loss on all recorded rows (per group of the rhs, summed)."""

    lhs: Quantizer
    rhs: Uniform
    loss: float


class ProductSearch:
    """Searches the two sides of one product. `weight`: the rhs is a constant that ships as pair-safe int8 codes."""

    def __init__(self, objective: Objective, options: Options, weight: bool) -> None:
        self.whole, self.options, self.weight = objective, options, weight
        fast = options.search == "fast"
        self.ranked = subsample(objective, RANK_ELEMENTS, options.seed) if fast else objective
        self.verified = subsample(self.ranked, VERIFY_ELEMENTS, options.seed) if fast else objective

    def run(self, lhs_grids: Sequence[Grid], rhs_grid: Grid, start: Uniform) -> Found:
        """The best pair of quantizers over all forms of the left side; `start` is the right side to begin with.

        Forms are compared only once the right side is good: a left side found next to a bad one makes up for its
        errors and says nothing about the form. For the same reason a weight is searched once next to the float left
        side first. Another form gets one round, and the others if it is better.
        """
        rhs = start
        if self.weight:
            form = lhs_grids[0].pick([0] * lhs_grids[0].groups)
            rhs = typing.cast(Uniform, self.search("rhs", rhs_grid, Float(form)))
        best = self.alternate(lhs_grids[0], rhs_grid, rhs, self.options.rounds)
        for grid in lhs_grids[1:]:
            other = self.alternate(grid, rhs_grid, best[1], 1)
            if self._priced(other) < self._priced(best):
                best = other if self.options.rounds == 1 else self.alternate(
                    grid, rhs_grid, other[1], self.options.rounds - 1
                )  # fmt: skip
        lhs, rhs = best
        return Found(lhs, rhs, float(self.loss(self.whole, lhs, rhs, 1, -1)))

    def alternate(self, lhs_grid: Grid, rhs_grid: Grid, rhs: Uniform, rounds: int) -> tuple[Quantizer, Uniform]:
        """Left, right, left, .. until neither side moves, at most `rounds` times."""
        lhs: Quantizer | None = None
        for _ in range(rounds):
            before = (lhs, rhs)
            lhs = self.search("lhs", lhs_grid, rhs)
            rhs = typing.cast(Uniform, self.search("rhs", rhs_grid, lhs))
            if (lhs, rhs) == before:
                break
        assert lhs is not None
        return lhs, rhs

    def _priced(self, pair: tuple[Quantizer, Uniform]) -> float:
        """The loss, times what the form costs at run time."""
        return float(self.loss(self.verified, *pair, 1, -1)) * price(pair[0])

    def search(self, side: Side, grid: Grid, other: Quantizer | Float) -> Quantizer:
        """The best candidate of `grid` for one side, the other side fixed."""
        if self.options.search == "exhaustive" or self._is_cheap(grid):
            order = torch.arange(grid.count)[:, None].expand(-1, grid.groups)
        else:
            order = self.rank(side, grid, other).argsort(dim=0, stable=True)[:VERIFIED]
        losses = torch.stack([
            self.side_loss(self.verified, side, grid.pick(row.tolist()), other, grid) for row in order
        ])  # fmt: skip
        best = order.gather(0, losses.argmin(0, keepdim=True))[0]
        return grid.pick(best.tolist())

    def _is_cheap(self, grid: Grid) -> bool:
        return grid.count * self.verified.out.numel() * self.whole.lhs.shape[-1] <= CHEAP

    def rank(self, side: Side, grid: Grid, other: Quantizer | Float) -> Tensor:
        """Estimated losses [count, groups] of all candidates."""
        objective = self.ranked
        if side == "lhs":
            form = grid.pick([0] * grid.groups)  # all candidates of a grid ask the same of the weights next to them
            rhs = self.quantize_rhs(objective.rhs, typing.cast(Quantizer, other), form)
            terms = lhs_terms(objective, rhs, grid.groups, grid.axis)
            return rank(objective, objective.lhs, grid, terms)
        terms = rhs_terms(objective, other.fake_quantize(objective.lhs), grid.groups, grid.axis)
        if not self.weight:
            return rank(objective, objective.rhs, grid, terms)
        return rank(objective, objective.rhs, grid, terms, lambda x, q: self.quantize_rhs(x, q, other))

    def side_loss(
        self, objective: Objective, side: Side, candidate: Quantizer, other: Quantizer | Float, grid: Grid
    ) -> Tensor:
        if side == "lhs":
            return self.loss(objective, candidate, typing.cast(Quantizer, other), grid.groups, grid.axis)
        return self.loss(objective, other, candidate, grid.groups, grid.axis)

    def loss(self, objective: Objective, lhs: Quantizer | Float, rhs: Quantizer, groups: int, axis: int) -> Tensor:
        """The exact metric per group, float64 [groups]."""
        return objective.loss(
            lhs.fake_quantize(objective.lhs), self.quantize_rhs(objective.rhs, rhs, lhs), groups, axis
        )

    def quantize_rhs(self, rhs: Tensor, quantizer: Quantizer, lhs: Quantizer | Float) -> Tensor:
        """The right side as it will be: a weight in the codes that ship next to `lhs`."""
        if not self.weight:
            return quantizer.fake_quantize(rhs)
        lhs = lhs.form if isinstance(lhs, Float) else lhs
        return shipped(rhs, lhs, typing.cast(Uniform, quantizer))
