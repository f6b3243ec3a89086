"""Every operator of every form of file is in the table with its types, and is defined for the values it meets there."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from ptq4vit_onnx.graph.integer_products import GraphIndex
from ptq4vit_onnx.graph.value_ranges import Bounds, code_bounds
from tests.engines.forms import Array, Form
from tests.engines.operator_table import TABLE
from tests.engines.signatures import Met, Seen

INT32 = np.iinfo(np.int32)


def test_every_operator_of_every_form_is_in_the_table_with_its_types(seen: Seen) -> None:
    assert seen.unknown == {}


def test_every_operator_is_defined_for_the_values_it_meets(seen: Seen) -> None:
    assert seen.undefined == []


def test_every_row_of_the_table_is_used_by_some_form(seen: Seen) -> None:
    assert set(TABLE) - set().union(*seen.rows.values()) == set()


def test_all_forms_are_valid_onnx_that_the_oldest_runtime_reads(all_forms: list[Form]) -> None:
    for form in all_forms:
        onnx.checker.check_model(form.model, full_check=True)
        assert form.model.ir_version <= 9, form.name
        assert [(item.domain, item.version) for item in form.model.opset_import] == [("", 20)], form.name


def test_sums_of_codes_cannot_overflow_whatever_the_image(all_forms: list[Form]) -> None:
    """By the graph alone: from the limits of bytes, not from the values of some images."""
    checked = 0
    for form in all_forms:
        index = GraphIndex(form.model)
        for name, node in index.producer.items():
            if node.op_type in ("Add", "Mul") and is_wide(index, name):
                low, high = wide_bounds(index, name)
                assert INT32.min <= low <= high <= INT32.max, f"{node.name} in {form.name}: {low}..{high}"
                checked += 1
    assert checked


def is_wide(index: GraphIndex, name: str) -> bool:
    """Is the tensor int32, being computed from casts to it?"""
    node = index.producer.get(name)
    if node is not None and node.op_type in ("Add", "Mul"):
        return is_wide(index, node.input[0])
    return index.element_type(name) == TensorProto.INT32


def wide_bounds(index: GraphIndex, name: str) -> Bounds:
    node = index.producer.get(name)
    if node is None:
        return code_bounds(index, name)
    if node.op_type == "Cast":
        return code_bounds(index, node.input[0])
    assert node.op_type in ("Add", "Mul"), f"{node.name} computes int32"
    left, right = (wide_bounds(index, item) for item in node.input)
    if node.op_type == "Add":
        return left[0] + right[0], left[1] + right[1]
    ends = [one * other for one in left for other in right]
    return min(ends), max(ends)


def met(operator: str, inputs: list[Array], output: Array, **attributes: Any) -> Met:
    node = helper.make_node(operator, [str(n) for n in range(len(inputs))], ["y"], **attributes)
    return Met(node, tuple(inputs), (output,))


def bytes_of(*values: int) -> Array:
    return np.array(values, np.uint8)


def floats(*values: float) -> Array:
    return np.array(values, np.float32)


@pytest.mark.parametrize(
    "wrong",
    [
        met("BitShift", [bytes_of(0b11), bytes_of(1)], bytes_of(1), direction="RIGHT"),
        met("BitShift", [bytes_of(128), bytes_of(1)], bytes_of(0), direction="LEFT"),
        met("BitShift", [bytes_of(0), bytes_of(8)], bytes_of(0), direction="LEFT"),
        met("Cast", [np.array([256], np.int32)], bytes_of(0), to=TensorProto.UINT8),
        met("Cast", [np.array([-1], np.int32)], bytes_of(255), to=TensorProto.UINT8),
        met("Cast", [np.array([1.5], np.float32)], np.array([1], np.int8), to=TensorProto.INT8),
        met("Add", [np.array([INT32.max], np.int32), np.array([1], np.int32)], np.array([INT32.min], np.int32)),
        met("Mul", [np.array([2**20], np.int32), np.array([2**12], np.int32)], np.array([0], np.int32)),
        met("QuantizeLinear", [floats(np.nan), floats(1), bytes_of(0)], bytes_of(0)),
        met("QuantizeLinear", [floats(1), floats(0), bytes_of(0)], bytes_of(255)),
        met("Clip", [bytes_of(1), bytes_of(9), bytes_of(3)], bytes_of(3)),
        met("Gather", [floats(1, 2), np.array([2])], floats(2)),
        met("Div", [floats(1), floats(0)], floats(np.inf)),
    ],
    ids=lambda item: item.signature,
)
def test_values_that_onnx_leaves_open_are_seen(wrong: Met) -> None:
    assert wrong.signature in TABLE and not wrong.is_defined


def test_an_operator_on_other_types_is_another_row() -> None:
    assert met("Add", [bytes_of(1), bytes_of(2)], bytes_of(3)).signature == "Add(uint8, uint8) -> uint8"
    assert "Add(uint8, uint8) -> uint8" not in TABLE
