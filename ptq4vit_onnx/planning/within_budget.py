"""Bits for every weight within a budget: single widths and mixtures of them, built, measured and compared.

Sensitivities say which mixture is worth trying. A finished file says how large it is, and images that took no part in
calibration what it costs; a mixture is taken only where it measured better than the best single width that fits.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ptq4vit_onnx.errors import UserError
from ptq4vit_onnx.plan.budget import Allocation, Budget, Point
from ptq4vit_onnx.plan.quantizers import MAX_BITS
from ptq4vit_onnx.plan.scale_plan import SitePlan
from ptq4vit_onnx.planning.allocation import Costs, allocate
from ptq4vit_onnx.planning.widths import WidthPlans
from ptq4vit_onnx.progress import Progress, silent

MOST_REFITS = 12  # of a mixture whose file came out larger than was reckoned, each further below the limit
HALVINGS = 5  # of the sizes between two single widths, the smaller of which costs too much
Widths = Mapping[str, int]


@dataclass(frozen=True)
class Measured:
    """A finished file. size: in bytes. distance: from the float model, as the kind of output measures it."""

    size: int
    distance: float
    agreement: float | None = None
    drop: float | None = None
    drop_error: float | None = None


class Workshop:
    """Files of one model by the bits of its weights, each built and measured once.

    make: from the plans of all sites to the measured file. The single widths are made at once, for everything is
    compared with them.
    """

    def __init__(
        self,
        plans: WidthPlans,
        make: Callable[[Mapping[str, SitePlan]], Measured],
        progress: Progress = silent,
    ) -> None:
        self.plans, self._make = plans, make
        self.made: dict[tuple[tuple[str, int], ...], Measured] = {}
        self.widths = sorted({bits for name in plans.weights for bits in plans.plans[name]})
        bar = progress(self.widths, "single widths")
        self.singles = {bits: self.measured(plans.uniform(bits)) for bits in bar}

    def measured(self, widths: Widths) -> Measured:
        key = tuple(sorted(widths.items()))
        if key not in self.made:
            self.made[key] = self._make(self.plans.sites_at(widths))
        return self.made[key]

    @property
    def bytes_by_width(self) -> Costs:
        """What a weight takes of the file: its codes, and its share of what unpacking adds to a file of its width."""
        counts, whole = self.plans.weights, self.singles[MAX_BITS].size
        more = {
            bits: (found.size - whole + sum(count * (MAX_BITS - bits) / 8 for count in counts.values())) / len(counts)
            for bits, found in self.singles.items()
        }
        taken = {
            name: {bits: count * bits / 8 + more[bits] for bits in self.plans.plans[name]}
            for name, count in counts.items()
        }
        return Costs(self.plans.damage, taken)

    @property
    def bits_by_width(self) -> Costs:
        taken = {name: {bits: float(count * bits) for bits in self.plans.plans[name]}
                 for name, count in self.plans.weights.items()}  # fmt: skip
        return Costs(self.plans.damage, taken)

    def points(self) -> list[Point]:
        """All that were made, the smallest file first."""
        found = [self._point(dict(key), measured) for key, measured in self.made.items()]
        return sorted(found, key=lambda point: (point.size, point.title))

    def _point(self, widths: dict[str, int], found: Measured) -> Point:
        average = self.plans.average(widths)
        single = len(set(widths.values())) == 1
        title = f"{next(iter(widths.values()))} bits" if single else f"{average:.2f} bits on average"
        return Point(title, widths, found.size, average, self.predicted(widths), found.distance, found.agreement,
                     found.drop, found.drop_error)  # fmt: skip

    def predicted(self, widths: Widths) -> float:
        """The distance at eight bits, and the expected damage of the others times one factor for all mixtures.

        The factor is what single widths measured: sensitivities are the quadratic term alone, and see one site at a
        time. They come out about half of what is measured.
        """
        whole, least = self.singles[MAX_BITS].distance, self._damage(self.plans.uniform(MAX_BITS))
        ratios = [
            (found.distance - whole) / (self._damage(self.plans.uniform(bits)) - least)
            for bits, found in self.singles.items()
            if self._damage(self.plans.uniform(bits)) > least
        ]
        factor = max(0.0, statistics.median(ratios)) if ratios else 1.0
        return whole + factor * (self._damage(widths) - least)

    def _damage(self, widths: Widths) -> float:
        return sum(self.plans.damage[name][bits] for name, bits in widths.items())


def spend(budget: Budget, shop: Workshop, measured_on: int, distance: str) -> Allocation:
    """The best choice that fits; a UserError with what would fit, where nothing does."""
    ways = {"max_size": _by_size, "average_weight_bits": _by_average, "max_kl": _by_cost, "max_drop": _by_cost}
    chosen = ways[budget.limited](budget, shop)
    points = tuple(shop.points())
    place = next(index for index, point in enumerate(points) if point.bits == chosen)
    return Allocation(budget, points, place, measured_on, distance)


def _by_size(budget: Budget, shop: Workshop) -> dict[str, int]:
    fitting = [shop.plans.uniform(bits) for bits, found in shop.singles.items() if found.size <= budget.limit]
    costs = shop.bytes_by_width
    counts = shop.plans.weights
    limit = budget.limit - (shop.singles[MAX_BITS].size - sum(counts.values()))  # of the weights alone
    for attempt in range(MOST_REFITS):
        mixed = allocate(costs, limit)
        if mixed is None:
            break
        excess = shop.measured(mixed).size - budget.limit
        if excess <= 0:
            fitting.append(mixed)
            break
        limit -= excess * 2**attempt
    if not fitting:
        smallest = math.ceil(min(found.size for found in shop.singles.values()) / 1e4) / 100
        raise UserError(
            f"--max-size is {budget.limit / 1e6:g} MB; the smallest file of this model has {smallest:.2f} MB, "
            "give at least that"
        )
    return _best(fitting, shop)


def _by_average(budget: Budget, shop: Workshop) -> dict[str, int]:
    fitting = [shop.plans.uniform(bits) for bits in shop.singles if bits <= budget.limit]
    mixed = allocate(shop.bits_by_width, budget.limit * sum(shop.plans.weights.values()))
    if mixed is not None:
        fitting.append(mixed)
    return _best(fitting, shop)


def _best(choices: list[dict[str, int]], shop: Workshop) -> dict[str, int]:
    return min(choices, key=lambda widths: (shop.measured(widths).distance, shop.measured(widths).size))


def _by_cost(budget: Budget, shop: Workshop) -> dict[str, int]:
    """The smallest file that fits: of the single widths, and of mixtures up to the smallest of these."""
    fitting = [bits for bits, found in shop.singles.items() if _cost(budget, found) <= budget.limit]
    if not fitting:
        best = min(shop.singles.values(), key=lambda found: _cost(budget, found))
        name = budget.limited.replace("_", "-")
        raise UserError(
            f"--{name} is {budget.limit:g}; the best single width has {_cost(budget, best):.3g}, give a little more "
            "than that"
        )
    single = min(fitting, key=lambda bits: shop.singles[bits].size)
    found, costs = shop.plans.uniform(single), shop.bytes_by_width
    low, high = costs.of(shop.plans.uniform(shop.widths[0]))[0], costs.of(found)[0]
    below = [bits for bits in shop.singles if bits < single]
    if below:
        low = costs.of(shop.plans.uniform(max(below)))[0]
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        mixed = allocate(costs, middle)
        assert mixed is not None, "no mixture is smaller than the smallest width"
        measured = shop.measured(mixed)
        if _cost(budget, measured) <= budget.limit and measured.size < shop.measured(found).size:
            found, high = mixed, middle
        else:
            low = middle
    return found


def _cost(budget: Budget, found: Measured) -> float:
    if budget.limited == "max_kl":
        return found.distance
    assert found.drop is not None, "a drop needs labels, which are asked for before anything is measured"
    return found.drop
