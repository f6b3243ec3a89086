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
CHEAP = (
    1_000_000_000  # multiply-adds for which all candidates are measured exactly: the few rows of a last block
)


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

    def run(self, lhs_grids: Sequence[Grid], rhs_grid: Grid, rhs: Uniform) -> Found:
        """Alternate until neither side moves, at most `rounds` times, starting from the given right side.

        Several left grids are several forms of quantizer: the first round decides between them.
        """
        lhs: Quantizer | None = None
        grids = list(lhs_grids)
        for _ in range(self.options.rounds):
            before = (lhs, rhs)
            lhs, grid = self.best_form(grids, rhs)
            grids = [grid]
            rhs = typing.cast(Uniform, self.search("rhs", rhs_grid, lhs))
            if (lhs, rhs) == before:
                break
        assert lhs is not None
        return Found(lhs, rhs, float(self.loss(self.whole, lhs, rhs, 1, -1)))

    def best_form(self, grids: list[Grid], rhs: Uniform) -> tuple[Quantizer, Grid]:
        """The best left quantizer over all grids; a form that costs a second product must win by its price."""
        found = [(self.search("lhs", grid, rhs), grid) for grid in grids]
        if len(found) == 1:
            return found[0]
        losses = [float(self.loss(self.verified, lhs, rhs, 1, -1)) * price(lhs) for lhs, _ in found]
        return found[losses.index(min(losses))]

    def search(self, side: Side, grid: Grid, other: Quantizer) -> Quantizer:
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

    def rank(self, side: Side, grid: Grid, other: Quantizer) -> Tensor:
        """Estimated losses [count, groups] of all candidates."""
        objective = self.ranked
        if side == "lhs":
            form = grid.pick(
                [0] * grid.groups
            )  # all candidates of a grid ask the same of the weights next to them
            terms = lhs_terms(
                objective, self.quantize_rhs(objective.rhs, other, form), grid.groups, grid.axis
            )
            return rank(objective, objective.lhs, grid, terms)
        terms = rhs_terms(objective, other.fake_quantize(objective.lhs), grid.groups, grid.axis)
        if not self.weight:
            return rank(objective, objective.rhs, grid, terms)
        return rank(objective, objective.rhs, grid, terms, lambda x, q: self.quantize_rhs(x, q, other))

    def side_loss(
        self, objective: Objective, side: Side, candidate: Quantizer, other: Quantizer, grid: Grid
    ) -> Tensor:
        if side == "lhs":
            return self.loss(objective, candidate, other, grid.groups, grid.axis)
        return self.loss(objective, other, candidate, grid.groups, grid.axis)

    def loss(self, objective: Objective, lhs: Quantizer, rhs: Quantizer, groups: int, axis: int) -> Tensor:
        """The exact metric per group, float64 [groups]."""
        return objective.loss(
            lhs.fake_quantize(objective.lhs), self.quantize_rhs(objective.rhs, rhs, lhs), groups, axis
        )

    def quantize_rhs(self, rhs: Tensor, quantizer: Quantizer, lhs: Quantizer) -> Tensor:
        """The right side as it will be: a weight in the codes that ship next to `lhs`."""
        if not self.weight:
            return quantizer.fake_quantize(rhs)
        return shipped(rhs, lhs, typing.cast(Uniform, quantizer))
