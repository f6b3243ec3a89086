"""Follow a tensor back through operations that only move data, to learn which head each column becomes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import numpy as np
import onnx
import onnx_graphsurgeon as gs
from onnx.reference import ReferenceEvaluator

from ptq4vit_onnx.graph.movement import REARRANGING_OR_PICKING
from ptq4vit_onnx.passes.tensors import Array, computed_input, constant_inputs, maker_of, values_of, whole_lengths


@dataclass(frozen=True)
class Trace:
    """The way from a linear's output to one side of a product.

    source: the linear's output [.., tokens, columns]. moves: the moving nodes, first to last.
    multiplications: the Mul nodes by one constant among them, and factor: their product. heads: for each
    column of the source the head it becomes, -1 for columns that do not come here.
    """

    source: gs.Tensor
    moves: tuple[gs.Node, ...]
    multiplications: tuple[gs.Node, ...]
    factor: float
    heads: Array

    @property
    def nodes(self) -> tuple[gs.Node, ...]:
        return self.moves + self.multiplications


def trace_columns(end: gs.Tensor, head_count: int) -> Trace | None:
    """The trace that ends in `end` [.., heads, rows, columns]; None where `end` is not just moved data."""
    moves: list[gs.Node] = []
    multiplications: list[gs.Node] = []
    factor, tensor = np.float32(1), end
    while (node := maker_of(tensor)) is not None and len(constant_inputs(node)) < len(node.inputs):
        number = _number(node)
        if number is not None:
            multiplications.append(node)
            factor = np.float32(factor * number)
        elif _moves_data(node):
            moves.insert(0, node)
        else:
            break
        tensor = computed_input(node)
    heads = _heads_of_columns(tensor, end, moves, multiplications, head_count)
    return heads if heads is None else Trace(tensor, tuple(moves), tuple(multiplications), float(factor), heads)


def _moves_data(node: gs.Node) -> bool:
    """Does the node only move the data of its first input, by constant rules?"""
    return node.op in REARRANGING_OR_PICKING and all(isinstance(item, gs.Constant) for item in node.inputs[1:])


def _number(node: gs.Node) -> np.float32 | None:
    """c of a Mul(x, c) by one constant number."""
    numbers = [item.values for item in constant_inputs(node) if item.values.size == 1] if node.op == "Mul" else []
    return np.float32(numbers[0].reshape(())) if len(numbers) == 1 else None


def _heads_of_columns(
    source: gs.Tensor, end: gs.Tensor, moves: list[gs.Node], multiplications: list[gs.Node], head_count: int
) -> Array | None:
    """For each column of the source, the head it arrives in: the columns' numbers are sent through the moves."""
    lengths = None if source.shape is None else whole_lengths(source.shape[1:])
    if lengths is None or not source.shape:
        return None
    first = source.shape[0]
    shape = [first if isinstance(first, int) else 1, *lengths]
    numbers = np.broadcast_to(np.arange(shape[-1], dtype=np.int64), shape)
    try:
        arrived = _run(moves, multiplications, source, end, numbers)
    except ValueError:  # images and tokens share the first axis (behind a BatchNorm1d): one row is no whole image
        return None
    if arrived.ndim < 3 or arrived.shape[-3] != head_count:
        return None
    heads = np.full(shape[-1], -1)
    for head in range(head_count):
        columns = np.unique(arrived[..., head, :, :])
        if (heads[columns] >= 0).any():
            return None
        heads[columns] = head
    return heads


def _run(
    moves: list[gs.Node], multiplications: list[gs.Node], source: gs.Tensor, end: gs.Tensor, numbers: Array
) -> Array:
    """The moves alone, applied to `numbers`; a multiplication passes its input on."""
    passed_on = {node.outputs[0].name: computed_input(node).name for node in multiplications}

    def name(tensor: gs.Tensor) -> str:
        found = tensor.name
        while found in passed_on:
            found = passed_on[found]
        return found

    nodes = []
    constants = {}
    for node in moves:
        for item in node.inputs[1:]:
            constants[item.name] = onnx.numpy_helper.from_array(values_of(item), item.name)
        inputs = [name(node.inputs[0]), *(item.name for item in node.inputs[1:])]
        nodes.append(onnx.helper.make_node(node.op, inputs, [item.name for item in node.outputs], **node.attrs))
    value = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        nodes,
        "moves",
        [value(source.name, onnx.TensorProto.INT64, None)],
        [value(name(end), onnx.TensorProto.INT64, None)],
        list(constants.values()),
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 20)])
    return cast(list[Array], ReferenceEvaluator(model).run(None, {source.name: numbers}))[0]
