"""Outlier channels get a product of their own."""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs

from ptq4vit_onnx.passes.a_pass import Pass
from ptq4vit_onnx.passes.work import Product, Work, integers


class SplitOutliers(Pass):
    """Input channels with scales of their own leave the main product for a second, narrow one.

        x -> MatMul     becomes     x -> MatMul (their rows of the weight are zero)  -> Add
                                    x -> Gather(channels) -> MatMul.outliers ---------^

    Refuses channels that the weight does not have.
    """

    requires = ("UnifyProducts",)

    def apply(self, work: Work) -> int:
        products = [item for item in work.products if item.plan.outliers is not None]
        for product in products:
            self._split(work, product)
        return len(products)

    def _split(self, work: Work, product: Product) -> None:
        outliers, site, node = product.plan.outliers, product.site, product.node
        assert outliers is not None
        weight = node.inputs[1].values
        channels = np.asarray(outliers.channels, np.int64)
        if len(set(outliers.channels)) != len(channels) or not (channels >= 0).all() or channels.max() >= len(weight):
            raise self.refuse(
                site, node.name, f"outlier channels {outliers.channels} are not channels 0..{len(weight) - 1}"
            )
        main = weight.copy()
        main[channels] = 0
        picked = work.constant(f"{site}/outliers/channels", integers(*outliers.channels))
        lhs = work.add("Gather", f"{site}/outliers/Gather", [node.inputs[0], picked], axis=-1)
        rhs = gs.Constant(f"{site}/outliers/float_weight", weight[channels])
        extra = work.add("MatMul", f"{site}/MatMul.outliers", [lhs, rhs])
        node.inputs[1] = gs.Constant(f"{site}/main/float_weight", main)
        work.append_to(node, "Add", f"{site}/outliers/Add", extra)
        work.products.append(Product(site, extra.inputs[0], product.plan, outliers.lhs, outliers.rhs, has_weight=True))
