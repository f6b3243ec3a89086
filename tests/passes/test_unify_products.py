"""UnifyProducts gives every linear the form MatMul, Add, of rank three."""

from __future__ import annotations

import numpy as np
import pytest

from ptq4vit_onnx.passes import PassError, quantize
from ptq4vit_onnx.plan.quantizers import Uniform
from ptq4vit_onnx.plan.scale_plan import SitePlan
from tests.passes.small_models import Batch, Small

PLAN = SitePlan("linear", "other", Uniform(8, (0.03125,)), Uniform(8, (0.03125,)))


def test_unify_products_turns_a_gemm_into_matmul_and_add(small: Small, random: np.random.Generator) -> None:
    model, x = small.gemm(), random.standard_normal((3, 12)).astype(np.float32)
    work = small.run_until(model, small.plan({"head": PLAN}), "UnifyProducts")
    exported = small.export(work)
    assert [node.op_type for node in exported.graph.node] == ["Unsqueeze", "MatMul", "Add", "Squeeze"]
    np.testing.assert_allclose(small.fetch(exported, x)[0], small.fetch(model, x)[0], atol=1e-5)


@pytest.mark.parametrize("batch", ["batch", 3])
def test_a_gemm_runs_in_integers(batch: Batch, small: Small, random: np.random.Generator) -> None:
    model, x = small.gemm(batch), random.standard_normal((3, 12)).astype(np.float32)
    executed = small.execute(quantize(model, small.plan({"head": PLAN}))[0], x)
    assert executed.by_name["head/MatMul"] == "MatMulIntegerToFloat"
    expected = small.fake_linear(x, small.weight(model, "head.weight").T, PLAN.lhs, PLAN.rhs)
    np.testing.assert_allclose(executed.output, expected + small.weight(model, "head.bias"), atol=1e-5)


def test_unify_products_leaves_a_matmul_of_rank_three_alone(small: Small) -> None:
    work = small.run_until(small.linear(), small.plan({"fc": PLAN}), "UnifyProducts")
    assert [node.op for node in work.graph.nodes] == ["MatMul", "Add"]


def test_unify_products_refuses_a_right_side_that_is_computed(small: Small) -> None:
    with pytest.raises(PassError, match=r"site attn\.pv, node attn\.pv/MatMul: the right side of a linear"):
        quantize(small.softmax(), small.plan({"attn.pv": PLAN}))


def test_unify_products_refuses_a_weight_of_three_axes(small: Small) -> None:
    model = small.linear()
    model.graph.initializer[0].dims.insert(0, 1)
    with pytest.raises(
        PassError, match=r"site fc, node fc/MatMul: expected a weight of two axes, got shape \[1, 12, 8\]"
    ):
        quantize(model, small.plan({"fc": PLAN}))


def test_unify_products_refuses_a_gemm_with_factors(small: Small) -> None:
    model = small.gemm()
    model.graph.node[0].attribute.add(name="alpha", type=1, f=0.5)
    with pytest.raises(PassError, match="expected a plain Gemm"):
        quantize(model, small.plan({"head": PLAN}))
