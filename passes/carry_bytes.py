"""Quantise before data is moved, so that bytes are moved instead of floats."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

import onnx_graphsurgeon as gs

from ptq4vit_onnx.graph.movement import REARRANGING
from ptq4vit_onnx.passes.pass_interface import Pass
from ptq4vit_onnx.passes.product_invariants import done_sides_carry_codes
from ptq4vit_onnx.passes.tensors import maker_of, only_reader, read_instead, shape_of
from ptq4vit_onnx.passes.work import Violation, Work, invariant

MovedTensor: TypeAlias = tuple[gs.Tensor, list[gs.Node]]  # a tensor, and the nodes that read it to move it


@invariant("no QuantizeLinear with one scale reads a tensor that was moved for it alone")
def bytes_are_moved(work: Work) -> Iterator[Violation]:
    shown = {id(tensor) for tensor in work.graph.outputs}
    for node in _may_be_lifted(work):
        if _movement_above(node.inputs[0], [node], shown) is not None:
            yield Violation("", node.name, f"floats are moved before it, by {node.inputs[0].inputs[0].name}")


class CarryBytes(Pass):
    """Move every QuantizeLinear up, over operations that only move data.

        x -> Transpose -> Reshape -> QuantizeLinear    becomes    x -> QuantizeLinear -> Transpose -> Reshape

    The codes are the same, because rounding is element-wise. Stops at a tensor that somebody else reads as
    floats, and at operations that pick a part of their input: quantising what is thrown away would cost
    more. A roll (Concat of the two Slices of one tensor) moves all of its input, so it is passed. So are the
    windows of a convolution that overlap, which hold most pixels several times; their padding becomes the code of
    zero. A QuantizeLinear with several scales, which are those of an axis, stays where it is; for OpenVINO the
    sides of a product of two activations do too.
    """

    requires = ("DropNoOps", "FoldHeadScales", "QuantizeActivations", "SplitSoftmax", "SplitGelu")
    ensures = (bytes_are_moved, done_sides_carry_codes)

    def apply(self, work: Work) -> int:
        nodes = _may_be_lifted(work)
        shown = {id(tensor) for tensor in work.graph.outputs}
        return sum(_carry(node, shown) for node in nodes)


def _may_be_lifted(work: Work) -> list[gs.Node]:
    """Every QuantizeLinear with one scale; for OpenVINO, none of a product of two activations: see FoldHeadScales."""
    bound = {item.name for item in work.products if not item.has_weight} if work.target == "openvino" else set()
    stays = tuple(f"{name}/{side}/" for name in bound for side in ("lhs", "rhs"))
    return [node for node in work.graph.nodes if _has_one_scale(node) and not node.name.startswith(stays)]


def _has_one_scale(node: gs.Node) -> bool:
    return node.op == "QuantizeLinear" and len(shape_of(node.inputs[1])) == 0


def _carry(quantize: gs.Node, shown: set[int]) -> int:
    """Lift one QuantizeLinear, and a Clip that belongs to it, as high as it goes."""
    last = _clip_behind(quantize) or quantize
    bottom = top = quantize.inputs[0]
    passed: list[MovedTensor] = []
    unit = _movement_above(top, [quantize], shown)
    while unit is not None:
        passed.append(unit)
        top = unit[0]
        unit = _movement_above(top, unit[1], shown)
    if not passed:
        return 0
    _swap(quantize, last, top, bottom, passed)
    return 1


def _swap(quantize: gs.Node, last: gs.Node, top: gs.Tensor, bottom: gs.Tensor, passed: list[MovedTensor]) -> None:
    """top -> moves -> bottom -> quantize..last -> codes becomes top -> quantize..last -> moves -> codes."""
    codes = last.outputs[0]
    first_movers = passed[-1][1]
    lifted = gs.Variable(f"{codes.name}.lifted")
    maker = bottom.inputs[0]
    last.outputs = [lifted]
    quantize.inputs[0] = top
    read_instead(first_movers, top, lifted)
    maker.outputs = [codes]
    for node in (item for _, movers in passed for item in movers if item.op == "Pad"):
        node.inputs[2] = quantize.inputs[2]


def _clip_behind(quantize: gs.Node) -> gs.Node | None:
    reader = only_reader(quantize.outputs[0])
    return reader if reader is not None and reader.op == "Clip" else None


def _movement_above(tensor: gs.Tensor, readers: list[gs.Node], shown: set[int]) -> MovedTensor | None:
    """(input, nodes that read it) of the movement that makes `tensor`, if only `readers` read the tensor.

    shown: ids of the graph's outputs, which the model's user reads.
    """
    private = {id(node) for node in tensor.outputs} == {id(node) for node in readers}
    node = maker_of(tensor)
    if node is None or not private or id(tensor) in shown:
        return None
    if node.op in REARRANGING and all(isinstance(item, gs.Constant) for item in node.inputs[1:]):
        return node.inputs[0], [node]
    if node.name.endswith("/windows/Pad"):
        return node.inputs[0], [node]
    return _windows(node) if node.name.endswith("/windows/Concat") else _roll(node)


def _windows(node: gs.Node) -> MovedTensor:
    """Concat(Slice(x, ..), Slice(x, ..), ..) of `overlapping_windows`: x and the Slices."""
    slices = [item.inputs[0] for item in node.inputs]
    return slices[0].inputs[0], slices


def _roll(node: gs.Node) -> MovedTensor | None:
    """Concat(Slice(x, n..), Slice(x, ..n)): x and the two Slices."""
    slices = [item.inputs[0] for item in node.inputs if item.inputs] if node.op == "Concat" else []
    if len(slices) != 2 or len(node.inputs) != 2 or any(item.op != "Slice" for item in slices):
        return None
    source = slices[0].inputs[0]
    single = all(len(item.outputs[0].outputs) == 1 for item in slices)
    if slices[1].inputs[0] is not source or not single or not _is_whole(node, source):
        return None
    return source, slices


def _is_whole(concat: gs.Node, source: gs.Tensor) -> bool:
    """Do the two slices together hold each element of `source` once?"""
    shape = concat.outputs[0].shape
    return shape is not None and list(shape) == list(source.shape or [])
