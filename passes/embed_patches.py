"""Turn the patch embedding into a product."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_graphsurgeon as gs

from ptq4vit_onnx.passes.pass_interface import Pass
from ptq4vit_onnx.passes.product_invariants import matrix_products
from ptq4vit_onnx.passes.tensors import only_reader, replace_tensor, shape_of, values_of, whole_lengths
from ptq4vit_onnx.passes.work import Product, Violation, Work, integers, invariant
from ptq4vit_onnx.plan.quantizers.patch_order import kernel_order


@invariant("no planned product is a convolution")
def products_are_no_convolutions(work: Work) -> Iterator[Violation]:
    yield from (item.violation("it is a Conv") for item in work.products if item.node.op == "Conv")


class EmbedPatches(Pass):
    """A convolution whose patches do not overlap is a product over flattened patches.

        image -> Conv -> [batch, channels, rows, columns]     becomes
        image -> Reshape -> Transpose -> Reshape -> Transpose -> Reshape -> MatMul -> Add -> [batch, patches, channels]

    The second Transpose puts far inputs side by side (see `pair_far_inputs`). One Transpose could do both, but would
    move single bytes along seven axes, which takes ONNX Runtime six times as long.
    Of a kernel of a single pixel, whatever its stride, the channels become the last axis:

        image -> [Slice ->] Reshape -> Transpose -> MatMul -> Add -> [batch, pixels, channels]

    A Transpose, or Reshape and Transpose, that follows and makes channels the last axis is dropped: they are the last.
    Refuses larger kernels that differ from the stride, padding, groups, and images that are no whole number of
    patches.
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
        image, weight = conv.inputs[0], values_of(conv.inputs[1])
        channels, depth, height, width = weight.shape
        rows, columns = self._grid(conv, site)
        if height * width == 1:
            patches = _pixels(work, conv, (rows, columns, depth))
        else:
            shape = work.constant(f"{site}/patches/split", integers(0, depth, rows, height, columns, width))
            patches = work.add("Reshape", f"{site}/patches/Reshape", [image, shape])
            patches = work.add("Transpose", f"{site}/patches/Transpose", [patches], perm=[0, 2, 4, 1, 3, 5])
            patches = _flatten(work, site, patches, rows * columns, depth * height * width)
        matrix = np.ascontiguousarray(kernel_order(weight.reshape(channels, -1), height * width).T)
        out = work.add("MatMul", f"{site}/MatMul", [patches, gs.Constant(f"{site}/float_weight", matrix)])
        product.node = out.inputs[0]
        if len(conv.inputs) > 2:
            out = work.add("Add", f"{site}/Add", [out, conv.inputs[2]])
        _hand_over(work, conv, out, (rows, columns, channels))

    def _grid(self, conv: gs.Node, site: str) -> tuple[int, int]:
        kernel = list(values_of(conv.inputs[1]).shape[2:])
        whole = (
            (kernel == [1, 1] or list(conv.attrs.get("strides", [1, 1])) == kernel)
            and not any(conv.attrs.get("pads", [0]))
            and conv.attrs.get("group", 1) == 1
            and set(conv.attrs.get("dilations", [1])) == {1}
        )
        if not whole:
            raise self.refuse(
                site,
                conv.name,
                f"expected a convolution of stride {kernel} without padding, "
                f"dilation or groups, got {dict(conv.attrs)}",
            )
        size = shape_of(conv.inputs[0])[2:]
        lengths = whole_lengths(size)
        if lengths is None or lengths[0] % kernel[0] or lengths[1] % kernel[1]:
            raise self.refuse(site, conv.name, f"image {size} is no whole number of patches {kernel}")
        down, across = _strides(conv)
        return -(-lengths[0] // down), -(-lengths[1] // across)


def _strides(conv: gs.Node) -> tuple[int, int]:
    down, across = conv.attrs.get("strides", [1, 1])
    return int(down), int(across)


def _pixels(work: Work, conv: gs.Node, grid: tuple[int, int, int]) -> gs.Variable:
    """[batch, rows * columns, depth]: the pixels that a kernel of one pixel reads."""
    site, image, (rows, columns, depth) = conv.name.removesuffix("/Conv"), conv.inputs[0], grid
    if _strides(conv) != (1, 1):
        size, steps = shape_of(image)[2:], integers(*_strides(conv))
        limits = [integers(0, 0), integers(*map(int, size)), integers(2, 3), steps]
        names = ("starts", "ends", "axes", "steps")
        parts = [work.constant(f"{site}/patches/{name}", value) for name, value in zip(names, limits, strict=True)]
        image = work.add("Slice", f"{site}/patches/Slice", [image, *parts])
    flat = work.constant(f"{site}/patches/flat", integers(0, depth, rows * columns))
    pixels = work.add("Reshape", f"{site}/patches/Reshape", [image, flat])
    return work.add("Transpose", f"{site}/patches/Transpose", [pixels], perm=[0, 2, 1])


def _flatten(work: Work, site: str, patches: gs.Variable, count: int, inputs: int) -> gs.Variable:
    """[batch, count, inputs], in the order of `pair_far_inputs`."""
    if inputs % 2 == 0:
        halves = work.constant(f"{site}/patches/halves", integers(0, count, 2, inputs // 2))
        patches = work.add("Reshape", f"{site}/patches/Reshape_1", [patches, halves])
        patches = work.add("Transpose", f"{site}/patches/Transpose_1", [patches], perm=[0, 1, 3, 2])
    flat = work.constant(f"{site}/patches/flat", integers(0, count, inputs))
    return work.add("Reshape", f"{site}/patches/Reshape_2", [patches, flat])


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
