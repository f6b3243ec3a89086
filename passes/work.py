"""What goes down the line of passes: one graph, one plan, and a record of each planned product."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_graphsurgeon as gs

from ptq4vit_onnx.plan.quantizers import Quantizer, Uniform
from ptq4vit_onnx.plan.scale_plan import ScalePlan, SitePlan

Array = np.ndarray[Any, Any]


@dataclass
class Product:
    """One integer product of a site: its node, and how its two sides are quantised.

    site: the site's name; node: the MatMul [.., inputs] @ [inputs, outputs], or activation @ activation.
    plan: the site's plan; lhs, rhs: the quantizers of this very product (an outlier product has its own).
    has_weight: rhs is a constant. codes: the int8 weights [inputs, outputs] that ship, once they are known.
    lhs_done, rhs_done: this side carries integers. head_scales: what the product's output must still be
    multiplied by, one value per head.
    """

    site: str
    node: Any
    plan: SitePlan
    lhs: Quantizer
    rhs: Uniform
    has_weight: bool
    lhs_done: bool = False
    rhs_done: bool = False
    codes: Array | None = None
    head_scales: Array | None = None

    @property
    def name(self) -> str:
        """Of the node; also the first part of the names of the nodes around it: SITE, or SITE.outliers."""
        return str(self.node.name).replace("/MatMul", "")

    def scale_output(self, factors: Array) -> None:
        """Remember to multiply the output [.., heads, rows, columns] by one factor per head."""
        self.head_scales = factors if self.head_scales is None else self.head_scales * factors


@dataclass
class Work:
    """The graph under the knife. `products` are in the order of the plan's sites."""

    graph: Any
    plan: ScalePlan
    products: list[Product] = field(default_factory=list)
    moved_weights: dict[str, int] = field(default_factory=dict)
    twin_products: dict[str, int] = field(default_factory=dict)
    applied: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    constants: dict[str, Any] = field(default_factory=dict)

    def product(self, site: str) -> Product:
        """The main product of `site`."""
        return next(item for item in self.products if item.site == site)

    def constant(self, name: str, value: Any) -> Any:
        """A constant by name, made once: asking again with the same value gives the same constant."""
        value = np.ascontiguousarray(value).reshape(np.shape(value))
        known = self.constants.get(name)
        if known is None:
            known = self.constants[name] = gs.Constant(name, value)
        assert np.array_equal(known.values, value) and known.values.dtype == value.dtype, name
        return known

    def add(self, operation: str, name: str, inputs: list[Any], **attributes: Any) -> Any:
        """Append a node with one output, and return the output."""
        output = gs.Variable(f"{name}.out")
        node = gs.Node(operation, name, attrs=attributes, inputs=inputs, outputs=[output])
        self.graph.nodes.append(node)
        return output

    def append_to(self, node: Any, operation: str, name: str, other: Any) -> Any:
        """Put `operation(output of node, other)` behind `node`; all who read the output read the result."""
        output = node.outputs[0]
        inner = gs.Variable(f"{name}.in")
        node.outputs = [inner]
        added = gs.Node(operation, name, inputs=[inner, other], outputs=[output])
        self.graph.nodes.append(added)
        return added


def scalar(value: Any, kind: Any) -> Array:
    """A constant of rank 0: [] of the given numpy type."""
    return np.asarray(value, dtype=kind)


def integers(*values: int) -> Array:
    """A list of int64, the type of shapes and axes."""
    return np.asarray(values, dtype=np.int64)
