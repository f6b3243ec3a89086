"""Follow a tensor back through operations that only move data, and learn which head each column becomes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs
from onnx.reference import ReferenceEvaluator

MOVES = ("Reshape", "Transpose", "Slice", "Squeeze", "Unsqueeze", "Split", "Gather", "Identity")

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Trace:
    """The way from a linear's output to one side of a product.

    source: the linear's output [.., tokens, columns]. moves: the moving nodes, first to last.
    multiplications: the Mul nodes by one constant among them, and factor: their product. heads: for each
    column of the source the head it becomes, -1 for columns that do not come here.
    """

    source: Any
    moves: tuple[Any, ...]
    multiplications: tuple[Any, ...]
    factor: float
    heads: Array

    @property
    def nodes(self) -> tuple[Any, ...]:
        return self.moves + self.multiplications


def trace_columns(end: Any, head_count: int) -> Trace | None:
    """The trace that ends in `end` [.., heads, rows, columns]; None where `end` is not just moved data."""
    moves: list[Any] = []
    multiplications: list[Any] = []
    factor, tensor = np.float32(1), end
    while tensor.inputs and (moves_data(tensor.inputs[0]) or _number(tensor.inputs[0]) is not None):
        node = tensor.inputs[0]
        number = _number(node)
        if number is None:
            moves.insert(0, node)
        else:
            multiplications.append(node)
            factor = np.float32(factor * number)
        tensor = next(item for item in node.inputs if not isinstance(item, gs.Constant))
    heads = _heads_of_columns(tensor, end, moves, multiplications, head_count)
    return heads if heads is None else Trace(tensor, tuple(moves), tuple(multiplications), float(factor), heads)


def moves_data(node: Any) -> bool:
    """Does the node only move the data of its first input, by constant rules?"""
    return node.op in MOVES and all(isinstance(item, gs.Constant) for item in node.inputs[1:])


def _number(node: Any) -> np.float32 | None:
    """c of a Mul(x, c) by one constant number."""
    if node.op != "Mul":
        return None
    numbers = [item.values for item in node.inputs if isinstance(item, gs.Constant) and item.values.size == 1]
    return np.float32(numbers[0].reshape(())) if len(numbers) == 1 else None


def _heads_of_columns(
    source: Any, end: Any, moves: list[Any], multiplications: list[Any], head_count: int
) -> Array | None:
    """Send the columns' numbers down the moves and see in which head each arrives."""
    if source.shape is None or not all(isinstance(length, int) for length in source.shape[1:]):
        return None
    shape = [length if isinstance(length, int) else 1 for length in source.shape]
    numbers = np.broadcast_to(np.arange(shape[-1], dtype=np.int64), shape)
    arrived = _run(moves, multiplications, source, end, numbers)
    if arrived.ndim < 3 or arrived.shape[-3] != head_count:
        return None
    heads = np.full(shape[-1], -1)
    for head in range(head_count):
        columns = np.unique(arrived[..., head, :, :])
        if (heads[columns] >= 0).any():
            return None
        heads[columns] = head
    return heads


def _run(moves: list[Any], multiplications: list[Any], source: Any, end: Any, numbers: Array) -> Array:
    """The moves alone, applied to `numbers`; a multiplication passes its input on."""
    alias = {node.outputs[0].name: _data(node).name for node in multiplications}

    def name(tensor: Any) -> str:
        return name_of(alias, tensor.name)

    nodes = []
    constants = {}
    for node in moves:
        for item in node.inputs[1:]:
            constants[item.name] = onnx.numpy_helper.from_array(np.asarray(item.values), item.name)
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
    result: Array = ReferenceEvaluator(model).run(None, {source.name: numbers})[0]
    return result


def name_of(alias: dict[str, str], name: str) -> str:
    while name in alias:
        name = alias[name]
    return name


def _data(multiplication: Any) -> Any:
    return next(item for item in multiplication.inputs if not isinstance(item, gs.Constant))
