"""Compute only the class token's row behind the last attention."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import prod
from typing import TypeAlias

import numpy as np
import onnx_graphsurgeon as gs

from ptq4vit_onnx.passes.pass_interface import Pass
from ptq4vit_onnx.passes.tensors import read_instead, shape_of, values_of
from ptq4vit_onnx.passes.work import Violation, Work, integers, invariant

Rows: TypeAlias = list[tuple[gs.Tensor, int]]  # tensors, each with the axis that its rows lie along
Cuts: TypeAlias = list[tuple[gs.Node, int]]  # nodes, each with the axis of its output that is cut to one row


@invariant("nodes that compute rows for x[:, 0] alone compute one row", until="EmbedPatches")
def unread_rows_are_gone(work: Work) -> Iterator[Violation]:
    for end in filter(_takes_first_row, work.graph.nodes):
        for node, axis in _unread(work, end)[1]:
            length = shape_of(node.outputs[0])[axis]
            if length != 1:
                yield Violation("", node.name, f"its output has {length} rows along axis {axis}")


class DropUnreadRows(Pass):
    """Where the head reads the first token alone, nodes that compute other tokens' rows for it compute one row.

        q -> MatMul -> Softmax -> MatMul -> MatMul -> Add -> ... -> LayerNormalization -> Gather(first token)   becomes
        q -> Slice -> MatMul -> Softmax -> MatMul -> MatMul -> Add -> ... -> LayerNormalization -> Gather
                                                  x -> Slice ---^

    A row of a product, of a softmax or of a LayerNorm depends on no other row of its left side, so the logits stay
    the same to the last bit. Keys, values and all earlier blocks are read by every row and stay whole. Nothing is cut
    where the head reads a mean of the tokens (Swin), or something else reads the rows too.
    """

    requires = ("FindProducts", "DropNoOps")
    ensures = (unread_rows_are_gone,)

    def apply(self, work: Work) -> int:
        ends = [node for node in work.graph.nodes if _takes_first_row(node)]
        return sum(_cut_above(work, node) for node in ends)


def _takes_first_row(node: gs.Node) -> bool:
    """Is it x[:, 0] of x [batch, tokens, width]?"""
    if node.op != "Gather" or node.attrs.get("axis", 0) != 1 or len(node.inputs[0].shape or ()) != 3:
        return False
    return isinstance(node.inputs[1], gs.Constant) and node.inputs[1].values.tolist() in (0, [0])


def _cut_above(work: Work, end: gs.Node) -> int:
    """Cut what only `end` reads; the number of nodes that compute one row."""
    wanted, cut = _unread(work, end)
    for node, axis in cut:
        _set_length(work, node, axis)
    inside = {id(node) for node, _ in cut}
    sources = [(tensor, axis) for tensor, axis in wanted if not (tensor.inputs and id(tensor.inputs[0]) in inside)]
    for number, (tensor, axis) in enumerate(sources if cut else ()):
        readers = [item for item in tensor.outputs if id(item) in inside]
        row = _first_row(work, tensor, axis, f"{end.name}/first_row_{number}")
        read_instead(readers, tensor, row)
    return len(cut)


def _unread(work: Work, end: gs.Node) -> tuple[Rows, Cuts]:
    """(tensors of which `end` needs the first row, nodes that compute such a tensor for nobody else).

    Nodes are visited from the last to the first, so all readers of a tensor are known before its maker is asked.
    """
    wanted: dict[int, tuple[gs.Tensor, int]] = {id(end.inputs[0]): (end.inputs[0], 1)}
    readers = {id(end)}
    cut: Cuts = []
    shown = {id(item) for item in work.graph.outputs}
    for node in reversed(work.graph.nodes):
        if len(node.outputs) != 1 or id(node.outputs[0]) not in wanted:
            continue
        tensor, axis = wanted[id(node.outputs[0])]
        if id(tensor) in shown or any(id(item) not in readers for item in tensor.outputs):
            continue
        above = _sources(node, axis)
        if above is None or any(wanted.get(id(item), (item, at))[1] != at for item, at in above):
            continue
        wanted.update({id(item): (item, at) for item, at in above})
        readers.add(id(node))
        cut.append((node, axis))
    return list(wanted.values()), cut


def _sources(node: gs.Node, axis: int) -> Rows | None:
    """What a row of the node's output (along `axis`) is made of: inputs of the same length, each with its axis.

    None where the node mixes rows, or is not known.
    """
    rule = _RULES.get(node.op)
    shapes_known = all(item.shape is not None for item in (*node.inputs, *node.outputs))
    return None if rule is None or not shapes_known else rule(node, axis)


def _element_wise(node: gs.Node, axis: int) -> Rows | None:
    """Inputs are as long as the output, or of length 1 along the axis and repeated."""
    rank = len(shape_of(node.outputs[0]))
    found: Rows = []
    for item in node.inputs:
        shape = shape_of(item)
        if len(shape) < rank - axis or shape[axis - rank] == 1:
            continue
        if isinstance(item, gs.Constant) or len(shape) != rank:
            return None
        found.append((item, axis))
    return found


def _along_others(node: gs.Node, axis: int) -> Rows | None:
    """LayerNormalization and Softmax over axes behind this one."""
    first = node.attrs.get("axis", -1) % len(shape_of(node.outputs[0]))
    return [(node.inputs[0], axis)] if axis < first else None


def _product(node: gs.Node, axis: int) -> Rows | None:
    """A row of lhs @ rhs is a row of lhs times all of rhs; if rhs is one matrix, along any axis but the last."""
    rank = len(shape_of(node.outputs[0]))
    of_lhs = axis == rank - 2 or (axis < rank - 2 and len(shape_of(node.inputs[1])) == 2)
    return [(node.inputs[0], axis)] if of_lhs and len(shape_of(node.inputs[0])) == rank else None


def _transposed(node: gs.Node, axis: int) -> Rows | None:
    perm = node.attrs.get("perm")
    return None if perm is None else [(node.inputs[0], perm[axis])]


def _reshaped(node: gs.Node, axis: int) -> Rows | None:
    """The axes before this one stay, and so does its length: only what lies behind it is laid out anew."""
    before, after = shape_of(node.inputs[0])[axis:], shape_of(node.outputs[0])[axis:]
    if not isinstance(node.inputs[1], gs.Constant) or not before or not after or not isinstance(before[0], int):
        return None
    return [(node.inputs[0], axis)] if before[0] == after[0] and _volume(before) == _volume(after) else None


def _volume(lengths: Sequence[int | str]) -> tuple[int, list[str]]:
    """How many elements: the product of the lengths that are numbers; the others, as the number of images, by name."""
    return prod(item for item in lengths if isinstance(item, int)), [item for item in lengths if isinstance(item, str)]


_RULES: dict[str, Callable[[gs.Node, int], Rows | None]] = {
    **dict.fromkeys(("Add", "Sub", "Mul", "Div", "Gelu", "Erf", "Relu", "Sigmoid", "Tanh"), _element_wise),
    **dict.fromkeys(("LayerNormalization", "Softmax"), _along_others),
    "MatMul": _product,
    "Transpose": _transposed,
    "Reshape": _reshaped,
}


def _set_length(work: Work, node: gs.Node, axis: int) -> None:
    """Note that the output has one row; a Reshape must be told."""
    output = node.outputs[0]
    assert isinstance(output, gs.Variable)
    output.shape = _with_one_row(output, axis)
    if node.op == "Reshape" and values_of(node.inputs[1])[axis] > 0:
        shape = np.where(np.arange(len(output.shape)) == axis, 1, values_of(node.inputs[1]))
        node.inputs[1] = work.constant(f"{node.name}/one_row", integers(*shape.tolist()))


def _first_row(work: Work, tensor: gs.Tensor, axis: int, name: str) -> gs.Tensor:
    bounds = (work.constant(f"rows/{key}", integers(key)) for key in (0, 1, axis))
    row = work.add("Slice", f"{name}/Slice", [tensor, *bounds])
    row.shape = _with_one_row(tensor, axis)
    row.dtype = tensor.dtype
    return row


def _with_one_row(tensor: gs.Tensor, axis: int) -> list[int | str]:
    return [1 if at == axis else length for at, length in enumerate(shape_of(tensor))]
