"""Weights that the exporter left as parts of others are stored by themselves."""

from __future__ import annotations

from typing import Any

from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from ptq4vit_onnx.graph.movement import REARRANGING_OR_PICKING

_PRODUCTS = ("MatMul", "Gemm", "Conv")


def store_weights(model: Any) -> None:
    """Where a product's right side is a moved or cut constant, all such tensors of the graph become constants.

        in_proj.weight -> Split -> Transpose -> MatMul      becomes      transpose_3 -> MatMul

    nn.MultiheadAttention cuts one matrix into those of Q, K and V if they read different tensors. A graph without such
    a product is left as it is.
    """
    graph = model.graph
    moved = _moved_constants(graph)
    made = {name for node in moved for name in node.output}
    if not any(node.op_type in _PRODUCTS and node.input[1] in made for node in graph.node):
        return
    others = [node for node in graph.node if node.output[0] not in made]
    read = {name for node in others for name in node.input} & made
    values = _values(model, moved, sorted(read))
    graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in values.items())
    del graph.node[:]
    graph.node.extend(others)
    _drop_unread(graph)


def _moved_constants(graph: Any) -> list[Any]:
    known = {tensor.name for tensor in graph.initializer}
    known.update(node.output[0] for node in graph.node if node.op_type == "Constant")
    found = []
    for node in graph.node:
        if node.op_type in REARRANGING_OR_PICKING and all(name in known for name in node.input if name):
            known.update(node.output)
            found.append(node)
    return found


def _values(model: Any, nodes: list[Any], names: list[str]) -> dict[str, Any]:
    """What the nodes compute of constants."""
    graph = model.graph
    needed = {name for node in nodes for name in node.input}
    constants = [node for node in graph.node if node.op_type == "Constant"]
    part = helper.make_graph(
        [*constants, *nodes], "weights", [], [helper.make_tensor_value_info(name, 1, None) for name in names],
        [tensor for tensor in graph.initializer if tensor.name in needed],
    )  # fmt: skip
    alone = helper.make_model(part, opset_imports=model.opset_import, ir_version=model.ir_version)
    return dict(zip(names, ReferenceEvaluator(alone).run(names, {}), strict=True))


def _drop_unread(graph: Any) -> None:
    """Constants that only the removed nodes read."""
    read = {name for node in graph.node for name in node.input} | {item.name for item in graph.output}
    for tensor in [tensor for tensor in graph.initializer if tensor.name not in read]:
        graph.initializer.remove(tensor)
