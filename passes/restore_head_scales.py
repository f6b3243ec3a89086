"""Multiply the heads' scales back in, behind the products."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_graphsurgeon as gs

from ptq4vit_onnx.passes.pass_interface import Pass
from ptq4vit_onnx.passes.tensors import Array, only_reader
from ptq4vit_onnx.passes.work import Product, Violation, Work, invariant


@invariant("every product in units of its heads' scales is multiplied by them right behind it")
def head_scales_are_back(work: Work) -> Iterator[Violation]:
    for product in work.products:
        if product.head_scales is None:
            continue
        last = [product.node, *product.adds][-1]
        reader = only_reader(last.outputs[0])
        factors = reader.inputs[1] if reader is not None and reader.op == "Mul" else None
        if not isinstance(factors, gs.Constant):
            yield product.violation("its output is not read by a Mul alone")
        elif not (factors.values == _by_head(product.head_scales)).all():
            yield product.violation("its output is multiplied by other factors")


class RestoreHeadScales(Pass):
    """A product that was computed in units of its heads' scales is multiplied by them, once.

        MatMul -> out [.., heads, rows, columns]     becomes     MatMul -> Mul [heads, 1, 1] -> out

    Scales of both sides, and of the folded attention scale, are one Mul.
    """

    requires = ("FoldHeadScales", "QuantizeActivations")
    ensures = (head_scales_are_back,)

    def apply(self, work: Work) -> int:
        scaled = [(item, item.head_scales) for item in work.products if item.head_scales is not None]
        for product, scales in scaled:
            self._multiply(work, product, scales)
        return len(scaled)

    def _multiply(self, work: Work, product: Product, scales: Array) -> None:
        factors = work.constant(f"{product.name}/head_scales", _factors(work, product, scales))
        work.append_to(product.node, "Mul", f"{product.name}/Mul", factors)


def _factors(work: Work, product: Product, scales: Array) -> Array:
    """float32 [heads, 1, 1], which multiplies [.., heads, rows, columns] head by head.

    For OpenVINO [heads, rows, 1]: a factor for each head alone it would multiply into the right side, as floats, before
    it looks for integer products. Of a single row [heads, 1, columns]: where a QuantizeLinear follows, OpenVINO refuses
    a factor for each head alone.
    """
    factors = _by_head(scales)
    shape = product.node.outputs[0].shape
    if work.target != "openvino" or shape is None or len(shape) < 2:
        return factors
    axis = -1 if shape[-2] == 1 else -2
    length = shape[axis]
    return np.repeat(factors, length, axis) if isinstance(length, int) else factors


def _by_head(scales: Array) -> Array:
    return scales.astype(np.float32).reshape(-1, 1, 1)
