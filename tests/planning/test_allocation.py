"""Bits within a budget: against all combinations, and what the hull leaves out."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from ptq4vit_onnx.planning.allocation import Costs, allocate, lower_hull


def problem(seed: int, sites: int = 4) -> Costs:
    """Damages that fall with bits, as they do, but not convexly everywhere."""
    random = np.random.default_rng(seed)
    counts = random.integers(10, 100, sites)
    damage, taken = {}, {}
    for site in range(sites):
        factors = 4.0 ** -np.arange(2, 9) * random.uniform(0.5, 2.0, 7)
        damage[f"site{site}"] = dict(zip(range(2, 9), (random.uniform(0.1, 10) * factors).tolist(), strict=True))
        taken[f"site{site}"] = {bits: float(counts[site] * bits) for bits in range(2, 9)}
    return Costs(damage, taken)


@pytest.mark.parametrize("seed", range(8))
def test_it_fits_and_is_no_worse_than_any_single_width_that_fits(seed: int) -> None:
    costs = problem(seed)
    for limit in np.linspace(1.0, 1.0 * costs.of(dict.fromkeys(costs.taken, 8))[0], 12)[1:]:
        widths = allocate(costs, float(limit))
        smallest = costs.of(dict.fromkeys(costs.taken, 2))[0]
        if limit < smallest:
            assert widths is None
            continue
        assert widths is not None
        taken, damage = costs.of(widths)
        assert taken <= limit
        least = min(
            of for bits in range(2, 9) for used, of in [costs.of(dict.fromkeys(costs.taken, bits))] if used <= limit
        )
        # The relaxation loses at most one step of one site; the smallest width is always among the single ones.
        assert damage <= least + max(max(item.values()) for item in costs.damage.values())


@pytest.mark.parametrize("seed", range(4))
def test_its_damage_is_near_the_best_of_all_combinations(seed: int) -> None:
    costs = problem(seed, sites=3)
    limit = costs.of(dict.fromkeys(costs.taken, 5))[0]
    widths = allocate(costs, limit)
    assert widths is not None
    choices = itertools.product(range(2, 9), repeat=3)
    fitting = [costs.of(dict(zip(costs.taken, bits, strict=True))) for bits in choices]
    best = min(damage for taken, damage in fitting if taken <= limit)
    assert best <= costs.of(widths)[1] <= 4 * best  # one width up or down is a factor of four


def test_a_budget_for_everything_takes_the_widths_with_the_least_damage() -> None:
    costs = Costs({"a": {4: 2.0, 8: 1.0}, "b": {4: 1.0, 8: 3.0}}, {"a": {4: 4.0, 8: 8.0}, "b": {4: 4.0, 8: 8.0}})
    assert allocate(costs, 100.0) == {"a": 8, "b": 4}


def test_less_than_the_smallest_widths_take_is_no_allocation() -> None:
    assert allocate(problem(0), 1.0) is None


def test_the_hull_leaves_out_what_a_mixture_of_others_beats() -> None:
    points = [(2.0, 10.0, 2), (3.0, 9.0, 3), (4.0, 1.0, 4), (5.0, 2.0, 5), (6.0, 0.5, 6)]
    assert lower_hull(points) == [(2.0, 10.0, 2), (4.0, 1.0, 4), (6.0, 0.5, 6)]


def test_a_width_whose_unpacking_takes_more_than_it_saves_is_never_taken() -> None:
    costs = Costs({"a": {4: 4.0, 5: 2.0, 8: 1.0}}, {"a": {4: 6.0, 5: 9.0, 8: 8.0}})
    assert [allocate(costs, limit) for limit in (5.0, 6.0, 8.0, 9.0)] == [None, {"a": 4}, {"a": 8}, {"a": 8}]
