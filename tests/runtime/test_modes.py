"""Two modes of a model are told apart in times that are made up here, so that the right answer is known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ptq4vit_onnx.runtime import bench as module
from ptq4vit_onnx.runtime.modes import MIN_RUNS, Run, modes_of, slow_runs

# Milliseconds in the fast and in the slow mode, as two threads at batch 8 were seen to take.
FLOAT, OURS = (124.0, 140.0), (55.0, 112.0)
NOISE = 0.01


def made_up(slow: Any, times: tuple[float, float] = OURS, seed: int = 0, noise: float = NOISE) -> Any:
    """Milliseconds. slow: for each run, whether it was made in the slow mode."""
    random, slow = np.random.default_rng(seed), np.asarray(slow, dtype=bool)
    return np.where(slow, times[1], times[0]) * np.exp(noise * random.standard_normal(len(slow)))


def stretches(runs: int, share: float, seed: int = 0) -> Any:
    """A machine that flips every ten runs or so, and is slow for about `share` of them."""
    return np.repeat(np.random.default_rng(seed).random(runs // 10) < share, 10)


def runs_of(times: Any, slow: Any = False) -> list[Run]:
    """With two processors in the fast mode and one in the slow mode."""
    busy = np.where(np.broadcast_to(slow, np.shape(times)), 1.0, 2.0)
    return [Run(float(value), float(cores)) for value, cores in zip(times, busy, strict=True)]


def test_one_mode_stays_one_and_its_figures_are_those_of_all_runs() -> None:
    first, times = made_up(np.zeros(100), FLOAT), made_up(np.zeros(100), seed=1)
    found = modes_of({"float": runs_of(first), "ours": runs_of(times)})
    assert [len(modes) for modes in found.values()] == [1, 1]
    (ours,) = found["ours"]
    assert (ours.low, ours.median, ours.high) == tuple(np.percentile(times, (25, 50, 75)))
    assert (ours.runs, ours.share, ours.cores) == (100, 1.0, 2.0)
    assert ours.speed == np.median(first) / np.median(times)


@pytest.mark.parametrize("times", [FLOAT, OURS])
@pytest.mark.parametrize("share", [0.2, 0.5, 0.8])
def test_every_run_is_found_in_its_mode(share: float, times: tuple[float, float]) -> None:
    slow = stretches(200, share)
    assert 0 < slow.sum() < 200
    np.testing.assert_array_equal(slow_runs(made_up(slow, times)), slow)


def test_a_speed_compares_times_of_the_same_mode_although_models_flip_by_themselves() -> None:
    slow = {"float": stretches(200, 0.3, seed=0), "ours": stretches(200, 0.6, seed=1)}
    times = {"float": made_up(slow["float"], FLOAT), "ours": made_up(slow["ours"], OURS, seed=1)}
    fast, slower = modes_of({name: runs_of(times[name], slow[name]) for name in times})["ours"]
    # the median of 50 values with 1 % of noise is off by 1.25 / sqrt(50) = 0.2 %; a ratio by less than five times that
    assert fast.speed == pytest.approx(FLOAT[0] / OURS[0], rel=0.01)
    assert slower.speed == pytest.approx(FLOAT[1] / OURS[1], rel=0.01)
    assert fast.share + slower.share == 1 and slower.share == slow["ours"].mean()
    assert (fast.cores, slower.cores) == (2.0, 1.0)
    across = np.median(times["float"]) / np.median(times["ours"])
    assert abs(across / fast.speed - 1) > 0.1, "medians over both modes would have said something else"


def test_a_speed_over_a_first_model_of_one_mode_takes_that_mode() -> None:
    slow = stretches(100, 0.5)
    found = modes_of({"float": runs_of(made_up(np.zeros(100), FLOAT)), "ours": runs_of(made_up(slow, OURS))})
    (first,) = found["float"]
    assert [mode.speed for mode in found["ours"]] == [first.median / mode.median for mode in found["ours"]]


def test_a_model_of_one_mode_is_compared_with_the_fast_mode_of_the_first() -> None:
    slow = stretches(100, 0.5)
    found = modes_of({"float": runs_of(made_up(slow, FLOAT)), "ours": runs_of(made_up(np.zeros(100)))})
    (ours,) = found["ours"]
    assert ours.speed == found["float"][0].median / ours.median


def test_a_few_interrupted_runs_are_no_mode() -> None:
    times = made_up(np.zeros(100))
    times[[7, 30, 31, 64, 90]] *= 2.5
    assert not slow_runs(times).any()


def test_interrupted_runs_do_not_hide_the_modes() -> None:
    slow = stretches(100, 0.5)
    times = made_up(slow)
    times[[3, 40, 77]] *= 10
    found = slow_runs(times)
    assert found.any() and set(np.flatnonzero(found != slow)) <= {3, 40, 77}


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("shape", ["normal", "even", "tail", "drift"])
def test_broad_times_are_one_mode(shape: str, seed: int) -> None:
    random = np.random.default_rng(seed)
    excess = {
        "normal": 0.1 * random.standard_normal(100),
        "even": random.random(100),
        "tail": random.exponential(0.2, 100),
        "drift": np.linspace(0, 0.5, 100) + NOISE * random.standard_normal(100),
    }[shape]
    assert not slow_runs(50 * np.exp(excess)).any()


def test_modes_that_differ_by_less_than_a_tenth_are_one() -> None:
    slow = stretches(100, 0.5)
    near, far = (slow_runs(made_up(slow, (50.0, 50.0 * by), noise=0.001)) for by in (1.08, 1.12))
    assert not near.any() and far.any()


def test_too_few_runs_are_one_mode() -> None:
    few, enough = (slow_runs(made_up(np.arange(2 * half) < half, noise=0.001)) for half in (MIN_RUNS - 1, MIN_RUNS))
    assert not few.any() and enough.sum() == MIN_RUNS


def test_equal_times_are_one_mode() -> None:
    assert not slow_runs(np.full(50, 3.0)).any()


def test_the_same_runs_give_the_same_modes() -> None:
    runs = {"ours": runs_of(made_up(stretches(100, 0.5)))}
    assert modes_of(runs) == modes_of(runs)


def test_fast_modes_of_measurements_that_were_slow_for_different_shares_agree() -> None:
    """Three measurements; medians over all runs are as far apart as the modes are."""
    measured = [made_up(stretches(100, share, seed), OURS, seed) for seed, share in enumerate((0.2, 0.5, 0.8))]
    fast = [modes_of({"ours": runs_of(times)})["ours"][0].median for times in measured]
    assert max(fast) / min(fast) < 1.1
    across = [np.median(times) for times in measured]
    assert max(across) / min(across) > 1.5


def test_a_timing_is_the_fast_modes_and_keeps_both() -> None:
    slow = stretches(100, 0.5)
    (timing,) = module._timings({"ours": runs_of(made_up(slow), slow)}, threads=2, batch=8)
    fast, slower = timing.modes
    assert (timing.median, timing.low, timing.high) == (fast.median, fast.low, fast.high)
    assert (timing.runs, timing.speed, timing.cores) == (fast.runs, fast.speed, 2.0)
    assert f"{slower.median:.2f} ms" in str(timing) and f"fast mode, {fast.share:.0%}" in str(timing)


def test_a_timing_of_one_mode_says_nothing_of_modes() -> None:
    (timing,) = module._timings({"ours": runs_of(made_up(np.zeros(20)))}, threads=1, batch=1)
    assert timing.modes == () and "mode" not in str(timing)
