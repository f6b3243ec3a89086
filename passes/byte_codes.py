"""Codes as bytes: their zero point, their limits, and the nodes that make and read them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx
import onnx_graphsurgeon as gs

from ptq4vit_onnx.passes.work import Work, scalar
from ptq4vit_onnx.plan.quantizers import Affine, Uniform
from ptq4vit_onnx.plan.saturation_safe_weights import INT16_MAX


@dataclass(frozen=True)
class ByteCodes:
    """Bytes low..high that stand for (byte - zero) * scale. `signed`: int8 instead of uint8."""

    scale: float
    zero: int
    low: int
    high: int
    signed: bool = False

    @property
    def kind(self) -> type[np.int8] | type[np.uint8]:
        return np.int8 if self.signed else np.uint8

    @property
    def least(self) -> int:
        """Where QuantizeLinear saturates below."""
        return int(np.iinfo(self.kind).min)

    @property
    def most(self) -> int:
        """Where QuantizeLinear saturates above."""
        return int(np.iinfo(self.kind).max)

    @property
    def fits(self) -> bool:
        """Whether all codes lie within the type. Those of an affine quantizer, counted from zero, need not."""
        return self.least <= self.low and self.high <= self.most

    @property
    def zero_name(self) -> str:
        return "zero_point_signed" if self.signed else "zero_point"

    @property
    def largest(self) -> int:
        """The largest magnitude of a byte, as the integer kernels see it."""
        return max(abs(self.low), abs(self.high))


def bytes_of(quantizer: Uniform | Affine, scale: float, *, never_negative: bool = False) -> ByteCodes:
    """The bytes for a quantizer with one scale.

    Symmetric codes are shifted up by 2^(k-1): lhs must be unsigned for the fast kernels. Of values that are
    never negative (softmax) only the codes 0 .. 2^(k-1)-1 occur, and they need no shift.
    """
    if isinstance(quantizer, Affine):
        return ByteCodes(scale, quantizer.zero_point[0], 0, quantizer.high)
    if never_negative:
        return ByteCodes(scale, 0, 0, quantizer.high)
    return ByteCodes(scale, -quantizer.low, 0, quantizer.high - quantizer.low)


def add_quantize(work: Work, x: gs.Tensor, codes: ByteCodes, name: str, reach: float = np.inf) -> gs.Tensor:
    """`x` as bytes: QuantizeLinear, which saturates at 0 and 255, and a Clip where the plan ends earlier.

    reach: the largest value that x can hold; a Clip whose limit x cannot exceed is left out. Clipping bytes
    costs a quarter of clipping floats.
    """
    scale = work.constant(f"{name}/scale", scalar(codes.scale, np.float32))
    zero = work.constant(f"{name}/{codes.zero_name}", scalar(codes.zero, codes.kind))
    quantized = work.add("QuantizeLinear", f"{name}/QuantizeLinear", [x, scale, zero])
    if codes.low <= codes.least and np.rint(np.float32(reach) / np.float32(codes.scale)) + codes.zero <= codes.high:
        return quantized
    return add_clip(work, quantized, codes, name)


def add_clip(work: Work, x: gs.Tensor, codes: ByteCodes, name: str) -> gs.Tensor:
    """Bytes `x` kept within low..high; nothing where QuantizeLinear's own saturation does it."""
    if codes.low <= codes.least and codes.high >= codes.most:
        return x
    empty = gs.Variable.empty()
    low = work.constant(f"{name}/low", scalar(codes.low, codes.kind)) if codes.low > codes.least else empty
    high = work.constant(f"{name}/high", scalar(codes.high, codes.kind)) if codes.high < codes.most else empty
    return work.add("Clip", f"{name}/Clip", [x, low, high])


def add_dequantize(work: Work, x: gs.Tensor, codes: ByteCodes, name: str) -> gs.Variable:
    """The numbers that bytes `x` stand for; ONNX Runtime fuses this node into the product behind it."""
    scale = work.constant(f"{name}/scale", scalar(codes.scale, np.float32))
    zero = work.constant(f"{name}/{codes.zero_name}", scalar(codes.zero, codes.kind))
    return work.add("DequantizeLinear", f"{name}/DequantizeLinear", [x, scale, zero])


def signed_bytes(codes: ByteCodes) -> ByteCodes:
    """The int8 codes of the same numbers: the same where they fit, else shifted down by 128."""
    return _shifted(codes, 0 if codes.high <= 127 else 128)


def centred_bytes(codes: ByteCodes) -> ByteCodes:
    """The int8 codes of the same numbers, counted from their zero point, which becomes 0."""
    return _shifted(codes, codes.zero)


def _shifted(codes: ByteCodes, down: int) -> ByteCodes:
    return ByteCodes(codes.scale, codes.zero - down, codes.low - down, codes.high - down, signed=True)


def fits_signed(lhs_largest: int, rhs: ByteCodes) -> bool:
    """May `rhs` be sent as int8 next to unsigned lhs bytes up to `lhs_largest`?

    The u8 x s8 kernel is faster than u8 x u8, but it adds two neighbouring products in int16 where the CPU
    has no VNNI. Here no side is constant, so codes cannot be chosen such that the sums fit: the worst case must.
    """
    return 2 * lhs_largest * signed_bytes(rhs).largest <= INT16_MAX


def add_signed(work: Work, x: gs.Tensor, codes: ByteCodes, name: str) -> tuple[gs.Tensor, ByteCodes]:
    """Unsigned bytes as int8.

    Shifting down by 128 is turning the eighth bit and reading the byte as signed. ONNX defines both; it does not say
    what an Add does that leaves the range of a byte, and engines differ there.
    """
    if codes.high > 127:
        bit = work.constant(f"{name}/eighth_bit", scalar(128, np.uint8))
        x = work.add("BitwiseXor", f"{name}/BitwiseXor", [x, bit])
    return work.add("Cast", f"{name}/Cast", [x], to=onnx.TensorProto.INT8), signed_bytes(codes)
