"""What can be said of a quantised graph without its plan: next to the float graph, and by itself.

The nodes of a site, in both graphs called SITE/.., are taken for one; what lies inside of it nobody knows without a
plan. Between sites, the float model's nodes must be there, compute what they do, and read what they read.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
from onnx.helper import printable_value_info

from ptq4vit_onnx.graph.integer_products import PRODUCT_KERNELS, GraphIndex, parse_name
from ptq4vit_onnx.graph.movement import MOVING
from ptq4vit_onnx.passes import OWN_METADATA
from ptq4vit_onnx.proof.whole_graph.differences import Difference, field_differences

# What passes take out between sites: movements that became a product's own, and attention's scale.
_TAKEN_OUT = MOVING | {"Mul", "Div", "Shape"}
# What they put into products, besides movements.
_IN_PRODUCTS = MOVING | {
    "QuantizeLinear", "DequantizeLinear", "MatMul", "Add", "Sub", "Mul", "Clip", "Cast", "LeakyRelu",
    "ThresholdedRelu", "Div", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitShift", "Where", "Floor",
}  # fmt: skip
_NORM = "LayerNormalization"


def structure_differences(model: onnx.ModelProto, reference: onnx.ModelProto) -> list[Difference]:
    """Where the quantised graph is not the float one with other products. Norms' numbers are left out: a plan's
    channels may be folded into them."""
    names = (parse_name(node.name) for node in reference.graph.node if node.op_type in PRODUCT_KERNELS)
    sites = frozenset(name.site for name in names if name is not None)
    held, wanted = (_Skeleton(proto, sites) for proto in (model, reference))
    return [
        *_extra_and_missing(held, wanted),
        *_parameters(held, wanted),
        *_wiring(held, wanted),
        *(Difference("", sentence) for sentence in _around(model, reference)),
    ]


class _Skeleton:
    """A graph of vertices: products by their site, nodes between sites, inputs. All else is seen through.

    sites: of the float model.
    """

    def __init__(self, proto: onnx.ModelProto, sites: frozenset[str]) -> None:
        self.proto, self.index, self.sites = proto, GraphIndex(proto), sites
        self.nodes = {node.name: node for node in self.index.nodes if node.op_type != "Constant"}
        self.between = {name: node for name, node in self.nodes.items() if name.partition("/")[0] not in sites}
        self._sources: dict[str, frozenset[str]] = {}

    def product(self, node: Any) -> str | None:
        """The site whose product a node computes."""
        name = parse_name(node.name) if node.op_type in PRODUCT_KERNELS else None
        return name.site if name is not None and name.site in self.sites else None

    def sources(self, tensor: str, known: frozenset[str]) -> frozenset[str]:
        """The vertices that a tensor is made of. known: names of the nodes between sites that are vertices."""
        if tensor not in self._sources:
            self._sources[tensor] = frozenset()  # of a cycle, which no valid graph has
            self._sources[tensor] = self._made_of(tensor, known)
        return self._sources[tensor]

    def _made_of(self, tensor: str, known: frozenset[str]) -> frozenset[str]:
        node = self.index.producer.get(tensor)
        if node is None or node.op_type == "Constant":
            return frozenset([f"input {tensor}"] if tensor in self.index.inputs else [])
        site = self.product(node)
        if site is not None:
            return frozenset([site])
        if node.name in known:
            return frozenset([node.name])
        return frozenset().union(*(self.sources(name, known) for name in node.input if name))

    def reads(self, site: str, known: frozenset[str]) -> list[frozenset[str]]:
        """The vertices on the left and on the right of a site's products."""
        found = [frozenset[str](), frozenset[str]()]
        for node in self.nodes.values():
            if self.product(node) == site:
                found = [side | self.sources(name, known) for side, name in zip(found, node.input, strict=False)]
        return found


def _extra_and_missing(held: _Skeleton, wanted: _Skeleton) -> Iterator[Difference]:
    for name, node in held.nodes.items():
        allowed = MOVING if name in held.between else _IN_PRODUCTS
        if name not in wanted.nodes and (node.op_type not in allowed or node.domain not in ("", "ai.onnx")):
            yield Difference(name, f"{node.op_type} {name!r} is neither the float model's nor of a product")
    for name, node in wanted.between.items():
        if name not in held.nodes and node.op_type not in _TAKEN_OUT:
            yield Difference(name, f"{node.op_type} {name} of the float model is missing")
    present = {held.product(node) for node in held.nodes.values()}
    yield from (Difference(site, f"product {site} is missing") for site in sorted(wanted.sites - present))


def _parameters(held: _Skeleton, wanted: _Skeleton) -> Iterator[Difference]:
    for name, node in wanted.between.items():
        own = held.nodes.get(name)
        if own is None:
            continue
        mine, theirs = (_parameters_of(skeleton.index, item) for skeleton, item in ((held, own), (wanted, node)))
        for what in {**theirs, **mine}:
            if not _is_same(mine.get(what), theirs.get(what)):
                yield Difference(name, f"{what} of {name} is not the float model's")


def _parameters_of(index: GraphIndex, node: Any) -> dict[str, Any]:
    """The operator, the attributes and the float constants of a node."""
    found: dict[str, Any] = {"operator": (node.domain, node.op_type)}
    for position, name in enumerate(node.input):
        value = index.constant(name)
        if value is not None and value.dtype.kind == "f" and node.op_type != _NORM:
            found[f"input {position}"] = value
    for attribute in node.attribute:
        found[f"attribute {attribute.name}"] = attribute.SerializeToString(deterministic=True)
    return found


def _is_same(held: Any, wanted: Any) -> bool:
    if isinstance(held, np.ndarray) and isinstance(wanted, np.ndarray):
        return held.dtype == wanted.dtype and held.shape == wanted.shape and held.tobytes() == wanted.tobytes()
    return type(held) is type(wanted) and bool(held == wanted)


def _wiring(held: _Skeleton, wanted: _Skeleton) -> Iterator[Difference]:
    known = frozenset(held.between) & frozenset(wanted.between)
    for name in wanted.between:
        if name in known:
            own, others = ([graph.sources(item, known) for item in graph.nodes[name].input] for graph in (held, wanted))
            if own != others:
                yield Difference(name, f"{name} reads {_words(own)}, in the float model {_words(others)}")
    for site in sorted(wanted.sites):
        own, others = (graph.reads(site, known) for graph in (held, wanted))
        if own != others:
            yield Difference(site, f"product {site} reads {_words(own)}, in the float model {_words(others)}")
    outputs = [
        [(item.name, graph.sources(item.name, known)) for item in graph.proto.graph.output] for graph in (held, wanted)
    ]
    if outputs[0] != outputs[1]:
        said = ["; ".join(f"{name} of {_words([made])}" for name, made in items) for items in outputs]
        yield Difference("", f"the model returns {said[0]}, the float model {said[1]}")


def _words(sources: list[frozenset[str]]) -> str:
    return ", ".join(" and ".join(sorted(item)) or "constants" for item in sources)


def _around(model: onnx.ModelProto, reference: onnx.ModelProto) -> Iterator[str]:
    """What differs of what a plan has no say in."""
    yield from field_differences(model, reference, "the model", {"graph", "metadata_props", "doc_string"})
    but = {"node", "initializer", "value_info", "input", "output", "doc_string"}
    yield from field_differences(model.graph, reference.graph, "the graph", but)
    for what in ("input", "output"):
        held, wanted = (list(map(printable_value_info, getattr(proto.graph, what))) for proto in (model, reference))
        takes_bytes = what == "input" and len(held) == len(wanted) == 1 and "UINT8" in held[0]
        if held != wanted and not takes_bytes:
            yield f"{what}s of the graph are {', '.join(held)}, in the float model {', '.join(wanted)}"
    own = [entry for entry in model.metadata_props if entry.key not in OWN_METADATA]
    pair = onnx.ModelProto(metadata_props=own), onnx.ModelProto(metadata_props=reference.metadata_props)
    yield from field_differences(*pair, "the model", set())
