"""What goes down the line of passes: one graph, one plan, a record of each planned product, and what holds so far."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import onnx_graphsurgeon as gs
from numpy.typing import DTypeLike

from ptq4vit_onnx.passes.tensors import Array, only_reader
from ptq4vit_onnx.plan.file_layout import Target
from ptq4vit_onnx.plan.quantizers import Quantizer, Uniform
from ptq4vit_onnx.plan.scale_plan import ScalePlan, SitePlan

Attribute: TypeAlias = int | float | str | list[int]


@dataclass(frozen=True)
class Violation:
    """A place where an invariant does not hold. site: empty where the node belongs to none; found: what is there."""

    site: str
    node: str
    found: str


@dataclass(frozen=True)
class Invariant:
    """A statement about the graph that a pass makes true.

    violations: yields the places where it does not hold. until: the pass that may end it; empty: it holds in the
    finished graph too.
    """

    claim: str
    violations: Callable[[Work], Iterator[Violation]]
    until: str = ""


def invariant(claim: str, until: str = "") -> Callable[[Callable[[Work], Iterator[Violation]]], Invariant]:
    """Decorator: the function that finds violations becomes the invariant of this claim."""
    return lambda violations: Invariant(claim, violations, until)


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
    node: gs.Node
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
        return self.node.name.replace("/MatMul", "")

    @property
    def is_narrow(self) -> bool:
        """Whether it is the product of the site's outlier channels, and not its main one."""
        return self.node.name.endswith(".outliers")

    @property
    def adds(self) -> list[gs.Node]:
        """The Adds right behind it that belong to its site, first to last: of a twin's branches, outliers, the bias."""
        own = [f"{self.name}/twin/Add", f"{self.site}/outliers/Add", f"{self.site}/Add"]
        found: list[gs.Node] = []
        reader = only_reader(self.node.outputs[0])
        while reader is not None and reader.name in own:
            found.append(reader)
            reader = only_reader(reader.outputs[0])
        return found

    def scale_output(self, factors: Array) -> None:
        """Remember to multiply the output [.., heads, rows, columns] by one factor per head."""
        self.head_scales = factors if self.head_scales is None else self.head_scales * factors

    def violation(self, found: str) -> Violation:
        return Violation(self.site, self.node.name, found)


@dataclass
class Work:
    """The graph and what the passes know about it.

    target: the engine whose speed decides between forms of the same codes. products: in the order of the
    plan's sites. moved_weights: per site, codes that pair-safety changed. twin_products: per twin site, how many
    products its branches became. unfolded_norms: weight and bias that a LayerNorm had before channels were folded
    into it, by its path. applied: the passes that ran. standing: (pass, what it ensures) that must hold at present.
    counts: per pass, how many places it changed. constants: by name, see `constant`.
    """

    graph: gs.Graph
    plan: ScalePlan
    target: Target = "onnxruntime"
    products: list[Product] = field(default_factory=list)
    moved_weights: dict[str, int] = field(default_factory=dict)
    twin_products: dict[str, int] = field(default_factory=dict)
    unfolded_norms: dict[str, tuple[Array, Array]] = field(default_factory=dict)
    applied: list[str] = field(default_factory=list)
    standing: list[tuple[str, Invariant]] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    constants: dict[str, gs.Constant] = field(default_factory=dict)

    @property
    def weight_products(self) -> list[Product]:
        """The products whose right side is a constant."""
        return [item for item in self.products if item.has_weight]

    def product(self, site: str) -> Product:
        """The main product of `site`."""
        return next(item for item in self.products if item.site == site)

    def constant(self, name: str, value: Array) -> gs.Constant:
        """A constant by name, made once: asking again with the same value gives the same constant."""
        value = np.ascontiguousarray(value).reshape(np.shape(value))
        known = self.constants.get(name)
        if known is None:
            known = self.constants[name] = gs.Constant(name, value)
        assert np.array_equal(known.values, value) and known.values.dtype == value.dtype, name
        return known

    def add(self, operation: str, name: str, inputs: Sequence[gs.Tensor], **attributes: Attribute) -> gs.Variable:
        """Append a node with one output, and return the output."""
        output = gs.Variable(f"{name}.out")
        node = gs.Node(operation, name, attrs=attributes, inputs=inputs, outputs=[output])
        self.graph.nodes.append(node)
        return output

    def append_to(self, node: gs.Node, operation: str, name: str, other: gs.Tensor) -> None:
        """Put `operation(output of node, other)` behind `node`; all who read the output read the result."""
        output = node.outputs[0]
        inner = gs.Variable(f"{name}.in")
        node.outputs = [inner]
        self.graph.nodes.append(gs.Node(operation, name, inputs=[inner, other], outputs=[output]))


def scalar(value: float, kind: DTypeLike) -> Array:
    """A constant of rank 0: [] of the given numpy type."""
    return np.asarray(value, dtype=kind)


def integers(*values: int) -> Array:
    """A list of int64, the type of shapes and axes."""
    return np.asarray(values, dtype=np.int64)
