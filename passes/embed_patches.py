"""Turn convolutions into products."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_graphsurgeon as gs

from ptq4vit_onnx.passes.pass_interface import Pass
from ptq4vit_onnx.passes.product_invariants import matrix_products
from ptq4vit_onnx.passes.tensors import only_reader, replace_tensor, shape_of, values_of, whole_lengths
from ptq4vit_onnx.passes.windows import Geometry, overlapping_windows, patches, pixels
from ptq4vit_onnx.passes.work import Product, Violation, Work, integers, invariant
from ptq4vit_onnx.plan.quantizers.patch_order import flat_kernels


@invariant("no planned product is a convolution")
def products_are_no_convolutions(work: Work) -> Iterator[Violation]:
    yield from (item.violation("it is a Conv") for item in work.products if item.node.op == "Conv")


class EmbedPatches(Pass):
    """A convolution is a product over its windows. Those of a patch embedding lie side by side:

        image -> Conv -> [batch, channels, rows, columns]     becomes
        image -> Reshape -> Transpose -> Reshape -> Transpose -> Reshape -> MatMul -> Add -> [batch, patches, channels]

    The second Transpose puts far inputs side by side (see `pair_far_inputs`). One Transpose could do both, but would
    move single bytes along seven axes, which takes ONNX Runtime six times as long.
    Of a kernel of a single pixel, whatever its stride, the channels become the last axis:

        image -> [Slice ->] Reshape -> Transpose -> MatMul -> Add

    Windows that overlap are put together from pixels, one Slice for each place of the kernel:

        image -> Transpose -> [Pad ->] Slice, Slice, .. -> Concat -> Reshape -> MatMul -> Add

    A Transpose, or Reshape and Transpose, that follows and makes channels the last axis is dropped: they are the last.
    Refuses groups, images of unknown size, and those that are no whole number of patches.
    """

    # DropUnreadRows reads shapes and the order of nodes, which this pass does not keep up
    requires = ("FindProducts", "DropNoOps", "DropUnreadRows")
    ensures = (products_are_no_convolutions, matrix_products("conv"))

    def apply(self, work: Work) -> int:
        products = [item for item in work.products if item.plan.kind == "conv"]
        for product in products:
            self._embed(work, product)
        return len(products)

    def _embed(self, work: Work, product: Product) -> None:
        conv, site = product.node, product.site
        weight, geometry = values_of(conv.inputs[1]), self._geometry(conv, site)
        rows, columns = geometry.grid
        if not geometry.tiles:
            rows_of_inputs = overlapping_windows(work, site, conv.inputs[0], geometry)
        elif geometry.kernel == (1, 1):
            rows_of_inputs = pixels(work, site, conv.inputs[0], geometry)
        else:
            rows_of_inputs = patches(work, site, conv.inputs[0], geometry)
        matrix = np.ascontiguousarray(flat_kernels(weight, geometry.tiles).T)
        out = work.add("MatMul", f"{site}/MatMul", [rows_of_inputs, gs.Constant(f"{site}/float_weight", matrix)])
        product.node = out.inputs[0]
        bias = conv.inputs[2] if len(conv.inputs) > 2 else None
        if bias is None and not (geometry.tiles and geometry.kernel != (1, 1)):
            # ONNX Runtime computes a product without a bias in float where both a QuantizeLinear and a residual read it
            bias = gs.Constant(f"{site}/no_bias", np.zeros(len(weight), np.float32))
        if bias is not None:
            out = work.add("Add", f"{site}/Add", [out, bias])
        _hand_over(work, conv, out, (rows, columns, len(weight)))

    def _geometry(self, conv: gs.Node, site: str) -> Geometry:
        """Of a convolution that can be a product."""
        down, across = values_of(conv.inputs[1]).shape[2:]
        if conv.attrs.get("group", 1) != 1 or conv.attrs.get("auto_pad", "NOTSET") != "NOTSET":
            raise self.refuse(
                site, conv.name, f"expected a convolution without groups or automatic padding, got {dict(conv.attrs)}"
            )
        size = shape_of(conv.inputs[0])[1:]
        lengths = whole_lengths(size)
        if lengths is None:
            raise self.refuse(site, conv.name, f"the image's size {size} is not known")
        geometry = Geometry(
            lengths[0], (lengths[1], lengths[2]), (down, across), tuple(conv.attrs.get("strides", [1, 1])),
            tuple(conv.attrs.get("pads", [0] * 4)), tuple(conv.attrs.get("dilations", [1, 1])),
        )  # fmt: skip
        if geometry.tiles and geometry.kernel != (1, 1) and (lengths[1] % down or lengths[2] % across):
            raise self.refuse(site, conv.name, f"image {size} is no whole number of patches {[down, across]}")
        return geometry


def _hand_over(work: Work, conv: gs.Node, out: gs.Variable, grid: tuple[int, int, int]) -> None:
    """Give `out` [batch, rows * columns, channels] to those who read the convolution's output."""
    site = conv.name.removesuffix("/Conv")
    rows, columns, channels = grid
    shown = any(item is conv.outputs[0] for item in work.graph.outputs)
    reader = None if shown else only_reader(conv.outputs[0])
    last = _channels_last(reader, rows * columns)
    if last is not None:
        replace_tensor(last, out)
        return
    shape = work.constant(f"{site}/grid", integers(0, rows, columns, channels))
    out = work.add("Reshape", f"{site}/Reshape", [out, shape])
    if reader is not None and reader.op == "Transpose" and reader.attrs["perm"] == [0, 2, 3, 1]:
        replace_tensor(reader.outputs[0], out)
        return
    out = work.add("Transpose", f"{site}/Transpose", [out], perm=[0, 3, 1, 2])
    replace_tensor(conv.outputs[0], out)


def _channels_last(reader: gs.Node | None, tokens: int) -> gs.Tensor | None:
    """The tensor [batch, tokens, channels] behind Reshape [batch, channels, tokens] and Transpose, if any."""
    if reader is None or reader.op != "Reshape" or not isinstance(reader.inputs[1], gs.Constant):
        return None
    shape, behind = reader.inputs[1].values, only_reader(reader.outputs[0])
    if len(shape) != 3 or shape[2] != tokens or behind is None:
        return None
    return behind.outputs[0] if behind.op == "Transpose" and behind.attrs["perm"] == [0, 2, 1] else None
