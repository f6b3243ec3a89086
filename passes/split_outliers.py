"""Give outlier channels a product of their own."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_graphsurgeon as gs

from ptq4vit_onnx.passes.pass_interface import Pass
from ptq4vit_onnx.passes.tensors import Array, values_of
from ptq4vit_onnx.passes.work import Product, Violation, Work, integers, invariant
from ptq4vit_onnx.plan.outlier_split import ROWS, only_channels, without_channels


@invariant("outlier channels have zeros in the main product's weight, and one row each in the narrow one's")
def outliers_are_apart(work: Work) -> Iterator[Violation]:
    narrow = {product.site: product for product in work.products if product.is_narrow}
    for product in work.products:
        outliers = product.plan.outliers
        if outliers is None or product.is_narrow:
            continue
        if _weight_of(product)[list(outliers.channels)].any():
            yield product.violation(f"its rows {list(outliers.channels)} are not zero")
        if product.site not in narrow:
            yield product.violation("its outliers have no product")
        elif len(_weight_of(narrow[product.site])) != len(outliers.channels):
            yield narrow[product.site].violation(f"it should have {len(outliers.channels)} rows")


def _weight_of(product: Product) -> Array:
    """Its codes, once they are known; else its float weight [inputs, outputs]."""
    return values_of(product.node.inputs[1]) if product.codes is None else product.codes


class SplitOutliers(Pass):
    """Input channels with scales of their own leave the main product for a second, narrow one.

        x -> MatMul     becomes     x -> MatMul (their rows of the weight are zero)  -> Add
                                    x -> Gather(channels) -> MatMul.outliers ---------^

    Refuses channels that the weight does not have.
    """

    # FoldChannels changes the weights; both it and ShapeBiases find the bias right behind the product
    requires = ("UnifyProducts", "FoldChannels", "ShapeBiases")
    ensures = (outliers_are_apart,)

    def apply(self, work: Work) -> int:
        products = [item for item in work.products if item.plan.outliers is not None]
        for product in products:
            self._split(work, product)
        return len(products)

    def _split(self, work: Work, product: Product) -> None:
        outliers, site, node = product.plan.outliers, product.site, product.node
        assert outliers is not None
        weight = values_of(node.inputs[1])
        channels = np.asarray(outliers.channels, np.int64)
        if len(set(outliers.channels)) != len(channels) or not (channels >= 0).all() or channels.max() >= len(weight):
            raise self.refuse(
                site, node.name, f"outlier channels {outliers.channels} are not channels 0..{len(weight) - 1}"
            )
        picked = work.constant(f"{site}/outliers/channels", integers(*outliers.channels))
        lhs = work.add("Gather", f"{site}/outliers/Gather", [node.inputs[0], picked], axis=-1)
        rhs = gs.Constant(f"{site}/outliers/float_weight", only_channels(weight, outliers.channels, ROWS))
        extra = work.add("MatMul", f"{site}/MatMul.outliers", [lhs, rhs])
        main = without_channels(weight, outliers.channels, ROWS)
        node.inputs[1] = gs.Constant(f"{site}/main/float_weight", main)
        work.append_to(node, "Add", f"{site}/outliers/Add", extra)
        work.products.append(Product(site, extra.inputs[0], product.plan, outliers.lhs, outliers.rhs, has_weight=True))
