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


def test_an_output_may_be_four_roundings_off_and_no_more() -> None:
    product, one = _product("MatMulIntegerToFloat"), np.ones((1, 1))
    assert oracle.compare(product, one, _floats([[1 + 2.0**-22]])).failure is None
    assert oracle.compare(product, one, _floats([[1 + 2.0**-21]])).failure is not None


def test_bare_accumulators_must_be_equal() -> None:
    product, sums = _product("MatMulInteger"), np.asarray([[5.0, -7.0]])
    assert oracle.compare(product, sums, np.asarray([[5, -7]], np.int32)).failure is None
    assert oracle.compare(product, sums, np.asarray([[5, -6]], np.int32)).failure is not None


def test_a_side_that_the_kernel_transposes_is_transposed() -> None:
    lhs, rhs = np.asarray([[1, 2], [3, 4]], np.uint8), np.asarray([[5, 6], [7, 8]], np.int8)
    left = replace(_product("MatMulIntegerToFloat"), transpose_lhs=True)
    right = replace(_product("MatMulIntegerToFloat"), transpose_rhs=True)
    for product, sides in ((left, (lhs.T, rhs)), (right, (lhs, rhs.T))):
        assert np.array_equal(oracle.accumulators(product, *sides), [[19, 22], [43, 50]])


def test_a_bias_of_integers_counts_among_the_accumulators() -> None:
    product = replace(_product("QGemm"), bias=np.asarray([100, -100], np.int32))
    lhs, rhs = np.full((1, 1), 3, np.uint8), np.full((1, 2), 7, np.int8)
    assert np.array_equal(oracle.accumulators(product, lhs, rhs), [[121, -79]])


def test_an_output_is_its_accumulator_times_both_scales_and_alpha() -> None:
    product = replace(_product("MatMulIntegerToFloat"), lhs_scale=_floats(0.5), rhs_scale=_floats(0.25), alpha=4.0)
    sums = np.asarray([[6.0]])
    assert oracle.compare(product, sums, _floats([[3]])).failure is None
    for alpha, scale in ((0.25, 1.0), (4.0, 4.0)):
        other = replace(product, alpha=alpha, lhs_scale=_floats(scale))
        assert oracle.compare(other, sums, _floats([[3]])).failure is not None


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
