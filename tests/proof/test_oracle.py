"""The integer oracle: sums are exact, and whatever a kernel computes otherwise is seen."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ptq4vit_onnx.graph.integer_products import IntegerProduct
from ptq4vit_onnx.proof import oracle

Array = np.ndarray[Any, Any]


def test_a_kernel_that_saturates_differs_from_the_oracle() -> None:
    product = _product("MatMulIntegerToFloat")
    lhs, rhs = np.full((1, 2), 255, np.uint8), np.full((2, 1), 127, np.int8)
    saturated = _floats([[32767]])
    assert oracle.accumulators(product, lhs, rhs) == 2 * 255 * 127
    assert _compare(product, lhs, rhs, _floats([[64770]])).failure is None
    assert "1 of 1 outputs differ" in str(_compare(product, lhs, rhs, saturated).failure)


@pytest.mark.parametrize("inner", [7, 64, 4097])
def test_accumulators_are_exact_below_and_above_what_float32_holds(inner: int) -> None:
    random = np.random.default_rng(inner)
    lhs = random.integers(200, 256, (3, inner), np.uint8)
    rhs = random.integers(100, 128, (inner, 2), np.int8)
    product = replace(_product("MatMulInteger"), lhs_zero=np.asarray(3, np.uint8))
    expected = (lhs.astype(np.int64) - 3) @ rhs.astype(np.int64)
    assert np.array_equal(oracle.accumulators(product, lhs, rhs), expected)


def test_one_in_an_accumulator_is_seen() -> None:
    product = _product("MatMulIntegerToFloat")
    lhs, rhs = np.full((1, 64), 200, np.uint8), np.full((64, 1), 100, np.int8)
    right = 64 * 200 * 100
    assert _compare(product, lhs, rhs, _floats([[right]])).failure is None
    assert _compare(product, lhs, rhs, _floats([[right + 1]])).failure is not None


def test_a_requantised_code_may_go_either_way_at_a_tie_and_nowhere_else() -> None:
    product = replace(_product("QLinearMatMul"), output_scale=_floats(2.0), output_zero=np.asarray(10, np.uint8))
    rhs = np.ones((1, 1), np.int8)
    for accumulator, allowed in ((5, {12, 13}), (6, {13}), (7, {13, 14})):
        lhs = np.full((1, 1), accumulator, np.uint8)
        passing = {
            code for code in range(256) if _compare(product, lhs, rhs, np.full((1, 1), code, np.uint8)).failure is None
        }
        assert passing == allowed


def test_nan_from_a_kernel_is_a_failure() -> None:
    lhs, rhs = np.ones((1, 1), np.uint8), np.ones((1, 1), np.int8)
    assert _compare(_product("MatMulIntegerToFloat"), lhs, rhs, _floats([[np.nan]])).failure


def _product(kernel: str) -> IntegerProduct:
    one = np.ones((), np.float32)
    return IntegerProduct(kernel, "n", "a", "b", "y", one, one, np.asarray(0, np.uint8), np.asarray(0, np.int8))


def _floats(values: Any) -> Array:
    return np.asarray(values, np.float32)


def _compare(product: IntegerProduct, lhs: Array, rhs: Array, out: Array) -> oracle.Comparison:
    return oracle.compare(product, oracle.accumulators(product, lhs, rhs), out)
