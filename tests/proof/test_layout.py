"""Read from a file: which twins are one product. Logits hardly show it, a last bit is mostly rounded away behind it."""

from __future__ import annotations

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
