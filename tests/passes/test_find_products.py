"""FindProducts binds sites to nodes, and refuses models and plans that do not belong together."""

from __future__ import annotations

import numpy as np
import pytest

from ptq4vit_onnx.errors import UserError
from ptq4vit_onnx.passes import quantize
from ptq4vit_onnx.plan.quantizers import TwinGelu, TwinSoftmax, Uniform
from ptq4vit_onnx.plan.scale_plan import Outliers, SitePlan
from tests.passes.small_models import Small

EIGHT = Uniform(8, (0.5,))


def test_find_products_binds_each_site_to_its_node(small: Small) -> None:
    plan = small.plan({"fc": SitePlan("linear", "other", EIGHT, EIGHT)})
    work = small.run_until(small.linear(), plan, "FindProducts")
    assert [(item.site, item.node.name, item.has_weight) for item in work.products] == [("fc", "fc/MatMul", True)]


def test_find_products_refuses_a_site_the_model_does_not_have(small: Small) -> None:
    plan = small.plan({"blocks.3.fc": SitePlan("linear", "other", EIGHT, EIGHT)})
    with pytest.raises(UserError, match=r"no product for the plan's site blocks\.3\.fc: expected one node"):
        quantize(small.linear(), plan)


def test_find_products_refuses_a_model_that_is_already_quantised(small: Small) -> None:
    plan = small.plan({"fc": SitePlan("linear", "other", EIGHT, EIGHT)})
    once, _ = quantize(small.linear(), plan)
    with pytest.raises(UserError, match=r"already quantised: it holds (De)?[qQ]uantizeLinear 'fc/"):
        quantize(once, plan)


def test_find_products_refuses_operations_outside_the_default_domain(small: Small) -> None:
    model = small.linear()
    model.graph.node[0].domain = "com.microsoft"
    model.opset_import.add(domain="com.microsoft", version=1)
    plan = small.plan({"fc": SitePlan("linear", "other", EIGHT, EIGHT)})
    with pytest.raises(UserError, match=r"'fc/MatMul' is com\.microsoft\.MatMul"):
        quantize(model, plan)


@pytest.mark.parametrize(
    ("plan", "problem"),
    [
        (SitePlan("linear", "other", TwinGelu(8, 0.5, 3), EIGHT), "TwinGelu needs a left side out of gelu"),
        (
            SitePlan("linear", "gelu", TwinSoftmax(8, 3), EIGHT),
            "TwinSoftmax needs a left side out of softmax",
        ),
        (SitePlan("linear", "other", Uniform(8, (0.5, 0.25)), EIGHT), "lhs has several scales"),
        (
            SitePlan("matmul", "other", EIGHT, EIGHT, Outliers((1,), EIGHT, EIGHT)),
            "outliers are for linear sites",
        ),
    ],
)
def test_find_products_refuses_plans_without_meaning(plan: SitePlan, problem: str, small: Small) -> None:
    with pytest.raises(UserError, match=problem):
        quantize(small.linear(), small.plan({"fc": plan}))


def test_the_float_model_is_not_changed(small: Small) -> None:
    model = small.linear()
    before = model.SerializeToString()
    quantize(model, small.plan({"fc": SitePlan("linear", "other", EIGHT, EIGHT)}))
    assert model.SerializeToString() == before
    assert np.array_equal(small.weight(model, "fc.weight").shape, (12, 8))
