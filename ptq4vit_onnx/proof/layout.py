"""Read from a file its two layout choices, which change float rounding only."""

from __future__ import annotations

import numpy as np
import onnx

from ptq4vit_onnx.graph.integer_products import GraphIndex, product_nodes
from ptq4vit_onnx.plan.file_layout import FileLayout
from ptq4vit_onnx.plan.scale_plan import ScalePlan
from ptq4vit_onnx.plan.sites import Attention
from ptq4vit_onnx.proof.float_sites import column_factors_of
from ptq4vit_onnx.proof.plan_checks import attention_scale


def layout_of(model: onnx.ModelProto, plan: ScalePlan) -> FileLayout:
    """How `model`, made from `plan`, arranges its products."""
    folded = {}
    for site, factors in column_factors_of(model, plan).items():
        scores = plan.sites[Attention.around(site).qk].lhs
        folded[site] = float(np.float32(attention_scale(factors[:1] * scores.branches[0].steps[0])))
    split = {name.site for name, _ in product_nodes(GraphIndex(model)) if name.branch == "coarse"}
    twins = {site for site, item in plan.sites.items() if len(item.lhs.branches) > 1}
    return FileLayout(folded, frozenset(twins - split))
