"""Read from a file its three layout choices, which change float rounding only."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx

from ptq4vit_onnx.graph.integer_products import GraphIndex, product_nodes
from ptq4vit_onnx.plan.file_layout import FileLayout
from ptq4vit_onnx.plan.scale_plan import ScalePlan
from ptq4vit_onnx.plan.sites import Attention
from ptq4vit_onnx.proof.float_sites import column_factors_of
from ptq4vit_onnx.proof.plan_checks import attention_scale, head_unit


def layout_of(model: onnx.ModelProto, plan: ScalePlan) -> FileLayout:
    """How `model`, made from `plan`, arranges its products."""
    folded = {}
    for site, factors in column_factors_of(model, plan).items():
        scores = plan.sites[Attention.around(site).qk].lhs
        unit = head_unit(site, plan, factors)
        assert unit is not None  # column_factors_of has seen to it
        folded[site] = float(np.float32(attention_scale(factors[:1] / unit * scores.branches[0].steps[0])))
    split = {name.site for name, _ in product_nodes(GraphIndex(model)) if name.branch == "coarse"}
    twins = {site for site, item in plan.sites.items() if len(item.lhs.branches) > 1}
    return FileLayout(folded, frozenset(twins - split), _requantised(model, plan, folded))


def _requantised(model: onnx.ModelProto, plan: ScalePlan, folded: Mapping[str, float]) -> dict[str, float]:
    """The products that a QuantizeLinear alone reads, each with its scale: ONNX Runtime makes one kernel of the two."""
    index = GraphIndex(model)
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in model.graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    shown, found = {item.name for item in model.graph.output}, {}
    for name, node in product_nodes(index):
        behind = readers.get(node.output[0], [])
        if name.site in plan.sites and name.site not in folded and len(behind) == 1 and node.output[0] not in shown:
            scale = index.constant(behind[0].input[1]) if behind[0].op_type == "QuantizeLinear" else None
            if scale is not None and scale.size == 1:
                found[name.site] = float(scale.item())
    return found
