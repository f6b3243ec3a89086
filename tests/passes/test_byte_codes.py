"""Bytes for quantizers, and when a right side may be signed."""

from __future__ import annotations

import numpy as np
import pytest

from ptq4vit_onnx.passes.byte_codes import ByteCodes, bytes_of, fits_signed, signed_bytes
from ptq4vit_onnx.passes.twin_codes import coarse_bytes, fine_bytes, largest_byte, merged_bytes, merges
from ptq4vit_onnx.plan.quantizers import Affine, TwinGelu, TwinSoftmax, Uniform


def test_symmetric_codes_are_shifted_up_and_never_negative_ones_are_not() -> None:
    assert bytes_of(Uniform(6, (0.5,)), 0.5) == ByteCodes(0.5, 32, 0, 63)
    assert bytes_of(Uniform(8, (0.5,)), 0.5, never_negative=True) == ByteCodes(0.5, 0, 0, 127)
    assert bytes_of(Affine(4, (0.5,), (3,)), 0.5) == ByteCodes(0.5, 3, 0, 15)


def test_signed_bytes_stand_for_the_same_numbers() -> None:
    for codes in (ByteCodes(0.5, 32, 0, 63), ByteCodes(0.5, 128, 0, 255), ByteCodes(0.5, 128, 96, 159)):
        signed = signed_bytes(codes)
        assert signed.low >= -128 and signed.high <= 127
        assert (codes.low - codes.zero, codes.high - codes.zero) == (
            signed.low - signed.zero,
            signed.high - signed.zero,
        )


@pytest.mark.parametrize(
    ("largest", "bits", "fits"),
    [(255, 8, False), (127, 8, True), (127, 7, True), (255, 6, True), (255, 7, False)],
)
def test_a_signed_right_side_never_overflows_int16(largest: int, bits: int, fits: bool) -> None:
    codes = bytes_of(Uniform(bits, (1.0,)), 1.0)
    assert fits_signed(largest, codes) is fits
    worst = 2 * largest * max(abs(signed_bytes(codes).low), signed_bytes(codes).high)
    assert (worst <= 32767) is fits


@pytest.mark.parametrize("twin", [TwinSoftmax(6, 3), TwinSoftmax(8, 1), TwinGelu(6, 0.5, 2), TwinGelu(4, 0.5, 4)])
def test_merged_bytes_hold_every_value_of_the_twin(twin: TwinSoftmax | TwinGelu) -> None:
    assert merges(twin, None)
    merged, fine, coarse = merged_bytes(twin), fine_bytes(twin), coarse_bytes(twin)
    fines = (np.arange(fine.low, fine.high + 1) - fine.zero) * fine.scale
    coarses = np.arange(coarse.low, coarse.high + 1) * coarse.scale
    points = (np.arange(256) - merged.zero) * merged.scale
    assert set(fines) | set(coarses) <= set(points)
    assert merged.high <= 255


def test_a_weight_that_merged_codes_would_saturate_forbids_merging() -> None:
    twin = TwinGelu(6, 0.5, 2)
    safe, unsafe = np.full((2, 1), 64, np.int8), np.full((2, 1), 127, np.int8)
    assert merges(twin, safe) and not merges(twin, unsafe)
    assert largest_byte(twin, safe, never_negative=False) == 155
    assert largest_byte(twin, unsafe, never_negative=False) == 31
