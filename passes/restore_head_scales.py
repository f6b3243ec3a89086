"""Multiply the heads' scales back in, behind the products."""

from __future__ import annotations

import numpy as np

from ptq4vit_onnx.passes.a_pass import Pass
from ptq4vit_onnx.passes.work import Work


class RestoreHeadScales(Pass):
    """A product that was computed in units of its heads' scales is multiplied by them, once.

        MatMul -> out [.., heads, rows, columns]     becomes     MatMul -> Mul [heads, 1, 1] -> out

    Scales of both sides, and of the folded attention scale, are one Mul.
    """

    requires = ("QuantizeActivations",)

    def apply(self, work: Work) -> int:
        scaled = [item for item in work.products if item.head_scales is not None]
        for product in scaled:
            assert product.head_scales is not None
            factors = product.head_scales.astype(np.float32).reshape(-1, 1, 1)
            work.append_to(
                product.node,
                "Mul",
                f"{product.name}/Mul",
                work.constant(f"{product.name}/head_scales", factors),
            )
        return len(scaled)
