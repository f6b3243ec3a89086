"""How a model differs from the one that was expected, in words, wherever that can change an output.

Everything in the two messages is compared, bit for bit: nodes by name, constants by name, and every other field,
also those that this version of the onnx package does not know. Only the order of nodes and of constants is free.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import Message
from google.protobuf.text_format import MessageToString
from google.protobuf.unknown_fields import UnknownFieldSet
from onnx import numpy_helper

from ptq4vit_onnx.graph.model_proto import Array

_WORDS = {"metadata_props": "metadata", "opset_import": "opset"}
_LONGEST = 60  # characters of a value that are shown


@dataclass(frozen=True)
class Difference:
    """where: the name of the node that it concerns, of a constant its reader; empty: it concerns the whole model."""

    where: str
    sentence: str


def differences(found: onnx.ModelProto, expected: onnx.ModelProto) -> list[Difference]:
    """Those of the model as a whole first, then in the order of the network; none where the two compute the same."""
    whole = [
        *field_differences(found, expected, "the model", {"graph"}),
        *field_differences(found.graph, expected.graph, "the graph", {"node", "initializer"}),
    ]
    placed = [*_nodes(found.graph, expected.graph), *_constants(found.graph, expected.graph)]
    placed.sort(key=lambda pair: pair[0])
    return [*(Difference("", sentence) for sentence in whole), *(difference for _, difference in placed)]


def _nodes(found: Any, expected: Any) -> Iterator[tuple[int, Difference]]:
    """Each with its place in the expected network."""
    held, wanted = list(found.node), list(expected.node)
    constants = _by_tensor(found), _by_tensor(expected)
    pairs, extra, missing = _pairs(held, wanted)
    for own, place in pairs:
        name = wanted[place].name
        if held[own].name != name:
            yield place, Difference(name, f"{wanted[place].op_type} {name} is called {held[own].name!r}")
        for sentence in _node_differences(held[own], wanted[place], constants):
            yield place, Difference(name, sentence)
    for place in missing:
        yield place, Difference(wanted[place].name, f"{wanted[place].op_type} {wanted[place].name} is missing")
    makers = {name: node.name for node in held for name in node.output}
    readers = {name: place for own, place in reversed(pairs) for name in held[own].input}
    for own in extra:
        node = held[own]
        reads = ", ".join(f"{name} of {makers[name]}" if name in makers else name for name in node.input)
        said = f"{node.op_type} {node.name!r} is no node of the export: it reads {reads or 'nothing'}"
        ahead = min((readers[name] for name in node.output if name in readers), default=len(wanted))
        yield ahead, Difference(node.name, f"{said} and writes {', '.join(node.output)}")


def _pairs(held: Sequence[Any], wanted: Sequence[Any]) -> tuple[list[tuple[int, int]], list[int], list[int]]:
    """Places of (nodes of one name; of those left over, nodes that write the same), of those in one graph only."""
    named, extra, missing = _matched(
        {place: node.name for place, node in enumerate(held)}, {place: node.name for place, node in enumerate(wanted)}
    )
    renamed, extra, missing = _matched(
        {place: tuple(held[place].output) for place in extra}, {place: tuple(wanted[place].output) for place in missing}
    )
    return named + renamed, extra, missing


def _matched(held: Mapping[int, Any], wanted: Mapping[int, Any]) -> tuple[list[tuple[int, int]], list[int], list[int]]:
    """Places with equal keys, in pairs; those of `held` and of `wanted` that are left over."""
    places: dict[Any, list[int]] = defaultdict(list)
    for place, key in held.items():
        places[key].append(place)
    pairs, missing = [], []
    for place, key in wanted.items():
        if places.get(key):
            pairs.append((places[key].pop(0), place))
        else:
            missing.append(place)
    return pairs, sorted(place for rest in places.values() for place in rest), missing


_Constants = tuple[dict[str, Any], dict[str, Any]]


def _by_tensor(graph: Any) -> dict[str, Any]:
    return {tensor.name: tensor for tensor in graph.initializer}


def _node_differences(held: Any, wanted: Any, constants: _Constants) -> Iterator[str]:
    if _bytes_of(held) == _bytes_of(wanted):
        return
    yield from _named_differences(held, wanted, constants)
    yield from field_differences(held, wanted, wanted.name, {"name", "op_type", "input", "output", "attribute"})


def _named_differences(held: Any, wanted: Any, constants: _Constants) -> Iterator[str]:
    if held.op_type != wanted.op_type:
        yield f"{wanted.name} is a {held.op_type}, expected {wanted.op_type}"
    for what, verb in (("input", "reads"), ("output", "writes")):
        for position, (own, other) in enumerate(zip_longest(getattr(held, what), getattr(wanted, what), fillvalue="")):
            if own != other:
                tensors = constants[0].get(own), constants[1].get(other)
                values = "" if None in tensors else f"; it {_tensor_difference(*tensors)}"
                said = f"{wanted.name} {verb} {own or 'nothing'} instead of {other or 'nothing'} as {what} {position}"
                yield said + values
    own_attributes, attributes = ({item.name: item for item in node.attribute} for node in (held, wanted))
    if len(held.attribute) != len(own_attributes):
        yield f"{wanted.name} has an attribute twice"
    for name in {**attributes, **own_attributes}:
        pair = [_attribute(known.get(name)) for known in (own_attributes, attributes)]
        if pair[0][0] != pair[1][0]:
            yield f"attribute {name} of {wanted.name} is {pair[0][1]}, expected {pair[1][1]}"


def _attribute(attribute: Any) -> tuple[bytes, str]:
    """(its bytes, its value in words)"""
    if attribute is None:
        return b"", "absent"
    if attribute.type in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS, onnx.AttributeProto.TENSOR):
        return _bytes_of(attribute), f"another {onnx.AttributeProto.AttributeType.Name(attribute.type).lower()}"
    try:
        value = onnx.helper.get_attribute_value(attribute)
    except ValueError:
        value = "of no known type"
    return _bytes_of(attribute), _short(value.decode(errors="replace") if isinstance(value, bytes) else _rounded(value))


def _rounded(value: Any) -> Any:
    return float(f"{value:.7g}") if isinstance(value, float) else value  # attributes are of single precision


def _constants(found: Any, expected: Any) -> Iterator[tuple[int, Difference]]:
    held, wanted = _by_tensor(found), _by_tensor(expected)
    readers: dict[str, tuple[int, str]] = {}
    for graph in (found, expected):
        for place, node in enumerate(graph.node):
            for name in node.input:
                readers.setdefault(name, (place, node.name))
    for name in {**wanted, **held}:
        place, reader = readers.get(name, (len(found.node), ""))
        sentence = _constant(name, held.get(name), wanted.get(name))
        if sentence is not None:
            yield place, Difference(reader, sentence)
    if len(held) != len(found.initializer):
        yield len(found.node), Difference("", "several constants have one name")


def _constant(name: str, held: Any, wanted: Any) -> str | None:
    if held is None or wanted is None:
        return f"constant {name} is {'missing' if held is None else 'none of the export'}"
    if _bytes_of(held) == _bytes_of(wanted):
        return None
    return f"constant {name} {_tensor_difference(held, wanted)}"


def _tensor_difference(held: Any, wanted: Any) -> str:
    own, other = _array(held), _array(wanted)
    if own is None or other is None:
        return "is stored otherwise, and cannot be read"
    return _array_difference(own, other)


def _array(tensor: Any) -> Array | None:
    """Its values; None where they do not fit its type and shape."""
    try:
        return np.ascontiguousarray(numpy_helper.to_array(tensor))
    except (ValueError, TypeError, LookupError, AttributeError):
        return None


def _array_difference(held: Array, wanted: Array) -> str:
    if held.shape != wanted.shape or held.dtype != wanted.dtype:
        return f"is {held.dtype} {list(held.shape)}, expected {wanted.dtype} {list(wanted.shape)}"
    if held.dtype.hasobject:
        return "differs"
    bits = f"V{held.dtype.itemsize}"
    wrong = held.reshape(-1).view(bits) != wanted.reshape(-1).view(bits)
    if not wrong.any():
        return "has the right values, but is stored otherwise"
    with np.errstate(all="ignore"):
        distance = np.abs(held.astype(np.float64) - wanted.astype(np.float64)).reshape(-1)
    distance = np.where(wrong, np.where(np.isnan(distance), np.inf, distance), -1.0)
    worst = int(distance.argmax())
    at = list(map(int, np.unravel_index(worst, held.shape)))
    values = held.reshape(-1)[worst].item(), wanted.reshape(-1)[worst].item()
    return (
        f"differs in {int(wrong.sum())} of {held.size} values, by at most {distance[worst]:.3g}: at {at} it is "
        f"{_number(values[0])}, expected {_number(values[1])}"
    )


def _number(value: Any) -> str:
    return f"{value:.9g}" if isinstance(value, float) else str(value)


@dataclass(frozen=True)
class _Entry:
    """What a field holds once. name: empty where it has none."""

    name: str
    bits: bytes
    value: Any

    @classmethod
    def of(cls, value: Any) -> _Entry:
        if not isinstance(value, Message):
            return cls("", repr(value).encode(), value)
        name = next((str(getattr(value, key)) for key in ("key", "name", "domain") if hasattr(value, key)), "")
        return cls(name, _bytes_of(value), value)

    def __str__(self) -> str:
        if not isinstance(self.value, Message):
            return _short(self.value)
        if isinstance(self.value, onnx.ValueInfoProto):
            return str(onnx.helper.printable_value_info(self.value))
        plain = getattr(self.value, "value", None)
        return _short(plain if isinstance(plain, str) else MessageToString(self.value, as_one_line=True))


def field_differences(held: Message, wanted: Message, owner: str, but: set[str]) -> Iterator[str]:
    """Sentences on all fields that differ, except those named in `but`."""
    for field in held.DESCRIPTOR.fields:
        if field.name not in but:
            own, other = _entries(held, field.name), _entries(wanted, field.name)
            if [entry.bits for entry in own] != [entry.bits for entry in other]:
                yield from _entry_differences(own, other, _WORDS.get(field.name, field.name), owner)
    if _unknown(held) != _unknown(wanted):
        yield f"{owner} has fields that this version of ONNX does not know"


def _unknown(message: Message) -> list[tuple[int, int, str]]:
    return [(item.field_number, item.wire_type, repr(item.data)) for item in UnknownFieldSet(message)]


def _entries(message: Message, field: str) -> list[_Entry]:
    value = getattr(message, field)
    if isinstance(value, (str, bytes, int, float, Message)):
        return [_Entry.of(value)] if message.HasField(field) and value not in ("", b"") else []
    return [_Entry.of(item) for item in value]


def _entry_differences(own: list[_Entry], other: list[_Entry], what: str, owner: str) -> Iterator[str]:
    held, wanted = _by_name(own), _by_name(other)
    moved = True
    for name in {**wanted, **held}:
        pair = [known.get(name, []) for known in (held, wanted)]
        if [item.bits for item in pair[0]] != [item.bits for item in pair[1]]:
            moved = False
            said = [", ".join(map(str, items)) if items else "absent" for items in pair]
            again = ", otherwise beyond what is shown" if said[0] == said[1] else ""
            yield f"{f'{what} {name}'.rstrip()} of {owner} is {said[0]}, expected {said[1]}{again}"
    if moved:
        yield f"{what} of {owner} is in another order"


def _by_name(entries: Sequence[_Entry]) -> dict[str, list[_Entry]]:
    found: dict[str, list[_Entry]] = {}
    for entry in entries:
        found.setdefault(entry.name, []).append(entry)
    return found


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}.."


def _bytes_of(message: Message) -> bytes:
    return bytes(message.SerializeToString(deterministic=True))
