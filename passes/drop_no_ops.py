"""Drop operations that do nothing."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_graphsurgeon as gs

from ptq4vit_onnx.passes.pass_interface import Pass
from ptq4vit_onnx.passes.tensors import read_instead
from ptq4vit_onnx.passes.work import Violation, Work, invariant


@invariant("no node inside the graph is an Identity, or a Pad by nothing")
def nodes_do_something(work: Work) -> Iterator[Violation]:
    yield from (Violation("", node.name, f"the {node.op} does nothing") for node in _no_ops(work.graph))


class DropNoOps(Pass):
    """Drop Pad by nothing, and Identity: Swin's exporter writes one Pad per window partition.

    CarryBytes could not lift a QuantizeLinear over them. One that gives an output of
    the model its name is kept.
    """

    requires = ("FindProducts",)
    ensures = (nodes_do_something,)

    def apply(self, work: Work) -> int:
        dropped = _no_ops(work.graph)
        for node in dropped:
            _bypass(node)
        return len(dropped)


def _no_ops(graph: gs.Graph) -> list[gs.Node]:
    shown = {id(item) for item in graph.outputs}
    return [node for node in graph.nodes if _does_nothing(node) and id(node.outputs[0]) not in shown]


def _does_nothing(node: gs.Node) -> bool:
    if node.op == "Identity":
        return True
    amounts = node.inputs[1] if node.op == "Pad" else None
    return isinstance(amounts, gs.Constant) and not amounts.values.any()


def _bypass(node: gs.Node) -> None:
    """Let those who read the node's output read its input."""
    source, output = node.inputs[0], node.outputs[0]
    read_instead(output.outputs, output, source)
    node.outputs.clear()
