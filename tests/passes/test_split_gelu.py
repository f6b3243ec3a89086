"""SplitGelu: negatives take the fine step, positives the coarse one, in one product or two."""

from __future__ import annotations

import numpy as np
import pytest

from ptq4vit_onnx.passes import quantize
from ptq4vit_onnx.passes.tensors import Array
from ptq4vit_onnx.passes.twin_codes import fine_bytes, gelu_bytes
from ptq4vit_onnx.plan.quantizers import TwinGelu, Uniform, as_float32
from ptq4vit_onnx.plan.saturation_safe_weights import saturating_pairs
from ptq4vit_onnx.plan.scale_plan import ScalePlan, SitePlan
from tests.passes.small_models import Batch, Small


@pytest.fixture
def x(random: np.random.Generator) -> Array:
    return (random.standard_normal((2, 5, 24)) * 2).astype(np.float32)


def planned(small: Small, twin: TwinGelu, rhs: Uniform) -> ScalePlan:
    return small.plan({"mlp.fc2": SitePlan("linear", "gelu", twin, rhs)})


@pytest.mark.parametrize("batch", ["batch", 2])
@pytest.mark.parametrize("bits", [3, 4, 6, 8])
@pytest.mark.parametrize("shift", [0, 1, 2, 4, 6])
def test_the_product_is_that_of_the_twin(shift: int, bits: int, batch: Batch, small: Small, x: Array) -> None:
    model = small.gelu(batch)
    twin, rhs = TwinGelu(bits, 2.0 ** (2 - bits), shift), Uniform(6, (0.03125,))
    quantized, report = quantize(model, planned(small, twin, rhs))
    one_product = twin.high + twin.high * 2**shift <= 255
    assert report.merged == (("mlp.fc2",) if one_product else ())
    executed = small.execute(quantized, x)
    products = [name for name in executed.by_name if "/MatMul" in name]
    assert products == ["mlp.fc2/MatMul"] if one_product else len(products) == 2
    assert {executed.by_name[name] for name in products} == {"MatMulIntegerToFloat"}
    hidden = small.fetch(model, x, "mlp.act/Gelu:0")[0]
    assert (hidden / twin.coarse).max() > twin.high  # the positives' clip is needed
    expected = small.fake_linear(hidden, small.weight(model, "mlp.fc2.weight"), twin, rhs)
    np.testing.assert_allclose(executed.output, expected + small.weight(model, "mlp.fc2.bias"), atol=1e-5)


def test_split_gelu_keeps_every_value_within_half_a_step(small: Small, x: Array) -> None:
    twin = TwinGelu.covering_negatives(8, 2.0**-4)
    quantized, _ = quantize(small.gelu(), planned(small, twin, Uniform(8, (0.0078125,))))
    ends = [f"mlp.fc2/{side}/DequantizeLinear.out" for side in ("lhs", "lhs.coarse")]
    fine, coarse = small.fetch(quantized, x, *ends)
    hidden = small.fetch(small.gelu(), x, "mlp.act/Gelu:0")[0]
    assert (fine <= 0).all() and (coarse >= 0).all() and not ((fine != 0) & (coarse != 0)).any()
    step = np.where(hidden < 0, twin.fine, twin.coarse)
    assert (np.abs(fine + coarse - hidden) <= step / 2 + 1e-7).all()


def test_eight_bit_weights_that_the_merged_codes_could_saturate_keep_two_products(small: Small, x: Array) -> None:
    """Weights are pair-safe for codes up to 7 at four bits; the merged codes reach 119."""
    twin, rhs = TwinGelu(4, 0.25, 4), Uniform(8, (2.0**-12,))
    quantized, report = quantize(small.gelu(), planned(small, twin, rhs))
    assert report.merged == ("mlp.fc2",)
    wide = TwinGelu(5, 0.25, 3)
    quantized, report = quantize(small.gelu(), planned(small, wide, rhs))
    assert report.merged == () and report.products == {"mlp.fc2": 2}
    hidden = small.fetch(small.gelu(), x, "mlp.act/Gelu:0")[0]
    expected = small.fake_linear(hidden, small.weight(small.gelu(), "mlp.fc2.weight"), wide, rhs)
    output = small.execute(quantized, x).output
    np.testing.assert_allclose(output, expected + small.weight(small.gelu(), "mlp.fc2.bias"), atol=1e-5)


def test_operation_counts_before_and_after(small: Small) -> None:
    _, report = quantize(small.gelu(), planned(small, TwinGelu(8, 0.0625, 5), Uniform(8, (0.03125,))))
    assert report.operations_before == {"Gelu": 1, "MatMul": 1, "Add": 1}
    added = {"LeakyRelu": 1, "Clip": 2, "BitwiseXor": 1, "QuantizeLinear": 1, "DequantizeLinear": 3}
    assert report.operations_after == {"Gelu": 1, "MatMul": 2, "Add": 2, **added}


@pytest.mark.parametrize("bits", [3, 6, 8])
@pytest.mark.parametrize("scale", [2.0**-12, 2.0**-5, 0.013])
def test_the_codes_are_the_quantizers_also_where_it_does_not_cover_the_negatives(
    scale: float, bits: int, small: Small, x: Array
) -> None:
    twin = TwinGelu.covering_negatives(bits, as_float32(scale))
    quantized, _ = quantize(small.gelu(), planned(small, twin, Uniform(8, (0.0078125,))))
    hidden = small.fetch(small.gelu(), x, "mlp.act/Gelu:0")[0]
    fine, coarse = twin.units(hidden)
    made = {name for node in quantized.graph.node for name in node.output}
    ends = [f"mlp.fc2/lhs.coarse/{last}.out" for last in ("BitwiseXor", "Clip", "QuantizeLinear")]
    coarse_codes = next(name for name in ends if name in made)
    held_fine, held_coarse = small.fetch(quantized, x, "mlp.fc2/lhs/Clip.out", coarse_codes, kind=np.uint8)
    assert (held_coarse == coarse).all()
    assert (held_fine.astype(int) - fine_bytes(twin).zero == fine).all()


def test_bytes_of_128_overflow_with_no_weights() -> None:
    assert gelu_bytes(TwinGelu.covering_negatives(8, 0.0625)).zero == 128
    for first in (-128, 127):
        weights = np.array([[first], [first]], np.int8)
        assert saturating_pairs(weights, 128) == 0 and saturating_pairs(weights, 130) == 1
