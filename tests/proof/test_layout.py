"""Read from a file: which twins are one product, and which products return codes. Logits hardly show either, a last bit
is mostly rounded away behind it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ptq4vit_onnx.passes import quantize
from ptq4vit_onnx.plan.plan_json import read_plan
from ptq4vit_onnx.proof.layout import layout_of
from tests.golden import derive


@pytest.mark.parametrize(
    ("case", "merged"),
    [
        ("attention_w8a8_one_product", True),
        ("attention_w8a8_two_products", False),
        ("gelu_w4a4_one_product", True),
        ("gelu_w8a8_two_products", False),
        ("linear_w8a8", False),
    ],
)
def test_twins_that_are_one_product_are_those_the_passes_merged(case: str, merged: bool) -> None:
    plan = read_plan(derive.FOLDER / f"{case}.plan.json")
    model, report = quantize(derive.model_of(case), plan)
    found = layout_of(model, plan).merged
    assert found == set(report.merged) and bool(found) == merged


def test_a_product_that_returns_codes_is_told_with_their_scale(linear: Callable[..., Any]) -> None:
    small = linear(requantised=True, bias_shape=None)
    assert layout_of(small.model, small.plan).requantised == {"fc": float(np.float32(0.05))}
    assert layout_of(small.model, replace(small.plan, sites={})).requantised == {}


def test_a_product_that_returns_floats_is_not_told(linear: Callable[..., Any]) -> None:
    small = linear(requantised=False, bias_shape=None)
    assert layout_of(small.model, small.plan).requantised == {}
    shown = linear(requantised=True, bias_shape=None)
    product = next(node for node in shown.model.graph.node if node.name == "fc/MatMul")
    shown.model.graph.output.add().name = product.output[0]
    assert layout_of(shown.model, shown.plan).requantised == {}
