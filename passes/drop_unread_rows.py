"""Behind the last attention only the class token is computed."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
import onnx_graphsurgeon as gs

from ptq4vit_onnx.passes.a_pass import Pass
from ptq4vit_onnx.passes.work import Work, integers

Cuts = list[tuple[Any, int]]


class DropUnreadRows(Pass):
    """Where the head reads nothing but the first token, what computes the other tokens' rows for it is cut to that row.

        q -> MatMul -> Softmax -> MatMul -> MatMul -> Add -> ... -> LayerNormalization -> Gather(first token)   becomes
        q -> Slice -> MatMul -> Softmax -> MatMul -> MatMul -> Add -> ... -> LayerNormalization -> Gather
                                                  x -> Slice ---^

    A row of a product, of a softmax or of a LayerNorm depends on no other row of its left side, so the logits stay
    the same to the last bit. Keys, values and all earlier blocks are read by every row and stay whole. Nothing is cut
    where the head reads a mean of the tokens (Swin), or something else reads the rows too.
    """

    requires = ("FindProducts", "DropNoOps")

    def apply(self, work: Work) -> int:
        ends = [node for node in work.graph.nodes if _takes_first_row(node)]
        return sum(_cut_above(work, node) for node in ends)


def _takes_first_row(node: Any) -> bool:
    """Is it x[:, 0] of x [batch, tokens, width]?"""
    if node.op != "Gather" or node.attrs.get("axis", 0) != 1 or len(node.inputs[0].shape or ()) != 3:
        return False
    return isinstance(node.inputs[1], gs.Constant) and node.inputs[1].values.tolist() in (0, [0])


def _cut_above(work: Work, end: Any) -> int:
    """Cut what only `end` reads; the number of nodes that compute one row."""
    wanted, cut = _unread(work, end)
    for node, axis in cut:
        _set_length(work, node, axis)
    inside = {id(node) for node, _ in cut}
    sources = [(tensor, axis) for tensor, axis in wanted if not (tensor.inputs and id(tensor.inputs[0]) in inside)]
    for number, (tensor, axis) in enumerate(sources if cut else ()):
        row = _first_row(work, tensor, axis, f"{end.name}/first_row_{number}")
        for reader in [item for item in tensor.outputs if id(item) in inside]:
            reader.inputs = [row if item is tensor else item for item in reader.inputs]
    return len(cut)


def _unread(work: Work, end: Any) -> tuple[Cuts, Cuts]:
    """(tensors of which `end` needs the first row, nodes that compute such a tensor for nobody else), with its axis.

    Nodes are visited from the last to the first, so all readers of a tensor are known before its maker is asked.
    """
    wanted: dict[int, tuple[Any, int]] = {id(end.inputs[0]): (end.inputs[0], 1)}
    readers = {id(end)}
    cut: Cuts = []
    shown = {id(item) for item in work.graph.outputs}
    for node in reversed(work.graph.nodes):
        tensor, axis = wanted.get(id(node.outputs[0]), (None, 0)) if len(node.outputs) == 1 else (None, 0)
        if tensor is None or id(tensor) in shown or any(id(item) not in readers for item in tensor.outputs):
            continue
        above = _sources(node, axis)
        if above is None or any(wanted.get(id(item), (item, at))[1] != at for item, at in above):
            continue
        wanted.update({id(item): (item, at) for item, at in above})
        readers.add(id(node))
        cut.append((node, axis))
    return list(wanted.values()), cut


def _sources(node: Any, axis: int) -> Cuts | None:
    """What a row of the node's output (along `axis`) is made of: inputs of the same length, each with its axis.

    None where the node mixes rows, or is not known.
    """
    rule = _RULES.get(node.op)
    lengths_known = all(item.shape is not None for item in (*node.inputs, *node.outputs))
    return None if rule is None or not lengths_known else rule(node, axis)


def _element_wise(node: Any, axis: int) -> Cuts | None:
    """Inputs are as long as the output, or of length 1 along the axis and repeated."""
    from_right = axis - len(node.outputs[0].shape)
    found: Cuts = []
    for item in node.inputs:
        length = item.shape[from_right] if len(item.shape) >= -from_right else 1
        if length == 1:
            continue
        if isinstance(item, gs.Constant) or len(item.shape) != len(node.outputs[0].shape):
            return None
        found.append((item, axis))
    return found


def _along_others(node: Any, axis: int) -> Cuts | None:
    """LayerNormalization and Softmax over axes behind this one."""
    first = node.attrs.get("axis", -1) % len(node.outputs[0].shape)
    return [(node.inputs[0], axis)] if axis < first else None


def _product(node: Any, axis: int) -> Cuts | None:
    """A row of lhs @ rhs is a row of lhs times all of rhs."""
    rank = len(node.outputs[0].shape)
    return [(node.inputs[0], axis)] if axis == rank - 2 and len(node.inputs[0].shape) == rank else None


def _transposed(node: Any, axis: int) -> Cuts | None:
    perm = node.attrs.get("perm")
    return None if perm is None else [(node.inputs[0], perm[axis])]


def _reshaped(node: Any, axis: int) -> Cuts | None:
    """Only what lies behind the axis is laid out anew."""
    before, after = node.inputs[0].shape, node.outputs[0].shape
    inner = (*before[axis:], *after[axis:])
    if not isinstance(node.inputs[1], gs.Constant) or not inner or not all(isinstance(item, int) for item in inner):
        return None
    same = len(before) > axis and before[axis] == after[axis] and prod(before[axis:]) == prod(after[axis:])
    return [(node.inputs[0], axis)] if same else None


_RULES: dict[str, Callable[[Any, int], Cuts | None]] = {
    **dict.fromkeys(("Add", "Sub", "Mul", "Div", "Gelu", "Erf", "Relu", "Sigmoid", "Tanh"), _element_wise),
    **dict.fromkeys(("LayerNormalization", "Softmax"), _along_others),
    "MatMul": _product,
    "Transpose": _transposed,
    "Reshape": _reshaped,
}


def _set_length(work: Work, node: Any, axis: int) -> None:
    """Note that the output has one row; a Reshape must be told."""
    output = node.outputs[0]
    output.shape = [1 if at == axis else length for at, length in enumerate(output.shape)]
    if node.op == "Reshape" and node.inputs[1].values[axis] > 0:
        shape = np.where(np.arange(len(output.shape)) == axis, 1, node.inputs[1].values)
        node.inputs[1] = work.constant(f"{node.name}/one_row", integers(*shape.tolist()))


def _first_row(work: Work, tensor: Any, axis: int, name: str) -> Any:
    bounds = (work.constant(f"rows/{key}", integers(key)) for key in (0, 1, axis))
    row = work.add("Slice", f"{name}/Slice", [tensor, *bounds])
    row.shape = [1 if at == axis else length for at, length in enumerate(tensor.shape)]
    row.dtype = tensor.dtype
    return row
