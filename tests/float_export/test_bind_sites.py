"""Binding: products get their sites' names, constants and sums that are no biases get none."""

from __future__ import annotations

from typing import Any

import pytest
from onnx import TensorProto, helper

from ptq4vit_onnx.errors import UserError
from ptq4vit_onnx.float_export.bind_sites import bind_sites
from ptq4vit_onnx.plan.sites import FloatProduct, Site


def node(scope: str, operation: str, inputs: list[str], output: str) -> Any:
    """A node as the exporter writes it: the scopes' last but one is the innermost module."""
    made = helper.make_node(operation, inputs, [output], name=f"node_{output}")
    made.metadata_props.add(key="pkg.torch.onnx.name_scopes", value=str(["", scope, output]))
    return made


def model_of(nodes: list[Any]) -> Any:
    value = helper.make_tensor_value_info
    shapes = {"weight": [1, 1], "bias": [1], "table": [1, 1]}
    constants = [helper.make_tensor(name, TensorProto.FLOAT, shape, [1.0]) for name, shape in shapes.items()]
    graph = helper.make_graph(
        nodes, "g", [value("image", TensorProto.FLOAT, [1, 1])], [value("logits", TensorProto.FLOAT, None)], constants
    )
    return helper.make_model(graph)


def names_of(model: Any, *sites: str) -> list[str]:
    bind_sites(model, [Site(site, "linear", site) for site in sites])
    return [item.name for item in model.graph.node]


def test_a_bias_belongs_to_its_linear() -> None:
    nodes = [node("fc", "MatMul", ["image", "weight"], "y"), node("fc", "Add", ["y", "bias"], "logits")]
    assert names_of(model_of(nodes), "fc") == ["fc/MatMul", "fc/Add"]


def test_another_head_right_behind_a_linear_is_not_its_bias() -> None:
    nodes = [
        node("head", "Gemm", ["image", "weight"], "one"),
        node("head_dist", "Gemm", ["image", "weight"], "two"),
        node("", "Add", ["one", "two"], "logits"),
    ]
    assert names_of(model_of(nodes), "head", "head_dist") == ["head/Gemm", "head_dist/Gemm", "model/Add"]


def test_a_product_of_constants_is_no_site_though_the_batch_decides_its_shape() -> None:
    nodes = [
        node("pool", "Shape", ["image"], "size"),
        node("pool", "Expand", ["table", "size"], "latent"),
        node("pool.q", "MatMul", ["latent", "weight"], "query"),
        node("pool.fc", "MatMul", ["image", "weight"], "y"),
        node("pool", "Add", ["y", "query"], "logits"),
    ]
    names = ["pool/Shape", "pool/Expand", "pool.q/constant_MatMul", "pool.fc/MatMul", "pool/Add"]
    assert names_of(model_of(nodes), "pool.fc") == names


def test_a_product_that_torch_did_not_compute_is_refused_by_its_scope() -> None:
    nodes = [node("fc", "MatMul", ["image", "weight"], "y"), node("extra", "MatMul", ["y", "weight"], "logits")]
    with pytest.raises(UserError, match=r"cannot bind sites in extra: torch computed 0 .*\(none\).*has 1"):
        names_of(model_of(nodes), "fc")


def test_a_convolution_in_its_batch_norms_scope_is_known_by_its_weight() -> None:
    """Where the exporter has folded a norm into the convolution before it."""
    graph = [
        node("stem.norm", "Conv", ["image", "stem.conv.weight"], "y"),
        node("fc", "MatMul", ["y", "weight"], "logits"),
    ]
    model = model_of(graph)
    bind_sites(model, [FloatProduct("stem.conv", "stem.conv", "slow"), Site("fc", "linear", "fc")])
    assert [item.name for item in model.graph.node] == ["stem.conv/float_Conv", "fc/MatMul"]
