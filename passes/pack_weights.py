"""Store weights of k bits in k bits each."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import numpy as np
import onnx
import onnx_graphsurgeon as gs

from ptq4vit_onnx.passes.pass_interface import Pass
from ptq4vit_onnx.passes.product_invariants import done_sides_carry_codes
from ptq4vit_onnx.passes.tensors import Array, maker_of
from ptq4vit_onnx.passes.work import Product, Violation, Work, integers, invariant, scalar

WIDTHS = (1, 2, 4)  # every k below 8 is a sum of these, each at most once
FEW_BYTES = {"onnxruntime": 96, "openvino": 224}  # shapes, shifts, masks and steps of the planes, and their padding


@invariant("every weight of k bits takes k bits per code in the file, and a few bytes")
def weights_take_their_bits(work: Work) -> Iterator[Violation]:
    for product in work.weight_products:
        assert product.codes is not None
        size = _stored_bytes(product)
        count, bits = product.codes.size, product.rhs.bits
        if not count * bits / 8 <= size <= count * bits / 8 + FEW_BYTES[work.target]:
            yield product.violation(f"{count} codes of {bits} bits take {size} bytes")


def _stored_bytes(product: Product) -> int:
    """Bytes of all constants that the weight's codes are computed from."""
    dequantize = maker_of(product.node.inputs[1])
    assert dequantize is not None
    above, constants = [dequantize.inputs[0]], {}
    while above:
        tensor = above.pop()
        if isinstance(tensor, gs.Constant):
            constants[tensor.name] = tensor.values.nbytes
        above += [item for node in tensor.inputs for item in node.inputs]
    return sum(constants.values())


class PackWeights(Pass):
    """Store weights of 2..7 bits as bit planes, and unpack them by standard operations.

        codes     becomes     planes -> BitwiseAnd, BitShift -> Concat -> BitwiseOr -> Where, Cast -> codes

    A plane of width w (4, 2 or 1 bits of every code) holds 8 / w codes per byte; 6 bits are a plane of 2, the lower
    bits, and one of 4. What is shifted was masked before, so nothing is lost or rounded: engines shift in several ways.
    All of it is constant, so ONNX Runtime computes it once, when the session loads, and then sees plain int8.
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


def _pack(work: Work, product: Product) -> None:
    dequantize, name = maker_of(product.node.inputs[1]), f"{product.name}/weight"
    assert product.codes is not None and dequantize is not None
    unsigned = (product.codes.astype(np.int16) - product.rhs.low).astype(np.uint8)
    if work.target == "openvino":
        dequantize.inputs[0] = _unpack_by_floats(work, product, unsigned, name)
        return
    codes = _unpack_by_bits(work, unsigned, product.rhs.bits, name)
    signed = _as_signed(work, codes, product.rhs.bits, name)
    dequantize.inputs[0] = _as_int8(work, _whole(work, signed, unsigned.shape, name), name)


def planes_of(bits: int) -> list[tuple[int, int]]:
    """(lowest bit, width) of each plane, the lowest first: (0, 2) and (2, 4) of six bits."""
    widths = [width for width in WIDTHS if bits & width]
    return [(sum(widths[:place]), width) for place, width in enumerate(widths)]


def pack_plane(codes: Array, low: int, width: int) -> Array:
    """Bits low .. low+width-1 of every code, 8 / width codes to a byte: uint8 [bytes].

    Code i + j * bytes is in byte i, shifted up by j * width: so unpacking is one shift of the whole plane
    per j.
    """
    parts = 8 // width
    values = (codes.reshape(-1) >> low) & (2**width - 1)
    values = np.pad(values, (0, -len(values) % 8)).reshape(parts, -1)
    shifts = (np.arange(parts, dtype=np.uint8) * width)[:, None]
    packed: Array = np.bitwise_or.reduce(values << shifts, axis=0)
    return packed.astype(np.uint8)


def _unpack_by_bits(work: Work, codes: Array, bits: int, name: str) -> gs.Tensor:
    """uint8 [1, codes and padding]."""
    joined: gs.Tensor | None = None
    for low, width in planes_of(bits):
        plane = work.constant(f"{name}/plane{width}", pack_plane(codes, low, width)[None])
        parts = [_part(work, plane, place * width, width, low, name) for place in range(8 // width)]
        field = work.add("Concat", f"{name}/plane{width}/Concat", parts, axis=1)
        joined = field if joined is None else work.add("BitwiseOr", f"{name}/plane{width}/BitwiseOr", [joined, field])
    assert joined is not None
    return joined


def _part(work: Work, plane: gs.Tensor, at: int, width: int, to: int, name: str) -> gs.Tensor:
    """Of every byte of the plane the bits at .. at+width-1, and nothing else, at bit `to`."""
    name = f"{name}/plane{width}.{at}"
    mask = (2**width - 1) << at
    bits = work.add(
        "BitwiseAnd", f"{name}/BitwiseAnd", [plane, work.constant(f"plane/mask{mask}", scalar(mask, np.uint8))]
    )
    if at == to:
        return bits
    by = work.constant(f"plane/by{abs(at - to)}", scalar(abs(at - to), np.uint8))
    return work.add("BitShift", f"{name}/BitShift", [bits, by], direction="RIGHT" if at > to else "LEFT")


def _whole(work: Work, codes: gs.Tensor, shape: tuple[int, ...], name: str) -> gs.Tensor:
    """The codes [inputs, outputs]; the planes' padding is cut off."""
    count = prod(shape)
    if count % 8:
        names = ("start", "count", "axis")
        limits = (integers(0), integers(count), integers(1))
        parts = [work.constant(f"{name}/{what}", value) for what, value in zip(names, limits, strict=True)]
        codes = work.add("Slice", f"{name}/Slice", [codes, *parts])
    return work.add("Reshape", f"{name}/Reshape", [codes, work.constant(f"{name}/shape", integers(*shape))])


def _as_int8(work: Work, codes: gs.Tensor, name: str) -> gs.Tensor:
    return work.add("Cast", f"{name}/Cast", [codes], to=onnx.TensorProto.INT8)


def _as_signed(work: Work, codes: gs.Tensor, bits: int, name: str) -> gs.Tensor:
    """Bytes whose int8 value is code - 2^(bits-1): the code's highest bit says that this is not negative.

    Then the other bits are the value; else all bits from the highest one on are set. Nothing is subtracted: older
    runtimes have no such operator for bytes.
    """
    half = 2 ** (bits - 1)
    highest, others, above = (
        work.constant(f"plane/bits{mask}", scalar(mask, np.uint8)) for mask in (half, half - 1, 256 - half)
    )
    bit = work.add("BitwiseAnd", f"{name}/sign/BitwiseAnd", [codes, highest])
    is_positive = work.add("Cast", f"{name}/sign/Cast", [bit], to=onnx.TensorProto.BOOL)
    positive = work.add("BitwiseAnd", f"{name}/positive/BitwiseAnd", [codes, others])
    negative = work.add("BitwiseOr", f"{name}/negative/BitwiseOr", [codes, above])
    return work.add("Where", f"{name}/Where", [is_positive, positive, negative])


def _unpack_by_floats(work: Work, product: Product, codes: Array, name: str) -> gs.Tensor:
    """int8 [inputs, outputs]. All numbers are whole and at most 255, so floats hold them exactly."""
    joined: gs.Tensor | None = None
    for low, width in planes_of(product.rhs.bits):
        plane = work.constant(f"{name}/plane{width}", pack_plane(codes, low, width)[None, None])
        field: gs.Tensor = work.add("Cast", f"{name}/plane{width}/Cast", [plane], to=onnx.TensorProto.FLOAT)
        for half in (4, 2, 1):
            if half >= width:
                field = _halved(work, field, half, f"{name}/plane{width}.{half}")
        joined = field if joined is None else _add_higher(work, joined, field, low, f"{name}/plane{width}")
    assert joined is not None
    lowest = work.constant(f"plane/low{-product.rhs.low}", scalar(product.rhs.low, np.float32))
    flat = work.add("Reshape", f"{name}/Flatten", [joined, work.constant("plane/flat", integers(1, -1))])
    whole = _whole(work, flat, codes.shape, name)
    return _as_int8(work, work.add("Add", f"{name}/Add", [whole, lowest]), name)


def _halved(work: Work, field: gs.Tensor, bits: int, name: str) -> gs.Tensor:
    """floats [a, 1, n] of 2 * `bits` bits each -> [2a, 1, n], the lower half of each before its upper half."""
    step, inverse = (
        work.constant(f"plane/{what}{bits}", scalar(value, np.float32))
        for what, value in (("step", 2.0**bits), ("inverse", 2.0**-bits))
    )
    upper = work.add("Floor", f"{name}/Floor", [work.add("Mul", f"{name}/Mul", [field, inverse])])
    lower = work.add("Sub", f"{name}/Sub", [field, work.add("Mul", f"{name}/Mul_1", [upper, step])])
    both = work.add("Concat", f"{name}/Concat", [lower, upper], axis=1)
    rows = work.constant(f"{name}/rows", integers(8 // bits, 1, -1))
    return work.add("Reshape", f"{name}/Reshape", [both, rows])


def _add_higher(work: Work, codes: gs.Tensor, field: gs.Tensor, low: int, name: str) -> gs.Tensor:
    """Codes whose lower bits are `codes` and whose bits from `low` on are `field`, each [.., 1, n] of any cut."""
    shape = work.constant("plane/flat", integers(1, -1))
    codes = work.add("Reshape", f"{name}/lower/Reshape", [codes, shape])
    field = work.add("Reshape", f"{name}/higher/Reshape", [field, shape])
    step = work.constant(f"plane/step{low}", scalar(2.0**low, np.float32))
    return work.add("Add", f"{name}/Add", [codes, work.add("Mul", f"{name}/Mul", [field, step])])
