"""When the two branches of a twin fit one byte, and what bytes they then are.

Both steps are powers of two apart, D2 = 2^m D1: a coarse code c is the fine code c * 2^m, and the twin
tensor is one tensor of step D1. If its codes fit eight bits, one product replaces two, exactly.
"""

from __future__ import annotations

import numpy as np

from ptq4vit_onnx.passes.byte_codes import ByteCodes, bytes_of
from ptq4vit_onnx.passes.tensors import Array
from ptq4vit_onnx.plan.quantizers import GELU_MINIMUM, Affine, Quantizer, TwinGelu, TwinSoftmax, Uniform
from ptq4vit_onnx.plan.saturation_safe_weights import saturating_pairs


def fine_bytes(twin: TwinSoftmax | TwinGelu) -> ByteCodes:
    """Softmax: its small values. GELU: its negatives, counted down from the zero point: no byte exceeds it."""
    zero = gelu_bytes(twin).zero if isinstance(twin, TwinGelu) else 0
    return ByteCodes(twin.fine, zero, 0, zero or twin.high)


def gelu_bytes(twin: TwinGelu) -> ByteCodes:
    """Both of GELU's ranges around one zero point, each in its own steps (`scale` is the coarse one).

    QuantizeLinear saturates at 0 and 255. Where a range ends at one of the two, it needs no Clip.
    With the zero point 2^(k-1)-1 the negatives end at 0; with 128, at eight bits, the positives end at 255. Then the
    negatives have a code too many, which GELU does not reach where the plan covers its minimum. Next to bytes
    of at most 128 no two 8-bit weights overflow int16: 128 * (127 + 127) and 128 * (-128 - 128) fit.
    """
    covers = np.rint(GELU_MINIMUM / twin.fine) <= twin.high
    zero = 128 if twin.bits == 8 and covers else twin.high
    return ByteCodes(twin.coarse, zero, 0, zero + twin.high)


def coarse_bytes(twin: TwinSoftmax | TwinGelu) -> ByteCodes:
    return ByteCodes(twin.coarse, 0, 0, twin.high)


def merged_bytes(twin: TwinSoftmax | TwinGelu) -> ByteCodes:
    """Both branches in one tensor of the fine step; it fits a byte where `high` is at most 255."""
    fine = fine_bytes(twin)
    return ByteCodes(twin.fine, fine.zero, 0, fine.zero + twin.high * 2**twin.shift)


def merges(twin: TwinSoftmax | TwinGelu, weight: Array | None) -> bool:
    """Is one product enough? The codes must fit a byte, and next to a `weight` (int8 [inputs, outputs]) their
    larger bytes must not saturate int16: weights are pair-safe for a branch, not for the merged codes."""
    high = merged_bytes(twin).high
    return high <= 255 and (weight is None or saturating_pairs(weight, high) == 0)


def largest_byte(lhs: Quantizer, weight: Array | None, *, never_negative: bool) -> int:
    """The largest unsigned byte that the left side sends into its product or products.

    Of a quantizer that is not known here its own pass chooses the bytes, so they may be any.
    """
    if isinstance(lhs, (Uniform, Affine)):
        return bytes_of(lhs, 1.0, never_negative=never_negative).high
    if isinstance(lhs, (TwinSoftmax, TwinGelu)):
        return merged_bytes(lhs).high if merges(lhs, weight) else lhs.high
    return int(np.iinfo(np.uint8).max)
