"""Operations that do nothing are dropped."""

from __future__ import annotations

from typing import Any

import onnx_graphsurgeon as gs

from ptq4vit_onnx.passes.a_pass import Pass
from ptq4vit_onnx.passes.work import Work


class DropNoOps(Pass):
    """Drop Pad by nothing, and Identity: Swin's exporter writes one Pad per window partition.

    They would stand between a QuantizeLinear and the data it could be quantised before.
    """

    requires = ("FindProducts",)

    def apply(self, work: Work) -> int:
        dropped = [node for node in work.graph.nodes if _does_nothing(node)]
        outputs = {id(item) for item in work.graph.outputs}
        kept = [node for node in dropped if id(node.outputs[0]) in outputs]
        for node in dropped:
            if not any(node is item for item in kept):
                _bypass(node)
        return len(dropped) - len(kept)


def _does_nothing(node: Any) -> bool:
    if node.op == "Identity":
        return True
    return node.op == "Pad" and isinstance(node.inputs[1], gs.Constant) and not node.inputs[1].values.any()


def _bypass(node: Any) -> None:
    source, output = node.inputs[0], node.outputs[0]
    for reader in list(output.outputs):
        reader.inputs = [source if item is output else item for item in reader.inputs]
    node.outputs.clear()
