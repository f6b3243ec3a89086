"""The nodes of a file with the values that they meet: by onnx's own reference evaluator, which optimises nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from tests.engines.forms import Array, Form
from tests.engines.operator_table import TABLE

_ABSENT: Array = np.empty(0)


@dataclass(frozen=True)
class Met:
    """A node and its values; an input that is left out is an empty array of no type."""

    node: onnx.NodeProto
    inputs: tuple[Array, ...]
    outputs: tuple[Array, ...]

    @property
    def signature(self) -> str:
        """The row of the table that the node belongs to."""
        names = [array.dtype.name if name else "-" for name, array in zip(self.node.input, self.inputs, strict=True)]
        given = f"{names[0]}.." if self.node.op_type == "Concat" and len(set(names)) == 1 else ", ".join(names)
        return f"{self.node.op_type}({given}) -> {', '.join(array.dtype.name for array in self.outputs)}"

    @property
    def is_defined(self) -> bool:
        """Whether the row's reason is true of these values."""
        attributes: Mapping[str, Any] = {item.name: helper.get_attribute_value(item) for item in self.node.attribute}
        return TABLE[self.signature].holds(attributes, self.inputs, self.outputs)


def nodes_met(form: Form) -> Iterator[Met]:
    evaluator = ReferenceEvaluator(form.model)
    values = cast(dict[str, Array], evaluator.run(None, {evaluator.input_names[0]: form.images}, intermediate=True))
    values.update({item.name: numpy_helper.to_array(item) for item in form.model.graph.initializer})
    for node in form.model.graph.node:
        inputs = tuple(np.asarray(values[name]) if name else _ABSENT for name in node.input)
        yield Met(node, inputs, tuple(np.asarray(values[name]) for name in node.output))


@dataclass
class Seen:
    """rows: of every form. unknown: operators that are not in the table, with a place. undefined: places where a row's
    reason is not true of the values."""

    rows: dict[str, set[str]] = field(default_factory=dict)
    unknown: dict[str, str] = field(default_factory=dict)
    undefined: list[str] = field(default_factory=list)


def look_at(forms: Sequence[Form]) -> Seen:
    found = Seen()
    for form in forms:
        rows = found.rows.setdefault(form.name, set())
        for met in nodes_met(form):
            rows.add(met.signature)
            if met.signature not in TABLE:
                found.unknown[met.signature] = f"{met.node.name} in {form.name}"
            elif not met.is_defined:
                found.undefined.append(f"{met.node.name} in {form.name}: not true: {TABLE[met.signature].why}")
    return found


def fewest_forms(used: Mapping[str, set[str]]) -> list[str]:
    """Of form -> its rows: some forms that have all rows of all forms. Those with most rows not seen yet come first."""
    missing, chosen = set().union(*used.values()), []
    while missing:
        best = max(used, key=lambda name: len(used[name] & missing))
        chosen.append(best)
        missing -= used[best]
    return chosen
