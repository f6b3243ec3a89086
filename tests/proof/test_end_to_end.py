"""Parity end to end: predictions next to the simulator's and the float model's."""

from __future__ import annotations

import numpy as np
import pytest

from ptq4vit_onnx.output_kinds.kinds import KINDS
from ptq4vit_onnx.proof import end_to_end as parity


def test_end_to_end_counts_predictions_of_trained_weights() -> None:
    simulated = np.random.default_rng(0).standard_normal((200, 10)).astype(np.float32)
    quantised = simulated.copy()
    assert parity.check_end_to_end((quantised,), (simulated,), coin_toss=False).passed
    quantised[0] = -quantised[0]
    assert parity.check_end_to_end((quantised,), (simulated,), coin_toss=False).passed  # 199 of 200 are 99.5 %
    quantised[1] = -quantised[1]
    result = parity.check_end_to_end((quantised,), (simulated,), coin_toss=False)
    assert not result.passed
    assert result.sentence.startswith("99.00 % of 200 predictions equal the simulator's (limit 99.5 %)")
    assert result.identical == 99 and "bit for bit on 99 %" in result.sentence


def test_end_to_end_measures_logits_of_random_weights() -> None:
    simulated = np.random.default_rng(0).standard_normal((20, 10)).astype(np.float32)
    assert parity.check_end_to_end((simulated + np.float32(0.01),), (simulated,), coin_toss=True).passed
    assert not parity.check_end_to_end((simulated + np.float32(0.1),), (simulated,), coin_toss=True).passed


@pytest.mark.parametrize("coin_toss", [True, False])
def test_logits_that_are_not_finite_never_pass(coin_toss: bool) -> None:
    broken = np.full((4, 3), np.nan, np.float32)
    result = parity.check_end_to_end((broken,), (broken,), coin_toss)
    assert not result.passed
    assert result.sentence == "the model's logits are not finite"


def test_kinds_without_predictions_are_compared_by_their_worst_output() -> None:
    draw = np.random.default_rng(0)
    simulated = tuple(draw.standard_normal(shape).astype(np.float32) for shape in ((20, 4, 3), (20, 3, 2, 2)))
    shifted = (simulated[0], simulated[1] + np.float32(0.1) * simulated[1].std())
    kind = KINDS["features"]
    same = parity.check_end_to_end(simulated, simulated, coin_toss=False, kind=kind)
    assert same.passed and same.identical == 100 and same.agreement is None
    result = parity.check_end_to_end(shifted, simulated, coin_toss=False, kind=kind)
    assert not result.passed and result.identical == 0
    assert result.relative_error == pytest.approx(0.1, rel=1e-5)
    assert result.sentence == "features differ from the simulator's by 0.1 of their spread (limit 0.05)"
    assert parity.check_end_to_end(shifted, simulated, coin_toss=False, nudged=shifted, kind=kind).passed


def test_an_image_is_identical_only_in_all_of_its_outputs() -> None:
    first, second = np.ones((4, 3), np.float32), np.ones((4, 2, 2), np.float32)
    other = second.copy()
    other[1, 0, 0] = 1.01
    result = parity.check_end_to_end((first, other), (first, second), coin_toss=False, kind=KINDS["features"])
    assert result.identical == 75


def test_a_single_identical_image_of_many_is_told() -> None:
    simulated = np.random.default_rng(0).standard_normal((200, 10)).astype(np.float32)
    quantised = simulated * np.float32(1.01)
    quantised[0] = simulated[0]
    result = parity.check_end_to_end((quantised,), (simulated,), coin_toss=False)
    assert result.identical == 0.5
    assert result.sentence.endswith("; logits equal bit for bit on 0.5 %")


def test_the_simulators_own_agreement_is_told_where_predictions_decide() -> None:
    simulated = np.random.default_rng(0).standard_normal((20, 10)).astype(np.float32)
    nudged = simulated.copy()
    nudged[0] = -nudged[0]
    told = "; the simulator with last bits nudged agrees with itself on 95.00 %"
    trained = parity.check_end_to_end((simulated,), (simulated,), coin_toss=False, nudged=(nudged,))
    random = parity.check_end_to_end((simulated,), (simulated,), coin_toss=True, nudged=(nudged,))
    assert trained.own_agreement == random.own_agreement == 95
    assert trained.sentence.endswith(told) and told not in random.sentence


def test_the_limit_is_three_standard_errors_below_the_simulators_own_agreement() -> None:
    assert parity.agreement_limit(90.0, 100) == pytest.approx(81)  # one standard error is 3 %
    assert parity.agreement_limit(100.0, 100) == parity.agreement_limit(None, 100) == parity.SIMULATOR_AGREEMENT
