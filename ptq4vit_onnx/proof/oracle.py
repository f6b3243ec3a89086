"""The integer oracle: what a kernel must return for the codes it was fed, computed without the runtime."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ptq4vit_onnx.graph.integer_products import Array, IntegerProduct
from ptq4vit_onnx.plan.exact_product import exact_product

# float32 steps between an accumulator and what the kernel returns: the accumulator itself (above 2^24), the
# product of the two scales, the division by the output's scale or the addition of the bias, the
# multiplication. Each is off by at most 2^-24 of its result, so four of them by 2^-22.
ROUNDING = 2.0**-22
# between a site's accumulators and its output lie up to sixteen such steps: those of its kernels, the heads'
# factors and the product with them, the sum of branches, the bias
SITE_ROUNDING = 2.0**-20
SMALLEST_NORMAL = 2.0**-126


@dataclass(frozen=True)
class Comparison:
    """At the worst element: its distance from the oracle, and what float32 rounding allows there."""

    max_error: float
    tolerance: float
    failure: str | None


def accumulators(product: IntegerProduct, lhs: Array, rhs: Array) -> Array:
    """Exact integer sums, as float64. lhs: codes [.., rows, inner]; rhs: codes [.., inner, columns]."""
    left = lhs.astype(np.float32) - product.lhs_zero.astype(np.float32)
    right = rhs.astype(np.float32)
    if product.transpose_lhs:
        left = left.swapaxes(-1, -2)
    if product.transpose_rhs:
        right = right.swapaxes(-1, -2)
    sums = np.asarray(exact_product(left, right - product.rhs_zero.astype(np.float32)), np.float64)
    if product.kernel == "QGemm" and product.bias is not None:
        sums = sums + product.bias.astype(np.float64)
    return sums


def compare(product: IntegerProduct, sums: Array, out: Array) -> Comparison:
    """Hold the kernel's output against its accumulators `sums`."""
    if product.kernel == "MatMulInteger":
        return _verdict(np.abs(out - sums), np.zeros_like(sums), "accumulator")
    scale = _wide(product.lhs_scale) * _wide(product.rhs_scale) * product.alpha
    exact = sums * scale
    if product.output_scale is not None and product.output_zero is not None:
        return _compare_codes(exact / _wide(product.output_scale), product.output_zero, out)
    bias = 0.0 if product.kernel == "QGemm" or product.bias is None else product.bias.astype(np.float64)
    allowed = ROUNDING * (np.abs(exact) + np.abs(bias)) + SMALLEST_NORMAL
    return _verdict(np.abs(out - (exact + bias)), allowed, "output")


def compare_site(terms: list[Array], bias: Array | float, out: Array) -> Comparison:
    """Hold a site's output against the sum of its products' exact values, `terms`, and the bias."""
    exact: Array = np.sum(terms, axis=0) + bias
    size: Array = np.sum(np.abs(terms), axis=0) + np.abs(bias)
    if out.size != exact.size:
        return Comparison(float("inf"), 0.0, f"the site's output is {out.shape}, expected {exact.shape}")
    error = np.abs(out.reshape(exact.shape) - exact)
    return _verdict(error, SITE_ROUNDING * size + SMALLEST_NORMAL, "site output")


def _compare_codes(exact: Array, zero: Array, out: Array) -> Comparison:
    """Requantised output: equal codes, or one apart where rounding can carry the exact value across a tie.

    The distance is measured before rounding: how far the exact value lies outside the values that round to
    the code, which is zero for a right code.
    """
    limits = np.iinfo(zero.dtype)
    low, high = limits.min - float(zero), limits.max - float(zero)
    held = np.clip(exact, low, high)
    distance = np.maximum(np.abs(held - (out.astype(np.float64) - float(zero))) - 0.5, 0.0)
    return _verdict(distance, ROUNDING * np.abs(held), "code")


def _verdict(error: Array, allowed: Array, what: str) -> Comparison:
    wrong = ~(error <= allowed)  # also catches NaN
    excess = np.where(np.isnan(error), np.inf, error / np.maximum(allowed, SMALLEST_NORMAL))
    worst = np.unravel_index(np.argmax(excess), error.shape)
    failure = None
    if wrong.any():
        failure = (
            f"{int(wrong.sum())} of {error.size} {what}s differ from the integer oracle, the worst at "
            f"{tuple(int(i) for i in worst)} by {error[worst]:.3g} where rounding allows {allowed[worst]:.3g}"
        )
    return Comparison(float(error[worst]), float(allowed[worst]), failure)


def _wide(scale: Array) -> Array:
    return scale.astype(np.float64)
