"""Sort the nodes and forget stale types, so that the file is valid ONNX."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_graphsurgeon as gs

from ptq4vit_onnx.passes.pass_interface import Pass
from ptq4vit_onnx.passes.product_invariants import done_sides_carry_codes
from ptq4vit_onnx.passes.work import Violation, Work, invariant


@invariant("every node comes behind the nodes whose outputs it reads")
def nodes_are_sorted(work: Work) -> Iterator[Violation]:
    computed: set[int] = set()
    for node in work.graph.nodes:
        late = [item.name for item in node.inputs if item.inputs and id(item) not in computed]
        if late:
            yield Violation("", node.name, f"it reads {late[0]}, which is computed later")
        computed.update(id(item) for item in node.outputs)


@invariant("every side of every product is quantised")
def all_sides_are_done(work: Work) -> Iterator[Violation]:
    for product in work.products:
        if not (product.lhs_done and product.rhs_done):
            yield product.violation(f"the {'rhs' if product.lhs_done else 'lhs'} carries floats")


@invariant("no tensor inside the graph says its type or shape")
def types_are_forgotten(work: Work) -> Iterator[Violation]:
    for tensor in _inner(work.graph):
        if tensor.dtype is not None or tensor.shape is not None:
            yield Violation("", tensor.inputs[0].name, f"{tensor.name} has type {tensor.dtype}, shape {tensor.shape}")


class Tidy(Pass):
    """Sort the nodes, and forget the types of inner tensors: some of them became bytes.

    Refuses to end while a planned side still carries floats.
    """

    requires = ("DropNoOps", "CarryBytes", "SeparateReaders", "PackWeights")
    ensures = (nodes_are_sorted, all_sides_are_done, types_are_forgotten, done_sides_carry_codes)

    def apply(self, work: Work) -> int:
        for product in work.products:
            if not (product.lhs_done and product.rhs_done):
                raise self.refuse(product.site, product.node.name, "a planned side was not quantised")
        inner = _inner(work.graph.toposort())
        for tensor in inner:
            tensor.dtype = tensor.shape = None
        return len(inner)


def _inner(graph: gs.Graph) -> list[gs.Variable]:
    """The tensors that are computed and stay inside."""
    ends = {id(item) for item in (*graph.inputs, *graph.outputs)}
    found = (tensor for tensor in graph.tensors().values() if isinstance(tensor, gs.Variable))
    return [tensor for tensor in found if id(tensor) not in ends]
