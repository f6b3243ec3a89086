"""Leave a graph that others can read."""

from __future__ import annotations

import onnx_graphsurgeon as gs

from ptq4vit_onnx.passes.a_pass import Pass
from ptq4vit_onnx.passes.work import Work


class Tidy(Pass):
    """Sort the nodes, and forget the types of inner tensors: some of them became bytes.

    Refuses to end while a planned side still carries floats.
    """

    requires = ("CarryBytes", "PackWeights")

    def apply(self, work: Work) -> int:
        for product in work.products:
            if not (product.lhs_done and product.rhs_done):
                raise self.refuse(product.site, product.node.name, "a planned side was not quantised")
        graph = work.graph.toposort()
        ends = {id(item) for item in (*graph.inputs, *graph.outputs)}
        inner = [
            tensor for tensor in graph.tensors().values() if isinstance(tensor, gs.Variable) and id(tensor) not in ends
        ]
        for tensor in inner:
            tensor.dtype = tensor.shape = None
        return len(inner)
