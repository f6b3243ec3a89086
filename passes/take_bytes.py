"""Let the graph's input be the bytes that a decoder gives."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_graphsurgeon as gs

from ptq4vit_onnx.passes.pass_interface import Pass
from ptq4vit_onnx.passes.product_invariants import done_sides_carry_codes
from ptq4vit_onnx.passes.tensors import maker_of, read_instead, shape_of
from ptq4vit_onnx.passes.work import Product, Violation, Work, invariant

CHANNELS_FIRST = [0, 3, 1, 2]  # from [batch, height, width, colours]


@invariant("the graph has one input: bytes [batch, height, width, colours]")
def input_is_bytes(work: Work) -> Iterator[Violation]:
    for entry in work.graph.inputs:
        if entry.dtype != np.uint8 or len(work.graph.inputs) > 1:
            yield Violation("", entry.name, f"the input is {entry.dtype}, one of {len(work.graph.inputs)}")


class TakeBytes(Pass):
    """The input is uint8 [batch, height, width, colours], and nothing is float before the first product.

        image (float) -> Add(offset) -> QuantizeLinear -> patches     becomes     image (uint8) -> Transpose -> patches

    What QuantizePixels recovers from the normalised floats are these bytes, so the logits stay the same to the last
    bit. Refuses a plan that does not read the image as bytes, and an image whose floats somebody else reads. A Shape
    of the image reads the Transpose, which has the same.
    """

    requires = ("QuantizePixels", "CarryBytes", "PackWeights")
    ensures = (input_is_bytes, done_sides_carry_codes)

    def apply(self, work: Work) -> int:
        product = next((item for item in work.products if item.lhs.colours), None)
        if product is None:
            site = next(iter(work.plan.sites))
            raise self.refuse(
                site, work.graph.inputs[0].name,
                "an input of bytes needs a plan that reads the image as bytes; calibrate on 8-bit images with "
                "--pixels bytes, or leave --input uint8 out",
            )  # fmt: skip
        self._replace_input(work, product)
        return 1

    def _replace_input(self, work: Work, product: Product) -> None:
        quantize = next(item for item in work.graph.nodes if item.name == f"{product.name}/pixels/QuantizeLinear")
        add = maker_of(quantize.inputs[0])
        first = quantize if add is None or add.name != f"{product.name}/pixels/Add" else add
        image = first.inputs[0]
        others = [node for node in image.outputs if node is not first]
        if len(work.graph.inputs) != 1 or work.graph.inputs[0] is not image or {node.op for node in others} - {"Shape"}:
            raise self.refuse(product.site, image.name, "the image is read as floats, too; leave --input uint8 out")
        batch, colours, height, width = shape_of(image)
        taken = gs.Variable(image.name, np.uint8, [batch, height, width, colours])
        turned = work.add("Transpose", f"{product.name}/pixels/Transpose", [taken], perm=CHANNELS_FIRST)
        codes = quantize.outputs[0]
        read_instead(codes.outputs, codes, turned)
        read_instead(others, image, turned)
        work.graph.inputs = [taken]
        for node in {id(item): item for item in (first, quantize)}.values():
            node.inputs, node.outputs = [], []
            work.graph.nodes.remove(node)
