"""Biases in the form that keeps the integer kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_graphsurgeon as gs

from ptq4vit_onnx.passes.a_pass import Pass
from ptq4vit_onnx.passes.unify_products import bias_add
from ptq4vit_onnx.passes.work import Product, Work


class ShapeBiases(Pass):
    """A linear's bias gets the shape (1, outputs), and the plan's correction is added to it.

    With a bias of shape (outputs) and a static batch, ONNX Runtime turns MatMul and Add into a float Gemm
    before its integer rules run. A product without a bias gets one where the plan corrects it. Refuses
    corrections of another length than the product's outputs.
    """

    requires = ("EmbedPatches", "UnifyProducts")

    def apply(self, work: Work) -> int:
        return sum(self._shape(work, item) for item in work.products if item.has_weight)

    def _shape(self, work: Work, product: Product) -> bool:
        node, site, outputs = product.node, product.site, product.node.inputs[1].values.shape[-1]
        correction = product.plan.bias_correction
        if correction is not None and len(correction) != outputs:
            raise self.refuse(
                site,
                node.name,
                f"bias_correction has {len(correction)} values, the product {outputs} outputs",
            )
        add = bias_add(node)
        bias = np.zeros(outputs, np.float32) if add is None else _constant(add).values
        if correction is not None:
            bias = bias + np.asarray(correction, np.float32)
        elif add is None:
            return False
        shaped = gs.Constant(f"{site}/bias", bias.astype(np.float32).reshape(1, outputs))
        if add is None:
            work.append_to(node, "Add", f"{site}/Add", shaped)
        else:
            add.inputs = [node.outputs[0], shaped]
        return True


def _constant(add: Any) -> Any:
    return next(item for item in add.inputs if isinstance(item, gs.Constant))
