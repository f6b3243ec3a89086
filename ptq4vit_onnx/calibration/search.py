"""The search for the quantizers of both sides of one product: alternating (Algorithm 1 of the paper), or separately.

Algorithm 1 searches one side next to the quantised other side, so each side's errors cancel some of the other's. The
cancellation is fitted to the inputs of the float model. In the quantised model the inputs have errors themselves, most
of all at few bits, and the cancellation does not carry over (ViT-T at four bits: KL 2.6 when searched separately, 2.9
after one round; in the published form 3.2 after one round, 4.0 after three). So `rounds` 0, each side next to the float
other side, is the default; `rounds` 3 is the paper.

How one side is searched is written in successive_halving.py.
"""

from __future__ import annotations

import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial

from ptq4vit_onnx.calibration.grids import Grid
from ptq4vit_onnx.calibration.objective import Float, Objective, Product, Side, Turn
from ptq4vit_onnx.calibration.sampling import PILOT_COLUMNS, sketch_columns
from ptq4vit_onnx.calibration.successive_halving import SideSearch
from ptq4vit_onnx.plan.options import Options
from ptq4vit_onnx.plan.quantizers import Quantizer, Uniform
from ptq4vit_onnx.plan.quantizers.twin_prices import with_price
from ptq4vit_onnx.plan.saturation_safe_weights import pair_limit

Pair = tuple[Quantizer, Uniform]  # of the left and of the right side


@dataclass(frozen=True)
class Found:
    """The best quantizers of both sides, and the loss on all recorded rows; of a fast search an estimate of it.

    forms: where several forms of the left side were compared, the damage of each one's best pair (see `_damage`), by
    the name of the quantizer class.
    """

    lhs: Quantizer
    rhs: Uniform
    loss: float
    forms: Mapping[str, float]


class ProductSearch:
    """Searches the two sides of one product. `weight`: the rhs is a constant that ships as pair-safe int8 codes."""

    def __init__(self, objective: Objective, options: Options, weight: bool) -> None:
        self.whole, self.options, self.weight = objective, options, weight
        self.product = Product(objective, weight)
        sketch = cache(partial(sketch_columns, objective, options.seed, PILOT_COLUMNS))
        self.sides: dict[Side, SideSearch] = {
            "lhs": SideSearch(self.product, "lhs", options, sketch),
            "rhs": SideSearch(self.product, "rhs", options, sketch),
        }
        self._separate_rhs: dict[int, Uniform] = {}  # by the limit of pairs of codes
        self._losses: dict[Pair, float] = {}

    def run(self, lhs_grids: Sequence[Grid], rhs_grid: Grid, start: Uniform) -> Found:
        """The best pair over all forms of the left side. start: the right side an alternating search begins with.

        Forms are compared only once the right side is good. A left side found next to a bad one cancels the errors
        there, which says nothing about the form. For the same reason a weight is searched next to the float left side
        first. Every other form gets one round, and the remaining rounds if it is the better one.
        """
        if self.options.rounds == 0:
            return self._found([self.search_separately(grid, rhs_grid) for grid in lhs_grids])
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

    def _found(self, pairs: list[Pair]) -> Found:
        """The cheapest of the pairs, which are one for each form."""
        best = min(pairs, key=self._priced) if len(pairs) > 1 else pairs[0]
        forms = {type(pair[0]).__name__: self._damage(pair) for pair in pairs} if len(pairs) > 1 else {}
        return Found(*best, self._loss_of(*best), forms)

    def search_separately(self, lhs_grid: Grid, rhs_grid: Grid) -> Pair:
        """Each side next to the float other side. Left forms that ship the same weights share the right side."""
        lhs = self.search("lhs", lhs_grid, Float())
        limit = pair_limit(lhs) if self.weight else 0
        if limit not in self._separate_rhs:
            again = len(self._separate_rhs) > 0  # another limit hardly changes which candidates are good
            self._separate_rhs[limit] = typing.cast(Uniform, self.search("rhs", rhs_grid, Float(lhs), again))
        return lhs, self._separate_rhs[limit]

    def alternate(
        self, lhs_grid: Grid, rhs_grid: Grid, rhs: Uniform, rounds: int, lhs: Quantizer | None = None
    ) -> Pair:
        """Algorithm 1: one side, then the other side, until neither changes, at most `rounds` times.

        A weight goes first in a round, as in the authors' code. The side searched last cancels the errors of the other,
        and a weight fitted to the errors of the float model's inputs is wrong for other inputs (ViT-T at four bits, one
        round: KL 3.2 with the weights first, 3.6 with them last).
        rhs: where to begin; of a weight, its first turn has been taken. lhs: found next to it, if rounds went before.
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

    def _priced(self, pair: Pair) -> float:
        """The damage, and what the form costs at run time."""
        form, in_nats = pair[0], self.options.metric == "hessian"
        return with_price(self._damage(pair), form.price_in_nats, form.price_as_ratio, in_nats)

    def _damage(self, pair: Pair) -> float:
        """Under the Hessian metric the expected rise of the output's own loss per image; of others their value."""
        loss = self._loss_of(*pair)
        return loss * self.whole.unit / 2 / self.options.images if self.options.metric == "hessian" else loss

    def _loss_of(self, lhs: Quantizer, rhs: Uniform) -> float:
        """On all recorded rows; of a fast search, estimated on the largest sample of the left side."""
        if (lhs, rhs) not in self._losses:
            self._losses[lhs, rhs] = self._measure_pair(lhs, rhs)
        return self._losses[lhs, rhs]

    def _measure_pair(self, lhs: Quantizer, rhs: Uniform) -> float:
        if self.options.search == "exhaustive":
            return float(self.product.loss(lhs, rhs))
        ladder = self.sides["lhs"].ladder
        sample = ladder.rungs[0].sample
        fixed = sample.reduce_fixed(self.product.quantize_rhs(ladder.fixed, rhs, lhs))
        return float(sample.objective.loss(lhs.fake_quantize(sample.objective.lhs), fixed, 1, -1))

    def search(self, side: Side, grid: Grid, other: Quantizer | Float, again: bool = False) -> Quantizer:
        """The best candidate of `grid` for one side, next to the fixed `other`. again: see `SideSearch.best`."""
        return self.sides[side].best(Turn(side, grid, other), again)
