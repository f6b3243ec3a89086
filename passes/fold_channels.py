"""Fold the shifts and scales of channels into the LayerNorm and the linear around them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_graphsurgeon as gs

from ptq4vit_onnx.graph.movement import KEEPING_CHANNELS
from ptq4vit_onnx.passes.pass_interface import Pass
from ptq4vit_onnx.passes.tensors import Array, maker_of, values_of
from ptq4vit_onnx.passes.unify_products import bias_add
from ptq4vit_onnx.passes.work import Product, Violation, Work, invariant
from ptq4vit_onnx.plan.channel_fold import Channels


@invariant("every LayerNorm that takes up channels computes (x - shift) / scale of what it did")
def norms_are_folded(work: Work) -> Iterator[Violation]:
    by_name = {node.name: node for node in work.graph.nodes}
    for product in work.products:
        channels = product.plan.channels
        if channels is None or product.is_narrow:
            continue
        if channels.norm not in work.unfolded_norms:
            yield product.violation(f"nothing was folded into {channels.norm}")
            continue
        norm = by_name[f"{channels.norm}/LayerNormalization"]
        weight, bias = work.unfolded_norms[channels.norm]
        scale, shift = np.asarray(channels.scale), np.asarray(channels.shift)
        if not _restores(values_of(norm.inputs[1]), scale, np.zeros_like(shift), weight):
            yield Violation(product.site, norm.name, "its weight times the scale is not the float model's weight")
        if not _restores(values_of(norm.inputs[2]), scale, shift, bias):
            yield Violation(product.site, norm.name, "its bias times the scale plus the shift is not the float model's")


def _restores(folded: Array, scale: Array, shift: Array, before: Array) -> bool:
    """Whether folded * scale + shift is `before`: rounding to float32, twice, may move it by 2^-22 of its terms."""
    error = np.abs(folded.astype(np.float64) * scale + shift - before)
    return bool((error <= 2.0**-22 * (np.abs(before) + np.abs(shift)) + 1e-30).all())


class FoldChannels(Pass):
    """A linear reads (x - shift) / scale, channel by channel, in place of x: its LayerNorm and its weight are changed.

        LayerNorm(g, b) -> MatMul(W) -> Add(c)
            becomes     LayerNorm(g / scale, (b - shift) / scale) -> MatMul(scale W) -> Add(c + shift W)

    No node is added, and the two compute together what they did (RepQ-ViT calls it reparameterisation). Refuses a site
    that the planned LayerNorm does not reach, a LayerNorm that another site has used, another number of channels, and a
    shift where there is no bias to take it up.
    """

    # DropNoOps: no Pad stands between a LayerNorm and its linear
    requires = ("DropNoOps", "UnifyProducts")
    ensures = (norms_are_folded,)

    def apply(self, work: Work) -> int:
        products = [item for item in work.products if item.plan.channels is not None]
        for product in products:
            self._fold(work, product)
        return len(products)

    def _fold(self, work: Work, product: Product) -> None:
        channels, node = product.plan.channels, product.node
        assert channels is not None
        norm = self._norm_in_front(product, channels)
        weight, add = values_of(node.inputs[1]), bias_add(node)
        if len(channels.scale) != len(weight):
            raise self.refuse(
                product.site, node.name, f"channels has {len(channels.scale)} scales, the product {len(weight)} inputs"
            )
        if any(channels.shift) and add is None:
            raise self.refuse(product.site, node.name, "channels has a shift, but the product no bias to take it up")
        if channels.norm in work.unfolded_norms:
            raise self.refuse(product.site, norm.name, "the channels of another site are folded into this LayerNorm")
        unfolded = values_of(norm.inputs[1]).astype(np.float32), values_of(norm.inputs[2]).astype(np.float32)
        work.unfolded_norms[channels.norm] = unfolded
        for place, (what, value) in enumerate(zip(("weight", "bias"), channels.of_norm(*unfolded), strict=True), 1):
            norm.inputs[place] = gs.Constant(f"{channels.norm}/folded_{what}", value)
        node.inputs[1] = gs.Constant(f"{product.site}/folded_weight", channels.of_weight(weight))
        if add is not None:
            index = next(place for place, item in enumerate(add.inputs) if isinstance(item, gs.Constant))
            bias = channels.of_bias(weight, values_of(add.inputs[index]))
            add.inputs[index] = gs.Constant(f"{product.site}/folded_bias", bias)

    def _norm_in_front(self, product: Product, channels: Channels) -> gs.Node:
        """The LayerNorm whose output is the product's left side, perhaps through operators that only move data."""
        node = _before(product.node)
        while node is not None and node.op in KEEPING_CHANNELS:
            node = _before(node)
        expected = f"{channels.norm}/LayerNormalization"
        if node is None or node.name != expected:
            found = "no LayerNorm" if node is None else node.name
            raise self.refuse(product.site, product.node.name, f"expected {expected} in front of it, found {found}")
        if len(node.inputs) < 3 or not all(isinstance(item, gs.Constant) for item in node.inputs[1:3]):
            raise self.refuse(product.site, node.name, "the LayerNorm must have a constant weight and bias")
        return node


def _before(node: gs.Node) -> gs.Node | None:
    """The node that makes the first input, if one does."""
    return maker_of(node.inputs[0]) if node.inputs else None
