"""Channels that a plan moves and scales are folded into the layers around them."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_graphsurgeon as gs

from ptq4vit_onnx.passes.a_pass import Pass
from ptq4vit_onnx.passes.unify_products import bias_add
from ptq4vit_onnx.passes.work import Product, Work
from ptq4vit_onnx.plan.channel_fold import Channels

# What moves values about and leaves each in its channel.
_MOVING = ("Reshape", "Transpose", "Slice", "Concat", "Gather", "Squeeze", "Unsqueeze", "Flatten", "Identity")


class FoldChannels(Pass):
    """A linear sees (x - shift) / scale, channel by channel; its LayerNorm and itself take that up.

        LayerNorm(g, b) -> MatMul(W) -> Add(c)
            becomes     LayerNorm(g / scale, (b - shift) / scale) -> MatMul(scale W) -> Add(c + shift W)

    No node is added, and what the two compute together stays the same. Refuses a site that the planned LayerNorm does
    not reach, another number of channels, and a shift where there is no bias to take it up.
    """

    requires = ("UnifyProducts",)

    def apply(self, work: Work) -> int:
        products = [item for item in work.products if item.plan.channels is not None]
        for product in products:
            self._fold(product)
        return len(products)

    def _fold(self, product: Product) -> None:
        channels, node = product.plan.channels, product.node
        assert channels is not None
        norm = self._norm_in_front(product, channels)
        weight, add = node.inputs[1].values, bias_add(node)
        if len(channels.scale) != len(weight):
            raise self.refuse(
                product.site, node.name, f"channels has {len(channels.scale)} scales, the product {len(weight)} inputs"
            )
        if any(channels.shift) and add is None:
            raise self.refuse(product.site, node.name, "channels has a shift, but the product no bias to take it up")
        values = channels.of_norm(*(item.values.astype(np.float32) for item in norm.inputs[1:3]))
        for place, (what, value) in enumerate(zip(("weight", "bias"), values, strict=True), start=1):
            norm.inputs[place] = gs.Constant(f"{channels.norm}/folded_{what}", value)
        node.inputs[1] = gs.Constant(f"{product.site}/folded_weight", channels.of_weight(weight))
        if add is not None:
            index = next(place for place, item in enumerate(add.inputs) if isinstance(item, gs.Constant))
            bias = channels.of_bias(weight, add.inputs[index].values)
            add.inputs[index] = gs.Constant(f"{product.site}/folded_bias", bias)

    def _norm_in_front(self, product: Product, channels: Channels) -> Any:
        """The LayerNorm whose output, moved about at most, is the product's left side."""
        node = _before(product.node)
        while node is not None and node.op in _MOVING:
            node = _before(node)
        expected = f"{channels.norm}/LayerNormalization"
        if node is None or node.name != expected:
            found = "no LayerNorm" if node is None else node.name
            raise self.refuse(product.site, product.node.name, f"expected {expected} in front of it, found {found}")
        if len(node.inputs) < 3 or not all(isinstance(item, gs.Constant) for item in node.inputs[1:3]):
            raise self.refuse(product.site, node.name, "the LayerNorm must have a constant weight and bias")
        return node


def _before(node: Any) -> Any | None:
    """The node that makes the first input, if one does."""
    return node.inputs[0].inputs[0] if node.inputs and node.inputs[0].inputs else None
