"""Looks inside a model: tensors of a run, the float weight of a site, the output of every site."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import onnx

from ptq4vit_onnx.errors import UserError
from ptq4vit_onnx.graph.integer_products import Array, GraphIndex, parse_name, product_nodes
from ptq4vit_onnx.graph.model_proto import Model, load
from ptq4vit_onnx.plan.channel_fold import Channels
from ptq4vit_onnx.plan.quantizers.patch_order import flat_kernels, is_tiling
from ptq4vit_onnx.plan.scale_plan import ScalePlan
from ptq4vit_onnx.proof.plan_checks import are_head_factors, column_factors

_COMPUTING_OPS = frozenset({"Add", "Sub", "Mul", "MatMul", "Gemm", "Conv", "Sum"})


def _require_channels(site: str, channels: Channels, count: int) -> None:
    if len(channels.scale) != count:
        raise UserError(
            f"plan, site {site}: channels has {len(channels.scale)} scales, the float model {count} channels; "
            "give the plan.json of the same export"
        )


class FloatSites:
    """The weights and biases of a float model, by site; with a plan's channels folded in, if there is one."""

    def __init__(self, model: Model, plan: ScalePlan | None) -> None:
        self._channels = {} if plan is None else {name: site.channels for name, site in plan.sites.items()}
        self._index = GraphIndex(load(model))
        self._nodes = {name.site: node for node in self._index.nodes if (name := parse_name(node.name)) is not None}

    def weight(self, site: str) -> Array:
        """[inputs, outputs], whichever node computes the site; of a convolution as `flat_kernels` has them."""
        channels, weight = self._channels.get(site), self._weight(site)
        if channels is None:
            return weight
        _require_channels(site, channels, len(weight))
        return channels.of_weight(weight)

    def _weight(self, site: str) -> Array:
        node = self._node(site)
        value = self._index.constant(node.input[1])
        if value is None:
            raise UserError(f"the weight of {node.name} is not stored as a constant in the float model")
        if node.op_type == "Conv":
            return np.ascontiguousarray(flat_kernels(value, _is_tiling(node, value.shape[2:])).T)
        transposed = any(attribute.name == "transB" and attribute.i for attribute in node.attribute)
        return np.ascontiguousarray(value.T) if transposed else value

    def bias(self, site: str) -> Array:
        """[outputs], or a single zero for a site without a bias."""
        channels = self._channels.get(site)
        return self._bias(site) if channels is None else channels.of_bias(self._weight(site), self._bias(site))

    def _bias(self, site: str) -> Array:
        node = self._node(site)
        if node.op_type in {"Gemm", "Conv"}:
            constant = self._index.constant(node.input[2]) if len(node.input) > 2 else None
            return np.zeros(1, np.float32) if constant is None else constant
        add = next((other for other in self._index.nodes if other.name == f"{site}/Add"), None)
        constants = [self._index.constant(name) for name in add.input] if add is not None else []
        return next((value for value in constants if value is not None), np.zeros(1, np.float32))

    def _node(self, site: str) -> Any:
        if site not in self._nodes:
            raise UserError(f"the float model has no product for {site!r}; give this model's own float file")
        return self._nodes[site]


def _is_tiling(conv: Any, kernel: tuple[int, ...]) -> bool:
    held = {attribute.name: list(attribute.ints) for attribute in conv.attribute}
    return is_tiling(kernel, held.get("strides", [1, 1]), held.get("pads", [0]), held.get("dilations", [1]))


def output_tensors(model: Model, sites: Iterable[str]) -> dict[str, str]:
    """The tensor that holds each site's output, bias included: the last one its computing nodes write."""
    last: dict[str, str] = {}
    for node in load(model, weights=False).graph.node:
        if node.op_type in _COMPUTING_OPS and "/" in node.name:
            last[node.name.partition("/")[0]] = node.output[0]
    return {site: last[site] for site in sites if site in last}


def column_factors_of(model: onnx.ModelProto, plan: ScalePlan) -> dict[str, Array]:
    """For each fused qkv that computes in units of its heads' scales: what its output columns are multiplied
    by.

    Any other difference between the graph's scales and the plan's is a mistake, and must show in the outputs.
    """
    index = GraphIndex(model)
    factors = {}
    for name, node in product_nodes(index):
        site = plan.sites.get(name.site)
        maker = index.producer.get(node.input[1])
        if site is None or name.branch or site.kind == "matmul" or maker is None:
            continue
        scale = index.constant(maker.input[1]) if maker.op_type == "DequantizeLinear" else None
        if scale is None or scale.size == 1:
            continue
        factor = column_factors(scale, site.rhs, scale.size)
        if are_head_factors(name.site, plan, factor):
            factors[name.site] = factor
    return factors
