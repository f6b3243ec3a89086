"""The integer weights that ship: rounded, then made safe for CPUs that add two 8-bit products in 16 bits.

Without VNNI, ONNX Runtime multiplies u8 by s8 with `vpmaddubsw`: the products of two neighbouring inputs (k,
k+1), k even, are added in int16, saturating. If max_code * |w[k] + w[k+1]| fits int16 in every output column,
nothing saturates and the product is exact on every CPU. Both the simulator and the ONNX passes take their
weights from here.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ptq4vit_onnx.plan.quantizers import Quantizer, Tensor, Uniform, along_axis

INT16_MAX = 32767
JUST_OVER_HALF = 0.502  # (n * 0.502).round() is n / 2, of an odd n rounded away from zero; exact up to |n| = 249


def pair_limit(lhs: Quantizer) -> int:
    """How large |w[k] + w[k+1]| may be next to this left side."""
    return INT16_MAX // lhs.largest_code


def ship_weight(weight: np.ndarray[Any, Any], lhs: Quantizer, rhs: Uniform) -> tuple[np.ndarray[Any, Any], int]:
    """int8 codes of `weight` [inputs, outputs] as they ship next to `lhs`, and how many of them pair-safety changed."""
    steps = lhs.row_steps(len(weight))
    codes = rhs.codes(weight if steps is None else weight * steps[:, None])
    safe = make_pairs_safe(codes.copy(), pair_limit(lhs))
    return safe.astype(np.int8), int((safe != codes).sum())


def unit_bias(codes: np.ndarray[Any, Any], lhs: Quantizer, rhs: Uniform) -> np.ndarray[Any, Any] | None:
    """What the units' zeros add to each output [outputs], in float64; None where they are zero.

    codes: the int8 weights [inputs, outputs] that ship next to `lhs`.
    """
    zeros = lhs.row_zeros(len(codes))
    if zeros is None:
        return None
    scale = np.repeat(np.asarray(rhs.scale, np.float64), codes.shape[1] // len(rhs.scale))
    return np.asarray((zeros.astype(np.float64)[:, None] * codes).sum(0) * scale)


def shipped(weight: Tensor, lhs: Quantizer, rhs: Uniform) -> Tensor:
    """`weight` [inputs, outputs] as the codes that ship next to `lhs`, decoded; numpy or torch."""
    safe: Tensor
    steps = lhs.row_steps(len(weight))
    if steps is None:
        safe = make_pairs_safe(rhs.codes(weight), pair_limit(lhs))
        safe *= along_axis(rhs.scale, weight, rhs.axis)
        return safe
    rows = (steps if isinstance(weight, np.ndarray) else weight.new_tensor(steps))[:, None]
    safe = make_pairs_safe(rhs.codes(weight * rows), pair_limit(lhs))
    safe *= along_axis(rhs.scale, weight, rhs.axis)
    safe /= rows
    return safe


def make_pairs_safe(codes: Tensor, limit: int) -> Tensor:
    """Codes with |w[k] + w[k+1]| <= limit for every even k: an excess is taken off, half from each of the pair.

    codes: [inputs, outputs] of integers, as float32; numpy or torch, changed in place. Only pairs of one sign can
    exceed; both move towards zero, never across it: one of them alone is at most 128 <= limit, so the excess is at
    most the other. An odd last row has no partner and is always safe.
    """
    if limit >= 256:
        return codes
    even = codes.shape[0] // 2 * 2
    first, second = codes[0:even:2], codes[1:even:2]
    total = first + second
    excess = total - total.clip(-limit, limit)
    half = (excess * JUST_OVER_HALF).round()  # away from zero
    first -= half
    second -= excess - half
    return codes


def first_unsafe_pair(codes: np.ndarray[Any, Any], limit: int) -> tuple[int, int, int] | None:
    """(row, column, sum) of the first pair of int8 codes [inputs, outputs] that `make_pairs_safe` would change; None if
    there is none."""
    total = codes[: codes.shape[0] // 2 * 2].astype(np.int16).reshape(-1, 2, codes.shape[1]).sum(axis=1)
    unsafe = np.argwhere(np.abs(total) > limit)
    if not len(unsafe):
        return None
    pair, column = map(int, unsafe[0])
    return 2 * pair, column, int(total[pair, column])


def saturating_pairs(codes: np.ndarray[Any, Any], largest_code: int) -> int:
    """How many (pair, column)s of int8 codes [inputs, outputs] can overflow int16 next to `largest_code`."""
    paired = codes[: codes.shape[0] // 2 * 2].astype(np.int32).reshape(-1, 2, codes.shape[1])
    positive = np.maximum(paired, 0).sum(axis=1) * largest_code
    negative = np.minimum(paired, 0).sum(axis=1) * largest_code
    return int(((positive > INT16_MAX) | (negative < -INT16_MAX - 1)).sum())
