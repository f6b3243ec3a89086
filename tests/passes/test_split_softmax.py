"""SplitSoftmax: every probability takes one step, never both, in one product or two."""

from __future__ import annotations

import numpy as np
import pytest

from ptq4vit_onnx.passes import quantize
from ptq4vit_onnx.passes.tensors import Array
from ptq4vit_onnx.plan.quantizers import TwinSoftmax, Uniform
from ptq4vit_onnx.plan.scale_plan import SitePlan
from tests.passes.small_models import Batch, Small

RHS = Uniform(8, (0.03125,))


@pytest.fixture
def x(random: np.random.Generator) -> Array:
    return (random.standard_normal((2, 3, 10, 10)) * 3).astype(np.float32)


def expected(x: Array, twin: TwinSoftmax, rhs: Uniform, small: Small) -> Array:
    probabilities = small.fetch(small.softmax(), x, "attn/Softmax:0")[0]
    return twin.fake_quantize(probabilities) @ rhs.fake_quantize(x[..., :4])


@pytest.mark.parametrize("batch", ["batch", 2])
@pytest.mark.parametrize("bits", [3, 4, 6, 8])
@pytest.mark.parametrize("shift", [0, 1, 2, 3, 5, 8, 11])
def test_the_product_is_that_of_the_twin(shift: int, bits: int, batch: Batch, small: Small, x: Array) -> None:
    twin, rhs = TwinSoftmax(bits, shift), Uniform(bits, (2.0 ** (3 - bits),))
    plan = small.plan({"attn.pv": SitePlan("matmul", "softmax", twin, rhs)})
    quantized, report = quantize(small.softmax(batch), plan)
    one_product = bits - 1 + shift <= 8
    assert report.merged == (("attn.pv",) if one_product else ())
    assert report.products == {"attn.pv": 1 if one_product else 2}
    executed = small.execute(quantized, x)
    products = [name for name in executed.by_name if "/MatMul" in name]
    assert products == ["attn.pv/MatMul"] if one_product else len(products) == 2
    assert {executed.by_name[name] for name in products} == {"MatMulIntegerToFloat"}
    np.testing.assert_allclose(executed.output, expected(x, twin, rhs, small), atol=1e-5)


def test_split_softmax_keeps_every_value_within_half_a_step(small: Small, x: Array) -> None:
    """The double counting of the original code, x + split above the split, would be far outside."""
    twin = TwinSoftmax(8, 4)
    plan = small.plan({"attn.pv": SitePlan("matmul", "softmax", twin, RHS)})
    quantized, _ = quantize(small.softmax(), plan)
    ends = [f"attn.pv/{side}/DequantizeLinear.out" for side in ("lhs", "lhs.coarse")]
    fine, coarse = small.fetch(quantized, x, *ends)
    probabilities = small.fetch(small.softmax(), x, "attn/Softmax:0")[0]
    assert not ((fine != 0) & (coarse != 0)).any()
    step = np.where(probabilities < twin.split, twin.fine, twin.coarse)
    inside = (probabilities < (twin.high + 0.5) * step) & (probabilities < 1 - twin.coarse)
    assert inside.mean() > 0.9 and (probabilities >= twin.split).any() and (probabilities < twin.split).any()
    assert (np.abs(fine + coarse - probabilities) <= step / 2 + 1e-7)[inside].all()


def test_the_split_itself_is_coarse_and_what_lies_below_is_fine(small: Small) -> None:
    """Two equal scores give probabilities of exactly 1/2, which is the split, three give 1/3."""
    twin = TwinSoftmax(6, 1)
    assert twin.split == 0.5
    x = np.full((1, 3, 10, 10), -1e9, np.float32)
    x[..., :5, :2] = x[..., 5:, :3] = 0
    model, _ = quantize(small.softmax(), small.plan({"attn.pv": SitePlan("matmul", "softmax", twin, RHS)}))
    fine, coarse = small.fetch(model, x, "attn.pv/lhs/QuantizeLinear.out", "attn.pv/lhs.coarse/Clip.out", kind=np.uint8)
    assert (coarse[..., :5, :2] == 16).all() and not fine[..., :5, :].any()
    assert (fine[..., 5:, :3] == 21).all() and not coarse[..., 5:, :].any()


@pytest.mark.parametrize("shift", [5, 6, 7])
def test_a_coarse_branch_reads_all_probabilities_where_the_split_is_within_half_its_step(
    shift: int, small: Small, random: np.random.Generator
) -> None:
    twin = TwinSoftmax(6, shift)
    quantized, report = quantize(small.softmax(), small.plan({"attn.pv": SitePlan("matmul", "softmax", twin, RHS)}))
    assert report.operations_after["ThresholdedRelu"] == report.operations_after["Sub"] == 1
    reader = next(node for node in quantized.graph.node if node.name == "attn.pv/lhs.coarse/QuantizeLinear")
    assert ("ThresholdedRelu" in reader.input[0]) == (shift < 6)
    scores = np.log(random.uniform(0, 4 * twin.split, (2, 3, 10, 10))).astype(np.float32)
    scores[..., -1] = 0  # takes nearly all, so that the others lie around the split
    probabilities = small.fetch(small.softmax(), scores, "attn/Softmax:0")[0]
    fine, coarse = small.fetch(quantized, scores, "attn.pv/lhs/Clip.out", "attn.pv/lhs.coarse/Clip.out", kind=np.uint8)
    assert (probabilities < twin.split).any() and (probabilities[..., :-1] >= twin.split).any()
    assert all((held == wanted).all() for held, wanted in zip((fine, coarse), twin.units(probabilities), strict=True))


def test_operation_counts_before_and_after(small: Small) -> None:
    plan = small.plan({"attn.pv": SitePlan("matmul", "softmax", TwinSoftmax(8, 4), RHS)})
    _, report = quantize(small.softmax(), plan)
    assert report.operations_before == {"Softmax": 1, "Slice": 1, "MatMul": 1}
    assert report.operations_after == {
        **{"Softmax": 1, "Slice": 1, "MatMul": 2, "QuantizeLinear": 3, "DequantizeLinear": 3, "Clip": 2},
        **{"ThresholdedRelu": 1, "Sub": 1, "BitwiseXor": 1, "Cast": 1, "Add": 1},  # BitwiseXor and Cast: V as int8
    }
