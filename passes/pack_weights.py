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

WIDTHS = (4, 2, 1)  # every k below 8 is a sum of these, each at most once
FEW_BYTES = 96  # shapes, shifts and masks of the planes, and their padding


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
    above, size = [dequantize.inputs[0]], 0
    while above:
        tensor = above.pop()
        size += tensor.values.nbytes if isinstance(tensor, gs.Constant) else 0
        above += [item for node in tensor.inputs for item in node.inputs]
    return size


class PackWeights(Pass):
    """Store weights of 2..7 bits as bit planes, and unpack them by standard operations.

        codes     becomes     planes -> BitShift, BitwiseAnd -> Mul, Add -> Cast, Add -> codes

    A plane of width w (4, 2 or 1 bits of every code) holds 8 / w codes per byte; 6 bits are a plane of 4
    and one of 2. All of it is constant, so ONNX Runtime computes it once, when the session loads, and then
    sees plain int8.
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
    dequantize, bits, name = maker_of(product.node.inputs[1]), product.rhs.bits, f"{product.name}/weight"
    assert product.codes is not None and dequantize is not None
    unsigned = (product.codes.astype(np.int16) - product.rhs.low).astype(np.uint8)
    codes: gs.Tensor | None = None
    low = 0
    for width in WIDTHS:
        if bits & width:
            plane = pack_plane(unsigned, low, width)
            field = _unpack_plane(work, plane, width, f"{name}/plane{width}")
            codes = field if codes is None else _join(work, codes, field, low, f"{name}/plane{width}")
            low += width
    assert codes is not None
    dequantize.inputs[0] = _as_signed(work, codes, product.codes.shape, product.rhs.low, name)


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


def _unpack_plane(work: Work, plane: Array, width: int, name: str) -> gs.Tensor:
    """uint8 [8 / width * bytes]: the values of the plane, one to a byte."""
    shifts = (np.arange(8 // width, dtype=np.uint8) * width)[:, None]
    inputs = [work.constant(name, plane[None]), work.constant(f"plane{width}/shifts", shifts)]
    values = work.add("BitShift", f"{name}/BitShift", inputs, direction="RIGHT")
    mask = work.constant(f"plane{width}/mask", scalar(2**width - 1, np.uint8))
    values = work.add("BitwiseAnd", f"{name}/BitwiseAnd", [values, mask])
    return work.add("Reshape", f"{name}/Reshape", [values, work.constant("plane/flat", integers(-1))])


def _join(work: Work, codes: gs.Tensor, field: gs.Tensor, low: int, name: str) -> gs.Tensor:
    """Codes whose lower bits are `codes` and whose bits from `low` on are `field`."""
    shift = work.constant(f"plane/up{low}", scalar(2**low, np.uint8))
    field = work.add("Mul", f"{name}/Mul", [field, shift])
    return work.add("Add", f"{name}/Add", [codes, field])


def _as_signed(work: Work, codes: gs.Tensor, shape: tuple[int, ...], low: int, name: str) -> gs.Tensor:
    """int8 [inputs, outputs] from unsigned codes; the plane's padding is cut off."""
    count = prod(shape)
    if count % 8:
        ends = [work.constant("plane/start", integers(0)), work.constant(f"{name}/count", integers(count))]
        codes = work.add("Slice", f"{name}/Slice", [codes, *ends])
    codes = work.add("Reshape", f"{name}/Reshape", [codes, work.constant(f"{name}/shape", integers(*shape))])
    codes = work.add("Cast", f"{name}/Cast", [codes], to=onnx.TensorProto.INT8)
    return work.add("Add", f"{name}/Add", [codes, work.constant(f"plane/low{-low}", scalar(low, np.int8))])
