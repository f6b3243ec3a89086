"""How many bits each weight gets within a number of bytes: the steps that save most damage per byte come first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

Widths = Mapping[str, int]  # bits, by site


@dataclass(frozen=True)
class Step:
    """A weight that gets more bits, what that costs and what it saves. bits: before and after."""

    site: str
    bits: tuple[int, int]
    cost: float
    saved: float


@dataclass(frozen=True)
class Costs:
    """By site and width: the expected damage, and what the weight takes of the budget (bytes, or bits)."""

    damage: Mapping[str, Mapping[int, float]]
    taken: Mapping[str, Mapping[int, float]]

    def of(self, widths: Widths) -> tuple[float, float]:
        """(what all weights take together, their damage)."""
        taken = sum(self.taken[site][bits] for site, bits in widths.items())
        return taken, sum(self.damage[site][bits] for site, bits in widths.items())


def allocate(costs: Costs, limit: float) -> dict[str, int] | None:
    """The widths with the least damage that take at most `limit` together; None where the smallest take more.

    This is the multiple-choice knapsack by its linear relaxation: all weights begin at their smallest width, and steps
    along the lower convex hulls of (taken, damage) are made in the order of what they save per byte. A step that does
    not fit is left out together with those behind it of the same site; cheaper ones of other sites still are made.
    """
    widths = {site: _cheapest(found) for site, found in costs.taken.items()}
    left = limit - costs.of(widths)[0]
    if left < 0:
        return None
    steps = sorted(_steps(costs), key=lambda step: (-step.saved / step.cost, step.site, step.bits))
    closed: set[str] = set()
    for step in steps:
        if step.site in closed:
            continue
        if step.cost > left:
            closed.add(step.site)
            continue
        assert widths[step.site] == step.bits[0], "steps of a site come in their order: its hull is convex"
        widths[step.site] = step.bits[1]
        left -= step.cost
    return widths


def _steps(costs: Costs) -> Iterator[Step]:
    for site, damage in costs.damage.items():
        hull = lower_hull(sorted((costs.taken[site][bits], damage[bits], bits) for bits in damage))
        for (cost, before, low), (more, after, high) in pairwise(hull):
            yield Step(site, (low, high), more - cost, before - after)


def _cheapest(taken: Mapping[int, float]) -> int:
    """Of a small weight, unpacking may take more bytes than fewer bits save."""
    return min(taken, key=lambda bits: (taken[bits], bits))


def lower_hull(points: Sequence[tuple[float, float, int]]) -> list[tuple[float, float, int]]:
    """Of (taken, damage, bits), the smallest first: those that no mixture of others beats."""
    hull: list[tuple[float, float, int]] = []
    for point in points:
        if hull and point[1] >= hull[-1][1]:
            continue  # more bytes for no less damage
        while len(hull) > 1 and _slope(hull[-2], hull[-1]) >= _slope(hull[-1], point):
            hull.pop()
        hull.append(point)
    return hull


def _slope(one: tuple[float, float, int], other: tuple[float, float, int]) -> float:
    return (other[1] - one[1]) / (other[0] - one[0])
