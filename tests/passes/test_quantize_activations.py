"""QuantizeActivations: the codes of the plan, no more bits than the plan, integer kernels."""

from __future__ import annotations

import numpy as np
import pytest

from ptq4vit_onnx.passes import PassError, quantize
from ptq4vit_onnx.passes.tensors import Array
from ptq4vit_onnx.plan.quantizers import Affine, Uniform, as_float32
from ptq4vit_onnx.plan.scale_plan import SitePlan
from tests.passes.small_models import Batch, Small

RHS = Uniform(8, (0.015625,))


@pytest.fixture
def x(random: np.random.Generator) -> Array:
    return random.standard_normal((2, 5, 12)).astype(np.float32)


def lhs_quantizers() -> list[Uniform | Affine]:
    symmetric: list[Uniform | Affine] = [Uniform(bits, (2.0 ** (2 - bits),)) for bits in range(2, 9)]
    return symmetric + [Affine(bits, (2.0 ** (2 - bits),), (2 ** (bits - 2),)) for bits in range(2, 9)]


@pytest.mark.parametrize("batch", ["batch", 2])
@pytest.mark.parametrize("lhs", lhs_quantizers(), ids=lambda lhs: f"{type(lhs).__name__}{lhs.bits}")
def test_a_linear_computes_the_plan_at_every_width(lhs: Uniform | Affine, batch: Batch, small: Small, x: Array) -> None:
    model = small.linear(batch)
    x = x * 3
    assert (x.max() > (lhs.high + 1) * lhs.scale[0]) and (lhs.codes(x) == lhs.low).any()  # both clips are needed
    quantized, _ = quantize(model, small.plan({"fc": SitePlan("linear", "other", lhs, RHS)}))
    executed = small.execute(quantized, x)
    expected = small.fake_linear(x, small.weight(model, "fc.weight"), lhs, RHS) + small.weight(model, "fc.bias")
    np.testing.assert_allclose(executed.output, expected, atol=1e-5)
    assert executed.by_name["fc/MatMul"] == "MatMulIntegerToFloat"
    assert executed.operations["DequantizeLinear"] == 0


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("heads", [1, 3])
def test_sides_that_are_not_moved_data_are_quantised_in_place(heads: int, bits: int, small: Small, x: Array) -> None:
    model = small.attention(normalise_query=True)
    plan = small.attention_plan(model, x, bits, heads)
    quantized, report = quantize(model, plan)
    assert report.places["FoldHeadScales"] == 0 and report.places["QuantizeActivations"] == 6
    executed = small.execute(quantized, x)
    kernels = [executed.by_name[f"{site}/MatMul"] for site in plan.sites]
    assert set(kernels) <= {"MatMulIntegerToFloat", "QLinearMatMul"}
    np.testing.assert_allclose(executed.output, small.fake_attention(model, x, plan), atol=1e-4)


def test_probabilities_that_cannot_reach_the_top_code_are_not_clipped(small: Small) -> None:
    def clips(scale: float) -> int:
        plan = SitePlan("matmul", "softmax", Uniform(8, (scale,)), Uniform(8, (0.03125,)))
        return sum(
            node.op_type == "Clip" for node in quantize(small.softmax(), small.plan({"attn.pv": plan}))[0].graph.node
        )

    assert clips(2.0**-6) == 0  # 1 is code 64
    assert clips(2.0**-7) == 1  # 1 would be code 128, the plan ends at 127


def test_quantize_activations_refuses_scales_along_another_axis(small: Small) -> None:
    rhs = Uniform(8, (0.03125, 0.0625), axis=-1)
    plan = SitePlan("matmul", "softmax", Uniform(8, (0.03125,)), rhs)
    with pytest.raises(PassError, match=r"site attn\.pv, node attn\.pv/MatMul: several scales must be one per head"):
        quantize(small.softmax(), small.plan({"attn.pv": plan}))


def test_probabilities_in_units_of_their_heads_are_clipped(small: Small) -> None:
    """Divided by a head's scale a probability exceeds 1: the highest code must still hold."""
    model = small.attention()
    x = np.random.default_rng(3).standard_normal((2, 5, 12)).astype(np.float32) * 4
    scales = tuple(as_float32(value) for value in (0.001, 0.002, 0.004))
    plan = small.attention_plan(model, x, 8, 3, lhs=Uniform(8, scales, -3))
    output = small.execute(quantize(model, plan)[0], x).output
    np.testing.assert_allclose(output, small.fake_attention(model, x, plan), atol=1e-4)
