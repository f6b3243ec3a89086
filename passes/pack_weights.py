"""Store weights of k bits in k bits each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import gcd, prod

import numpy as np
import onnx
import onnx_graphsurgeon as gs

from ptq4vit_onnx.passes.pass_interface import Pass
from ptq4vit_onnx.passes.product_invariants import done_sides_carry_codes
from ptq4vit_onnx.passes.tensors import Array, maker_of, values_of
from ptq4vit_onnx.passes.work import Product, Violation, Work, integers, invariant, scalar

FEW_BYTES = 128  # shapes, shifts, masks and steps, and the padding of codes that make no whole groups
# Up to these bits raw codes of 0 .. 2^bits - 1 are saturation-safe as they are: two neighbours add up to 128 at most.
SAFE_RAW_BITS = 6


@invariant("every weight of k bits takes k bits per code in the file, and a few bytes")
def weights_take_their_bits(work: Work) -> Iterator[Violation]:
    for product in work.weight_products:
        assert product.codes is not None
        size = _stored_bytes(product)
        count, bits = product.codes.size, product.rhs.bits
        if not count * bits / 8 <= size <= count * bits / 8 + FEW_BYTES:
            yield product.violation(f"{count} codes of {bits} bits take {size} bytes")


def _stored_bytes(product: Product) -> int:
    """Bytes of all constants that the weight's codes are computed from."""
    dequantize = maker_of(product.node.inputs[1])
    assert dequantize is not None
    above, constants = [dequantize.inputs[0]], dict[str, int]()
    while above:
        tensor = above.pop()
        if isinstance(tensor, gs.Constant):
            constants[tensor.name] = int(tensor.values.nbytes)
        above += [item for node in tensor.inputs for item in node.inputs]
    return sum(constants.values())


class PackWeights(Pass):
    """Store weights of 2..7 bits in bytes that several codes share, and unpack them by standard operations.

        codes     becomes     bytes -> BitwiseAnd, BitShift, BitwiseOr -> Concat -> Cast -> codes

    Six bits: four codes in three bytes. Three of them lie in the lower bits of a byte each, which one mask takes out;
    the fourth is made of the two bits that are left over in each byte. What is shifted was masked before, so nothing is
    lost or rounded: engines shift in several ways. Codes count from 0, and a zero point takes 2^(bits-1) off, as
    long as that is safe beside AVX2's saturation; of seven bits, the highest says which are negative.
    All of it is constant, so ONNX Runtime computes it once, when the session loads, and then sees plain int8.
    What that takes grows with the bytes that every operation reads and writes, so there are few whole ones.
    For OpenVINO, which does not compute operations on bits while it loads, bits are told apart by float arithmetic.
    """

    # SplitGelu reads weight codes; nobody behind this pass does
    requires = ("QuantizeWeights", "FoldHeadScales", "SplitGelu")
    ensures = (weights_take_their_bits, done_sides_carry_codes)

    def apply(self, work: Work) -> int:
        products = [item for item in work.weight_products if item.rhs.bits < 8]
        for product in products:
            _pack(work, product)
        return len(products)


@dataclass(frozen=True)
class Piece:
    """Some bits of a code: `width` of them, which lie in byte `byte` from bit `at` on and belong at bit `to`."""

    byte: int
    at: int
    width: int
    to: int

    @property
    def mask(self) -> int:
        return ((1 << self.width) - 1) << self.at


def layout_of(bits: int) -> list[list[Piece]]:
    """The pieces of each code of the smallest group of codes that fills whole bytes.

    Whole codes first, as many to a byte as fit; then codes that are spread over the bits that are left over.
    """
    count, size = 8 // gcd(8, bits), bits // gcd(8, bits)
    whole = [[Piece(byte, place * bits, bits, 0)] for byte in range(size) for place in range(8 // bits)]
    left_over = [(byte, at) for byte in range(size) for at in range(8 // bits * bits, 8)]
    spread = [left_over[start : start + bits] for start in range(0, len(left_over), bits)]
    assert len(whole) + len(spread) == count
    return whole + [_joined(places) for places in spread]


def _joined(places: Sequence[tuple[int, int]]) -> list[Piece]:
    """(byte, bit) of each bit of a code, the lowest first: a piece for each byte."""
    pieces: list[Piece] = []
    for byte, of_byte in groupby(places, key=lambda place: place[0]):
        at = [bit for _, bit in of_byte]
        pieces.append(Piece(byte, at[0], len(at), sum(piece.width for piece in pieces)))
    return pieces


def pack(codes: Array, bits: int) -> list[Array]:
    """codes: uint8, [inputs, outputs]. The bytes of the layout, each an array.

    Of m codes in a group the first is one of the first m-th of the rows, the second one of the next, and so on: so what
    is unpacked is put together row after row. Where rows make no m equal parts, codes are one row, padded with zeros.
    """
    pieces = layout_of(bits)
    rows = codes if len(codes) % len(pieces) == 0 else _one_row(codes, len(pieces))
    packed = [np.zeros_like(rows[0])] * (1 + max(piece.byte for code in pieces for piece in code))
    for part, code in zip(rows.reshape(len(pieces), -1, rows.shape[-1]), pieces, strict=True):
        for piece in code:
            packed[piece.byte] = packed[piece.byte] | (part >> piece.to & (2**piece.width - 1)) << piece.at
    return packed


def _one_row(codes: Array, parts: int) -> Array:
    """[parts, a part]"""
    return np.pad(codes.reshape(-1), (0, -codes.size % parts)).reshape(parts, -1)


def _pack(work: Work, product: Product) -> None:
    dequantize, name, bits = maker_of(product.node.inputs[1]), f"{product.name}/weight", product.rhs.bits
    assert product.codes is not None and dequantize is not None
    unsigned = (product.codes.astype(np.int16) - product.rhs.low).astype(np.uint8)
    stored = [work.constant(f"{name}/byte{number}", item) for number, item in enumerate(pack(unsigned, bits))]
    if work.target == "openvino":
        codes = _put_together(work, _codes_by_floats(work, stored, bits, name), unsigned.shape, name)
        lowest = work.constant(f"codes/low{-product.rhs.low}", scalar(product.rhs.low, np.float32))
        codes = work.add("Add", f"{name}/Add", [codes, lowest])
    else:
        codes = _put_together(work, _codes_by_bits(work, stored, bits, name), unsigned.shape, name)
        if bits <= SAFE_RAW_BITS:
            dequantize.inputs.append(_zero_point(work, values_of(dequantize.inputs[1]).shape, -product.rhs.low))
        else:
            codes = _as_signed(work, codes, bits, name)
    dequantize.inputs[0] = work.add("Cast", f"{name}/Cast", [codes], to=onnx.TensorProto.INT8)


def _codes_by_bits(work: Work, stored: Sequence[gs.Tensor], bits: int, name: str) -> list[gs.Tensor]:
    """uint8, one tensor for each code of a group."""
    codes = []
    for number, pieces in enumerate(layout_of(bits)):
        parts = [_piece(work, stored[piece.byte], piece, f"{name}/code{number}.{piece.to}") for piece in pieces]
        code: gs.Tensor = parts[0]
        for part, piece in zip(parts[1:], pieces[1:], strict=True):
            code = work.add("BitwiseOr", f"{name}/code{number}.{piece.to}/BitwiseOr", [code, part])
        codes.append(code)
    return codes


def _piece(work: Work, byte: gs.Tensor, piece: Piece, name: str) -> gs.Tensor:
    """The piece's bits, and nothing else, where they belong."""
    mask = work.constant(f"codes/mask{piece.mask}", scalar(piece.mask, np.uint8))
    bits = work.add("BitwiseAnd", f"{name}/BitwiseAnd", [byte, mask])
    if piece.at == piece.to:
        return bits
    by = work.constant(f"codes/by{piece.at - piece.to}", scalar(piece.at - piece.to, np.uint8))
    return work.add("BitShift", f"{name}/BitShift", [bits, by], direction="RIGHT")


def _codes_by_floats(work: Work, stored: Sequence[gs.Tensor], bits: int, name: str) -> list[gs.Tensor]:
    """floats, one tensor for each code of a group. All numbers are whole and below 256, so floats hold them exactly."""
    fields: dict[Piece, gs.Tensor] = {}
    layout = layout_of(bits)
    for number, byte in enumerate(stored):
        rest: gs.Tensor = work.add("Cast", f"{name}/byte{number}/Cast", [byte], to=onnx.TensorProto.FLOAT)
        of_byte = sorted(
            (piece for code in layout for piece in code if piece.byte == number), key=lambda item: -item.at
        )
        for piece in of_byte[:-1]:
            fields[piece], rest = _divided(work, rest, piece.at, f"{name}/byte{number}.{piece.at}")
        fields[of_byte[-1]] = rest
    return [_sum(work, [(fields[piece], piece.to) for piece in code], f"{name}/code{place}")
            for place, code in enumerate(layout)]  # fmt: skip


def _divided(work: Work, value: gs.Tensor, bits: int, name: str) -> tuple[gs.Tensor, gs.Tensor]:
    """What stands above the lowest `bits` bits, and these."""
    step, inverse = (
        work.constant(f"codes/{what}{bits}", scalar(number, np.float32))
        for what, number in (("step", 2.0**bits), ("inverse", 2.0**-bits))
    )
    upper = work.add("Floor", f"{name}/Floor", [work.add("Mul", f"{name}/Mul", [value, inverse])])
    return upper, work.add("Sub", f"{name}/Sub", [value, work.add("Mul", f"{name}/Mul_1", [upper, step])])


def _sum(work: Work, fields: Sequence[tuple[gs.Tensor, int]], name: str) -> gs.Tensor:
    """A code of its fields, each with the bit where it begins; the first begins at 0."""
    (code, _), *others = fields
    for field, to in others:
        step = work.constant(f"codes/step{to}", scalar(2.0**to, np.float32))
        code = work.add("Add", f"{name}.{to}/Add", [code, work.add("Mul", f"{name}.{to}/Mul", [field, step])])
    return code


def _put_together(work: Work, codes: list[gs.Tensor], shape: tuple[int, ...], name: str) -> gs.Tensor:
    """[inputs, outputs] of a tensor for each code of a group, as `pack` splits them; padding is cut off."""
    if shape[0] % len(codes) == 0:
        return work.add("Concat", f"{name}/Concat", codes, axis=0)
    whole = work.add("Concat", f"{name}/Concat", codes, axis=1)
    count = prod(shape)
    if count % len(codes):
        names = ("start", "count", "axis")
        limits = (integers(0), integers(count), integers(1))
        parts = [work.constant(f"{name}/{what}", value) for what, value in zip(names, limits, strict=True)]
        whole = work.add("Slice", f"{name}/Slice", [whole, *parts])
    return work.add("Reshape", f"{name}/Reshape", [whole, work.constant(f"{name}/shape", integers(*shape))])


def _zero_point(work: Work, shape: tuple[int, ...], zero: int) -> gs.Tensor:
    """Of the shape of the scales; weights of as many outputs share it."""
    name = "x".join(map(str, (zero, *shape)))
    return work.constant(f"codes/zero{name}", np.full(shape, zero, np.int8))


def _as_signed(work: Work, codes: gs.Tensor, bits: int, name: str) -> gs.Tensor:
    """Bytes whose int8 value is code - 2^(bits-1): the code's highest bit says that this is not negative.

    Then the other bits are the value; else all bits from the highest one on are set. Nothing is subtracted: older
    runtimes have no such operator for bytes.
    """
    half = 2 ** (bits - 1)
    highest, others, above = (
        work.constant(f"codes/mask{mask}", scalar(mask, np.uint8)) for mask in (half, half - 1, 256 - half)
    )
    bit = work.add("BitwiseAnd", f"{name}/sign/BitwiseAnd", [codes, highest])
    is_positive = work.add("Cast", f"{name}/sign/Cast", [bit], to=onnx.TensorProto.BOOL)
    positive = work.add("BitwiseAnd", f"{name}/positive/BitwiseAnd", [codes, others])
    negative = work.add("BitwiseOr", f"{name}/negative/BitwiseOr", [codes, above])
    return work.add("Where", f"{name}/Where", [is_positive, positive, negative])
