"""quantize() against codes, scales, biases, operators and logits that were derived without any of the product's code.

Codes, the proof and the simulator all take their weights from `ship_weight`: a mistake there would prove itself.
"""

from __future__ import annotations

import ast
import json
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import numpy_helper

from ptq4vit_onnx.passes import quantize
from ptq4vit_onnx.plan import saturation_safe_weights
from ptq4vit_onnx.plan.plan_json import read_plan
from tests.golden import derive

CASES = derive.cases()
ROUNDINGS = 8  # of float32 between the integer product and the output: scales, scaling, additions
Array = np.ndarray[Any, Any]
Ship = Callable[..., tuple[Array, int]]


def stored(case: str) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((derive.FOLDER / f"{case}.expected.json").read_text(encoding="utf-8"))
    return data


def operators(case: str) -> dict[str, int]:
    data: dict[str, int] = json.loads((derive.FOLDER / "operators.json").read_text(encoding="utf-8"))[case]
    return data


def quantised(case: str) -> tuple[Any, Any]:
    """The quantised model, and the report of the passes."""
    return quantize(derive.model_of(case), read_plan(derive.FOLDER / f"{case}.plan.json"))


class Reader:
    """Looks up what a quantised graph holds, by the names of its nodes."""

    def __init__(self, model: Any) -> None:
        self.nodes = {node.name: node for node in model.graph.node}
        self.maker = {output: node for node in model.graph.node for output in node.output}
        self.constants = {item.name: numpy_helper.to_array(item) for item in model.graph.initializer}

    def weight(self, product: str, bits: int, shape: tuple[int, ...]) -> tuple[Array, Array]:
        """Codes [inputs, outputs] and scale of the weight that a product reads through its DequantizeLinear."""
        dequantize = self.maker[self.nodes[product].input[1]]
        zero = self.constants[dequantize.input[2]] if len(dequantize.input) > 2 else np.zeros(1)
        assert dequantize.op_type == "DequantizeLinear" and (zero == (0 if bits == 8 else 2 ** (bits - 1))).all()
        plain = self.constants.get(dequantize.input[0])
        assert (plain is None) == (bits < 8), "weights of eight bits are stored as they are, others packed"
        codes = self.unpack(product.replace("/MatMul", ""), bits, shape) if plain is None else plain
        return codes, self.constants[dequantize.input[1]]

    def unpack(self, name: str, bits: int, shape: tuple[int, ...]) -> Array:
        """Codes of four bits: two halves, in the lower and in the higher bits of each byte. Of six: three quarters in
        the lower bits of three arrays of bytes; their highest two are the bits of the last quarter, the lowest first.
        """
        stored = [item.reshape(-1).astype(np.int64) for item in self.bytes_of(name)]
        if bits == 4:
            parts = [stored[0] & 15, stored[0] >> 4]
        else:
            assert bits == 6
            parts = [
                *(item & 63 for item in stored),
                np.sum([item >> 6 << 2 * place for place, item in enumerate(stored)], axis=0),
            ]
        codes: Array = np.concatenate(parts).reshape(shape) - 2 ** (bits - 1)
        return codes

    def bytes_of(self, name: str) -> list[Array]:
        return [self.constants[key] for number in range(8) if (key := f"{name}/weight/byte{number}") in self.constants]

    def parameters(self, node: str) -> list[Array]:
        return [self.constants[name].reshape(-1) for name in self.nodes[node].input if name in self.constants]


def compare(case: str) -> None:
    """Everything that is expected of the file, and nothing it holds is another."""
    expected = stored(case)
    model, report = quantised(case)
    found = Reader(model)
    for product, weight in expected["weights"].items():
        codes = np.asarray(weight["codes"])
        shipped, scale = found.weight(product, weight["bits"], codes.shape)
        np.testing.assert_array_equal(shipped, codes, err_msg=product)
        np.testing.assert_array_equal(scale, np.asarray(weight["scale"], np.float32), err_msg=product)
        assert shipped.dtype in (np.int8, np.int64) and scale.dtype == np.float32
    for node, values in expected["parameters"].items():
        wanted = np.asarray(values, np.float32).reshape(-1)
        np.testing.assert_array_equal(np.concatenate(found.parameters(node)), wanted, err_msg=node)
    assert dict(report.moved_weights) == expected["moved"]
    assert Counter(node.op_type for node in model.graph.node) == operators(case)


@pytest.mark.parametrize("case", CASES)
def test_codes_scales_biases_and_operators_are_those_derived_without_the_product(case: str) -> None:
    compare(case)


@pytest.mark.parametrize("level", ["ORT_DISABLE_ALL", "ORT_ENABLE_ALL"])
@pytest.mark.parametrize("case", CASES)
def test_logits_are_those_of_integer_arithmetic_to_the_rounding_of_float32(case: str, level: str) -> None:
    model, expected = quantised(case)[0], stored(case)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    runner = onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
    (output,) = runner.run(None, {"x": derive.input_of(derive.model_of(case))})
    error = np.abs(output - np.asarray(expected["output"]))
    assert output.shape == error.shape
    assert (error <= ROUNDINGS * 2.0**-24 * np.asarray(expected["size"])).all(), error.max()


@pytest.mark.parametrize("case", CASES)
def test_the_stored_numbers_are_what_the_derivation_gives(case: str) -> None:
    expected, derived = stored(case), derive.derive(case)
    for what in ("weights", "parameters", "moved"):
        assert derived[what] == expected[what]
    for what in ("output", "size"):  # exp and erf may differ in the last bit of float64 from machine to machine
        np.testing.assert_allclose(derived[what], expected[what], rtol=1e-12, atol=1e-12)


def test_the_derivation_imports_nothing_of_the_product() -> None:
    tree = ast.parse(Path(derive.__file__).read_text(encoding="utf-8"))
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    tops = {name.partition(".")[0] for name in names}
    assert {top for top in tops if top not in sys.stdlib_module_names} == {"numpy", "onnx"}


# Each mistake that `ship_weight` could make is seen.


def towards_zero(ship: Ship, weight: Array, lhs: Any, rhs: Any) -> tuple[Array, int]:
    """Codes are cut off, not rounded."""
    scales = np.repeat(np.asarray(rhs.scale), weight.shape[1] // len(rhs.scale))
    return np.trunc(weight / scales).clip(rhs.low, rhs.high).astype(np.int8), ship(weight, lhs, rhs)[1]


def ties_up(ship: Ship, weight: Array, lhs: Any, rhs: Any) -> tuple[Array, int]:
    """Half is rounded up."""
    scales = np.repeat(np.asarray(rhs.scale), weight.shape[1] // len(rhs.scale))
    return ship((np.floor(weight / scales + 0.5) * scales).astype(np.float32), lhs, rhs)


def one_more(ship: Ship, weight: Array, lhs: Any, rhs: Any) -> tuple[Array, int]:
    """The smallest code is off by one."""
    codes, moved = ship(weight, lhs, rhs)
    codes[np.unravel_index(codes.argmin(), codes.shape)] += 1
    return codes, moved


def unsafe(ship: Ship, weight: Array, lhs: Any, rhs: Any) -> tuple[Array, int]:
    """Pairs are left as they are; the number of moved codes is the right one."""
    return rhs.codes(weight).astype(np.int8), ship(weight, lhs, rhs)[1]


def second_gives_more(ship: Ship, weight: Array, lhs: Any, rhs: Any) -> tuple[Array, int]:
    """The odd one of an excess is taken from the second of a pair; the number of moved codes is the right one."""
    even = len(weight) // 2 * 2
    swapped = np.concatenate(
        [np.flip(weight[:even].reshape(-1, 2, weight.shape[1]), 1).reshape(even, -1), weight[even:]]
    )
    codes = ship(swapped, lhs, rhs)[0]
    back = np.flip(codes[:even].reshape(-1, 2, codes.shape[1]), 1).reshape(even, -1)
    return np.concatenate([back, codes[even:]]), ship(weight, lhs, rhs)[1]


def groups_in_turns(ship: Ship, weight: Array, lhs: Any, rhs: Any) -> tuple[Array, int]:
    """Scales of groups are given to the columns in turns."""
    columns, groups = weight.shape[1], len(rhs.scale)
    order = np.argsort(np.arange(columns) % groups, kind="stable")
    codes = np.empty(weight.shape, np.int8)
    codes[:, order] = ship(np.ascontiguousarray(weight[:, order]), lhs, rhs)[0]
    return codes, ship(weight, lhs, rhs)[1]


PAIRS = ["linear_w8a8", "outliers_w8a8", "folded_w8a8", "attention_w8a8_two_products", "patches_w8a8"]
TIES = ["linear_w8a8", "linear_w8a6", "outliers_w8a8", "folded_w8a8"]
ODD = ["linear_w8a8", "folded_w8a8", "attention_w8a8_one_product"]
MISTAKES: list[tuple[Callable[..., tuple[Array, int]], list[str]]] = [
    (one_more, CASES),
    (towards_zero, CASES),
    (ties_up, TIES),
    (unsafe, PAIRS),
    (second_gives_more, ODD),
    (groups_in_turns, ["attention_w8a8_one_product", "attention_w4a4"]),
]


@pytest.mark.parametrize(
    ("mistake", "case"),
    [pytest.param(mistake, case, id=f"{mistake.__name__}-{case}") for mistake, where in MISTAKES for case in where],
)
def test_a_mistake_in_the_codes_that_ship_is_seen(
    mistake: Callable[..., tuple[Array, int]], case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = saturation_safe_weights.ship_weight
    asked: list[Any] = []

    def wrong(weight: Array, lhs: Any, rhs: Any) -> tuple[Array, int]:
        asked.append(rhs)
        return mistake(right, weight, lhs, rhs)

    for name, module in list(sys.modules.items()):
        if name.startswith("ptq4vit_onnx.") and getattr(module, "ship_weight", None) is right:
            monkeypatch.setattr(module, "ship_weight", wrong)
    with pytest.raises(AssertionError, match="MatMul"):
        compare(case)
    assert asked
