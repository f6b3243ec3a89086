"""Take an image's bytes as they are."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_graphsurgeon as gs
from numpy.typing import DTypeLike

from ptq4vit_onnx.passes.pass_interface import Pass
from ptq4vit_onnx.passes.product_invariants import done_sides_carry_codes
from ptq4vit_onnx.passes.tensors import Array, constant_inputs, maker_of, read_instead, shape_of, values_of
from ptq4vit_onnx.passes.work import Product, Violation, Work, invariant, scalar
from ptq4vit_onnx.plan.quantizers import Branch, Colour
from ptq4vit_onnx.plan.saturation_safe_weights import unit_bias

COLOURS_AXIS = 1  # of an image [batch, colours, height, width]


@invariant("the left side of every product that reads pixels is quantised colour by colour, or the input is bytes")
def pixels_are_bytes(work: Work) -> Iterator[Violation]:
    if all(entry.dtype == np.uint8 for entry in work.graph.inputs):
        return
    by_name = {node.name: node for node in work.graph.nodes}
    for product in _readers_of_pixels(work):
        quantize = by_name.get(f"{product.name}/pixels/QuantizeLinear")
        if not product.lhs_done or quantize is None:
            yield product.violation("no QuantizeLinear reads its image")
        elif len(values_of(quantize.inputs[1])) != len(product.lhs.colours):
            yield product.violation(f"{quantize.name} has {len(values_of(quantize.inputs[1]))} scales")


class QuantizePixels(Pass):
    """An image whose pixels are bytes becomes these bytes again, colour by colour, before patches are cut.

        image -> patches -> MatMul -> Add(bias)     becomes
        image -> Add(offset) -> QuantizeLinear -> patches -> DequantizeLinear -> MatMul -> Add(bias + constant)

    QuantizeLinear has a scale and a zero point per colour; DequantizeLinear one of each, as the integer kernel needs,
    because QuantizeWeights multiplied the colours' scales into the weight. The constant is what that leaves out. Why
    this is exact: see plan/quantizers/pixels. Refuses another number of colours than the image has.
    """

    # QuantizeWeights: the constant is made of the codes that ship
    requires = ("EmbedPatches", "ShapeBiases", "QuantizeWeights")
    ensures = (pixels_are_bytes, done_sides_carry_codes)

    def apply(self, work: Work) -> int:
        products = _readers_of_pixels(work)
        for product in products:
            self._quantize_image(work, product)
            self._dequantize(work, product)
            _add_constant(work, product)
            product.lhs_done = True
        return len(products)

    def _quantize_image(self, work: Work, product: Product) -> None:
        """Put bytes in the place of the image that the patches are cut from."""
        cut = _first_cut(product)
        image, name, colours = cut.inputs[0], f"{product.name}/pixels", product.lhs.colours
        depth = shape_of(image)[COLOURS_AXIS]
        if depth != len(colours):
            raise self.refuse(product.site, cut.name, f"the plan has {len(colours)} colours, the image {depth}")
        x = image
        if any(colour.offset for colour in colours):
            offset = _per_colour(colours, "offset", np.float32).reshape(-1, 1, 1)
            x = work.add("Add", f"{name}/Add", [x, work.constant(f"{name}/offset", offset)])
        scale = work.constant(f"{name}/scale", _per_colour(colours, "step", np.float32))
        zero = work.constant(f"{name}/zero_point", _per_colour(colours, "zero_point", np.uint8))
        codes = work.add("QuantizeLinear", f"{name}/QuantizeLinear", [x, scale, zero], axis=COLOURS_AXIS)
        read_instead([cut], image, codes)

    def _dequantize(self, work: Work, product: Product) -> None:
        (branch,) = product.lhs.branches
        name, node = f"{product.name}/lhs", product.node
        scale, zero = _scale_and_zero(work, branch, name)
        node.inputs[0] = work.add("DequantizeLinear", f"{name}/DequantizeLinear", [node.inputs[0], scale, zero])


def _scale_and_zero(work: Work, branch: Branch, name: str) -> tuple[gs.Constant, gs.Constant]:
    scale = work.constant(f"{name}/scale", scalar(branch.steps[0], np.float32))
    return scale, work.constant(f"{name}/zero_point", scalar(-branch.low, np.uint8))


def _readers_of_pixels(work: Work) -> list[Product]:
    return [item for item in work.products if item.lhs.colours]


def _first_cut(product: Product) -> gs.Node:
    """The first of the nodes that cut patches from the image: see EmbedPatches."""
    node = maker_of(product.node.inputs[0])
    first = f"{product.site}/patches/Reshape"
    while node is not None and node.name != first:
        node = maker_of(node.inputs[0])
    assert node is not None, f"{product.site} has no patches"
    return node


def _per_colour(colours: tuple[Colour, ...], what: str, kind: DTypeLike) -> Array:
    return np.asarray([getattr(colour, what) for colour in colours], kind)


def _add_constant(work: Work, product: Product) -> None:
    """Add to the bias what the units' zeros are worth."""
    assert product.codes is not None
    constant = unit_bias(product.codes, product.lhs, product.rhs)
    assert constant is not None
    add = next((node for node in product.adds if node.name == f"{product.site}/Add"), None)
    bias = np.zeros((1, len(constant)), np.float32) if add is None else constant_inputs(add)[0].values
    moved = gs.Constant(f"{product.site}/pixels/bias", (bias + constant).astype(np.float32))
    if add is None:
        work.append_to(product.node, "Add", f"{product.site}/Add", moved)
    else:
        add.inputs = [product.node.outputs[0], moved]
