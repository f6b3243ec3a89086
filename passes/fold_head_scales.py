"""Let Q, K and V leave their linear layer as bytes, with the heads' scales folded into its weights' scales."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import onnx_graphsurgeon as gs

from ptq4vit_onnx.passes.byte_codes import ByteCodes, add_clip, add_dequantize, add_quantize, centred_bytes
from ptq4vit_onnx.passes.pass_interface import Pass
from ptq4vit_onnx.passes.product_invariants import done_sides_carry_codes
from ptq4vit_onnx.passes.quantize_activations import choose_sign
from ptq4vit_onnx.passes.tensors import Array, computed_input, maker_of, read_instead, values_of
from ptq4vit_onnx.passes.trace_columns import Trace, trace_columns
from ptq4vit_onnx.passes.work import Product, Violation, Work, invariant
from ptq4vit_onnx.plan.file_layout import HEAD_UNIT
from ptq4vit_onnx.plan.quantizers import Uniform
from ptq4vit_onnx.plan.sites import Attention

SCALE_IN_HEADS = "/weight/scale_in_heads"


@dataclass(frozen=True)
class Side:
    """One side of a product of two activations, and where it comes from."""

    product: Product
    index: int
    quantizer: Uniform
    trace: Trace

    @property
    def name(self) -> str:
        return f"{self.product.name}/{'rhs' if self.index else 'lhs'}"

    @property
    def column_factors(self) -> Array:
        """Per column of the linear: what turns it into this side's units; 0 for columns of other sides."""
        scales = np.asarray(self.quantizer.scale, np.float64)
        heads = np.broadcast_to(scales, max(len(scales), self.trace.heads.max() + 1))
        own = self.trace.heads >= 0
        return np.where(own, self.trace.factor / heads[self.trace.heads], 0.0)


@invariant("a linear whose output is quantised where it is computed feeds both sides of Q @ K^T and the right of P @ V")
def folded_sides_are_complete(work: Work) -> Iterator[Violation]:
    scaled = {tensor.name for tensor in work.constants.values() if tensor.name.endswith(SCALE_IN_HEADS)}
    for product in work.weight_products:
        if f"{product.name}{SCALE_IN_HEADS}" in scaled and not product.is_narrow:
            attention = Attention.around(product.site)
            scores, values = work.product(attention.qk), work.product(attention.pv)
            if not (scores.lhs_done and scores.rhs_done and values.rhs_done):
                yield product.violation("not all of q, k and v carry codes")


class FoldHeadScales(Pass):
    """Quantise a fused qkv linear's output once, right where it is computed; what follows moves bytes.

        MatMul -> Add -> Reshape -> Transpose -> Slice -> [Mul] -> MatMul     becomes
        MatMul -> Add -> QuantizeLinear -> Reshape -> Transpose -> Slice -> DequantizeLinear -> MatMul

    The linear then computes in units of its consumers' scales: its column for head h is dequantised with
    scale / D_h, its bias divided by D_h, and the attention scale is multiplied in. The integer weights do not
    change. The products behind are multiplied by D_h of both sides afterwards (RestoreHeadScales).
    For OpenVINO each side is moved as floats, and quantised right in front of its product: behind a movement of bytes
    OpenVINO multiplies floats. Only the Transpose of the keys comes after, which OpenVINO joins with the product.
    Sides that are not moved data of one linear are left to QuantizeActivations: correct, but slower. So are
    those of a linear that makes k and v alone, or one of the three: the proof of a file expects the fused one.
    """

    # ShapeBiases: the bias is the second input of SITE/Add. SplitOutliers: both products of a site are scaled.
    requires = ("DropNoOps", "ShapeBiases", "SplitOutliers", "QuantizeWeights")
    ensures = (folded_sides_are_complete, done_sides_carry_codes)

    def apply(self, work: Work) -> int:
        sides: dict[int, list[Side]] = {}
        for side in _sides(work):
            sides.setdefault(id(side.trace.source), []).append(side)
        linears = _linears(work)
        folded = 0
        for group in sides.values():
            linear = linears.get(group[0].trace.source.name)
            if linear is not None and _is_qkv(linear.site, group) and _covers(group, work.graph.outputs):
                self._fold(work, linear, group)
                folded += len(group)
        return folded

    def _fold(self, work: Work, linear: Product, sides: list[Side]) -> None:
        unit = HEAD_UNIT[work.target]
        factors = sum((side.column_factors for side in sides), np.zeros(len(sides[0].trace.heads)))
        _scale_columns(work, linear.site, factors * unit)
        for side in sides:
            for node in side.trace.multiplications:
                read_instead(node.outputs[0].outputs, node.outputs[0], computed_input(node))
        common = _common_codes(sides, unit)
        if work.target == "onnxruntime":
            source = sides[0].trace.source
            readers = list(source.outputs)
            read_instead(readers, source, add_quantize(work, source, common, f"{linear.name}/out"))
        for side in sides:
            self._quantize_side(work, side, common)

    def _quantize_side(self, work: Work, side: Side, common: ByteCodes) -> None:
        """Let the product read the side's codes through a DequantizeLinear."""
        scales, product = np.asarray(side.quantizer.scale, np.float32), side.product
        own, reader, place = _own_codes(side, common), product.node, side.index
        transpose = _turned_by(reader.inputs[place])
        if work.target == "openvino" and transpose is not None:
            reader, place = transpose, 0
        x = reader.inputs[place]
        if work.target == "openvino":
            own = centred_bytes(own)
            x = add_quantize(work, x, own, f"{side.name}/units")
        elif (own.low, own.high) != (common.low, common.high):
            x = add_clip(work, x, own, side.name)
        if side.index and work.target == "onnxruntime":
            x, own = choose_sign(work, product, x, own, side.name)
        same = bool((scales == scales[0]).all())
        read = replace(own, scale=float(scales[0])) if same else own
        reader.inputs[place] = add_dequantize(work, x, read, side.name)
        if not same:
            product.scale_output(scales / np.float32(own.scale))
        if side.index:
            product.rhs_done = True
        else:
            product.lhs_done = True


def _turned_by(tensor: gs.Tensor) -> gs.Node | None:
    """The Transpose that makes the tensor, for one reader."""
    node = maker_of(tensor)
    return node if node is not None and node.op == "Transpose" and len(tensor.outputs) == 1 else None


def _sides(work: Work) -> Iterator[Side]:
    """The sides of products of two activations that are moved data of one linear."""
    for product in work.products:
        if product.has_weight:
            continue
        for index, quantizer in enumerate((product.lhs, product.rhs)):
            if isinstance(quantizer, Uniform) and not (index == 0 and product.plan.lhs_source == "softmax"):
                end = product.node.inputs[index]
                trace = trace_columns(end, _head_count(end))
                if trace is not None and len(quantizer.scale) in (1, trace.heads.max() + 1):
                    yield Side(product, index, quantizer, trace)


def _head_count(tensor: gs.Tensor) -> int:
    """Length of axis -3 of [.., heads, rows, columns]; 0 where it is unknown."""
    heads = tensor.shape[-3] if tensor.shape is not None and len(tensor.shape) >= 3 else 0
    return heads if isinstance(heads, int) else 0


def _linears(work: Work) -> dict[str, Product]:
    """Main products with a weight, by the tensor that holds their output with bias and outliers."""
    main = (item for item in work.weight_products if not item.is_narrow)
    return {[product.node, *product.adds][-1].outputs[0].name: product for product in main}


def _is_qkv(site: str, sides: list[Side]) -> bool:
    """Does the linear make q, k and v of its own attention, a third of its columns each, in this order?"""
    attention = Attention.around(site)
    by_name = {(side.product.site, side.index): side for side in sides}
    wanted = [(attention.qk, 0), (attention.qk, 1), (attention.pv, 1)]
    if sorted(by_name) != sorted(wanted) or len(sides[0].trace.heads) % 3:
        return False
    thirds = [np.split(by_name[name].trace.heads >= 0, 3)[place] for place, name in enumerate(wanted)]
    return all(bool(third.all()) for third in thirds)


def _covers(sides: list[Side], ends: list[gs.Tensor]) -> bool:
    """Does every column go to exactly one side, and nobody else read anything on the way?"""
    owners = sum((side.trace.heads >= 0).astype(int) for side in sides)
    nodes = {id(node) for side in sides for node in (*side.trace.nodes, side.product.node)}
    tensors = [
        sides[0].trace.source,
        *(item for side in sides for node in side.trace.nodes for item in node.outputs),
    ]
    shown = {id(item) for item in ends} & {id(tensor) for tensor in tensors}
    private = not shown and all(id(reader) in nodes for tensor in tensors for reader in tensor.outputs)
    return bool(np.all(owners == 1)) and private


def _common_codes(sides: list[Side], unit: float) -> ByteCodes:
    """The bytes of the linear's output: the sides' own where all have the same bits, else of 8 bits."""
    bits = {side.quantizer.bits for side in sides}
    width = bits.pop() if len(bits) == 1 else 8
    return ByteCodes(unit, 2 ** (width - 1), 0, 2**width - 1)


def _own_codes(side: Side, common: ByteCodes) -> ByteCodes:
    low = common.zero + side.quantizer.low
    return replace(common, low=low, high=common.zero + side.quantizer.high)


def _scale_columns(work: Work, site: str, factors: Array) -> None:
    """Multiply a linear's output by one factor per column, in its dequantisation scales and its bias."""
    for product in work.products:
        if product.site == site:
            dequantize = maker_of(product.node.inputs[1])
            assert dequantize is not None
            scale = values_of(dequantize.inputs[1]).astype(np.float64) * factors
            name = f"{product.name}{SCALE_IN_HEADS}"
            dequantize.inputs[1] = work.constant(name, scale.astype(np.float32))
            dequantize.attrs["axis"] = 1
    for node in work.product(site).adds:
        if node.name == f"{site}/Add":
            bias = values_of(node.inputs[1]).astype(np.float64) * factors
            node.inputs[1] = gs.Constant(f"{site}/bias_in_heads", bias.astype(np.float32))
