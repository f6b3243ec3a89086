"""What a budget becomes, with files that are only pretended: sizes and distances follow from the bits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import pytest

from ptq4vit_onnx.errors import UserError
from ptq4vit_onnx.plan.budget import Budget
from ptq4vit_onnx.planning.widths import WIDTHS, WidthPlans
from ptq4vit_onnx.planning.within_budget import Measured, Workshop, spend

COUNTS = {"a": 1_000_000, "b": 500_000, "c": 2_000_000}
SENSITIVE = {"a": 30.0, "b": 1.0, "c": 3.0}
BASE, UNPACKING = 300_000, 1_000  # bytes of the graph, and of unpacking a weight of less than eight bits
LEAST = 0.004  # the distance at eight bits


class Pretended:
    """Makes files of plans, each of which is (site, bits). worse: factors of the distance, by the bits of all sites."""

    def __init__(self, worse: Mapping[tuple[int, ...], float] | None = None) -> None:
        self.worse, self.made = worse or {}, 0

    def __call__(self, sites: Mapping[str, Any]) -> Measured:
        self.made += 1
        bits = {name: plan[1] for name, plan in sites.items()}
        size = BASE + sum(COUNTS[name] * width // 8 + UNPACKING * (width < 8) for name, width in bits.items())
        distance = LEAST + sum(SENSITIVE[name] * (4.0**-width - 4.0**-8) for name, width in bits.items())
        distance *= self.worse.get(tuple(bits.values()), 1.0)
        return Measured(size, distance, 100 - distance, 10 * distance, 0.1)


def workshop(make: Pretended | None = None) -> Workshop:
    plans: Any = {name: {bits: (name, bits) for bits in WIDTHS} for name in COUNTS}
    damage = {name: {bits: SENSITIVE[name] * 4.0**-bits / 2 for bits in WIDTHS} for name in COUNTS}
    return Workshop(WidthPlans(plans, COUNTS, damage), make or Pretended())


@pytest.mark.parametrize("limit", [1.35e6, 1.8e6, 2.0e6, 2.6e6, 3.1e6, 3.8e6, 1e9])
def test_a_file_within_a_size_fits_and_measures_no_worse_than_any_single_width_that_fits(limit: float) -> None:
    shop = workshop()
    found = spend(Budget("max_size", limit), shop, 8, "KL").choice
    assert found.size <= limit
    assert found.measured is not None
    assert found.measured <= min(item.distance for item in shop.singles.values() if item.size <= limit)


def test_between_two_widths_a_mixture_beats_the_smaller_one() -> None:
    shop = workshop()
    found = spend(Budget("max_size", 2.3e6), shop, 8, "KL").choice
    assert len(set(found.bits.values())) > 1 and found.bits["a"] > found.bits["c"]  # the sensitive one gets more
    assert cast(float, found.measured) < 0.7 * shop.singles[4].distance


def test_a_mixture_that_measures_worse_than_the_single_width_is_not_taken() -> None:
    promising = spend(Budget("max_size", 2.3e6), workshop(), 8, "KL").choice
    make = Pretended({tuple(promising.bits.values()): 10.0})
    found = spend(Budget("max_size", 2.3e6), workshop(make), 8, "KL").choice
    assert set(found.bits.values()) == {4}


def test_a_mixture_is_found_although_files_come_out_larger_than_reckoned() -> None:
    class Irregular(Pretended):
        """Up to 40 kB more than the bits say, another number for every mixture."""

        def __call__(self, sites: Mapping[str, Any]) -> Measured:
            found, bits = super().__call__(sites), [plan[1] for plan in sites.values()]
            more = 0 if len(set(bits)) == 1 else 30_000 + hash(tuple(bits)) % 10_000
            return Measured(found.size + more, found.distance)

    for limit in (1.3e6, 1.9e6, 2.2e6, 2.3e6, 2.7e6, 3.1e6):
        found = spend(Budget("max_size", limit), workshop(Irregular()), 8, "KL").choice
        assert found.size <= limit and len(set(found.bits.values())) > 1, limit


def test_a_size_below_every_file_says_what_the_smallest_takes() -> None:
    with pytest.raises(UserError, match=r"--max-size is 1 MB; the smallest file of this model has 1.18 MB, give at"):
        spend(Budget("max_size", 1e6), workshop(), 8, "KL")


@pytest.mark.parametrize("limit", [0.006, 0.02, 0.1])
def test_the_smallest_file_within_a_distance_is_at_most_the_smallest_single_width_that_fits(limit: float) -> None:
    shop = workshop()
    found = spend(Budget("max_kl", limit), shop, 8, "KL").choice
    assert found.measured is not None and found.measured <= limit
    assert found.size <= min(item.size for item in shop.singles.values() if item.distance <= limit)


def test_a_drop_is_held_against_the_measured_drop() -> None:
    found = spend(Budget("max_drop", 0.2), workshop(), 8, "KL").choice
    assert found.drop is not None and found.drop <= 0.2


def test_a_distance_that_eight_bits_do_not_reach_is_refused_with_the_best() -> None:
    with pytest.raises(UserError, match=r"--max-kl is 0.001; the best single width has 0.004, give a little"):
        spend(Budget("max_kl", 0.001), workshop(), 8, "KL")


@pytest.mark.parametrize("bits", [2.0, 3.3, 4.5, 8.0])
def test_an_average_is_not_exceeded(bits: float) -> None:
    found = spend(Budget("average_weight_bits", bits), workshop(), 8, "KL").choice
    assert found.average <= bits


def test_every_file_is_made_once() -> None:
    make = Pretended()
    shop = workshop(make)
    for limit in (2.0e6, 2.0e6, 2.3e6, 2.3e6):
        spend(Budget("max_size", limit), shop, 8, "KL")
    assert make.made == len(shop.made)


def test_predictions_are_sensitivities_times_one_factor_above_eight_bits() -> None:
    shop = workshop()  # damages are half of what is measured
    for point in shop.points():
        assert point.predicted == pytest.approx(point.measured, rel=1e-6)
