"""Weights as the int8 codes that ship."""

from __future__ import annotations

from typing import Any

import numpy as np

from ptq4vit_onnx.passes.a_pass import Pass
from ptq4vit_onnx.passes.work import Product, Work
from ptq4vit_onnx.plan.weight_codes import ship_weight


class QuantizeWeights(Pass):
    """Replace every planned weight by its codes and a DequantizeLinear.

        MatMul(x, W)     becomes     MatMul(x, DequantizeLinear(codes, scale))

    The codes are pair-safe: u8 x s8 does not saturate on any CPU. One scale stays one scale; groups of output
    columns become one scale per column. Refuses scales that do not divide the columns.
    """

    requires = ("ShapeBiases", "SplitOutliers")

    def apply(self, work: Work) -> int:
        products = [item for item in work.products if item.has_weight]
        for product in products:
            self._quantize(work, product)
        return len(products)

    def _quantize(self, work: Work, product: Product) -> None:
        weight, rhs = product.node.inputs[1].values.astype(np.float32), product.rhs
        outputs = weight.shape[1]
        if outputs % len(rhs.scale):
            raise self.refuse(
                product.site,
                product.node.name,
                f"{len(rhs.scale)} weight scales do not divide {outputs} outputs",
            )
        codes, moved = ship_weight(weight, product.lhs, rhs)
        work.moved_weights[product.site] = work.moved_weights.get(product.site, 0) + moved
        product.codes = codes
        scale = np.asarray(rhs.scale, np.float32)
        scale = scale.reshape(()) if len(scale) == 1 else np.repeat(scale, outputs // len(scale))
        product.node.inputs[1] = self._dequantize(work, product.name, codes, scale)
        product.rhs_done = True

    def _dequantize(self, work: Work, name: str, codes: Any, scale: Any) -> Any:
        inputs = [work.constant(f"{name}/weight", codes), work.constant(f"{name}/weight/scale", scale)]
        axis = {"axis": 1} if scale.ndim else {}
        return work.add("DequantizeLinear", f"{name}/weight/DequantizeLinear", inputs, **axis)
