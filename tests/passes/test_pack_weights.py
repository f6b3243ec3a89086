"""PackWeights: k bits take k bits on disk, and unpack to the same codes."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import numpy_helper

from ptq4vit_onnx.passes import quantize
from ptq4vit_onnx.passes.pack_weights import pack_plane
from ptq4vit_onnx.plan.quantizers import Uniform
from ptq4vit_onnx.plan.scale_plan import ScalePlan, SitePlan
from tests.passes.small_models import Batch, Small

LHS = Uniform(8, (0.03125,))


def planned(small: Small, bits: int) -> ScalePlan:
    return small.plan({"fc": SitePlan("linear", "other", LHS, Uniform(bits, (2.0 ** (1 - bits),)))})


@pytest.mark.parametrize("batch", ["batch", 2])
@pytest.mark.parametrize("bits", range(2, 9))
def test_packed_weights_compute_the_plan(bits: int, batch: Batch, small: Small, random: np.random.Generator) -> None:
    model, x = small.linear(batch, outputs=7), random.standard_normal((2, 5, 12)).astype(np.float32)
    plan = planned(small, bits)
    quantized, _ = quantize(model, plan)
    executed = small.execute(quantized, x)
    rhs = plan.sites["fc"].rhs
    expected = small.fake_linear(x, small.weight(model, "fc.weight"), LHS, rhs) + small.weight(model, "fc.bias")
    np.testing.assert_allclose(executed.output, expected, atol=1e-5)
    np.testing.assert_allclose(small.reference(quantized, x), expected, atol=1e-5)
    assert executed.operations == {"QuantizeLinear": 1, "MatMulIntegerToFloat": 1, "Add": 1}


@pytest.mark.parametrize("bits", range(2, 8))
def test_a_weight_of_k_bits_takes_k_bits(bits: int, small: Small) -> None:
    quantized, _ = quantize(small.linear(inputs=64, outputs=32), planned(small, bits))
    planes = [item for item in quantized.graph.initializer if item.name.startswith("fc/weight/plane")]
    assert sum(numpy_helper.to_array(item).nbytes for item in planes) * 8 == 64 * 32 * bits
    assert all(numpy_helper.to_array(item).nbytes < 64 * 32 / 2 + 1 for item in quantized.graph.initializer)


@pytest.mark.parametrize("width", [1, 2, 4])
@pytest.mark.parametrize("count", [8, 15, 64])
def test_a_plane_can_be_unpacked_by_shifting(width: int, count: int, random: np.random.Generator) -> None:
    codes = random.integers(0, 128, count).astype(np.uint8)
    plane = pack_plane(codes, 2, width)
    parts = [plane >> (part * width) & (2**width - 1) for part in range(8 // width)]
    assert np.array_equal(np.concatenate(parts)[:count], codes >> 2 & (2**width - 1))


def test_eight_bits_are_not_packed(small: Small) -> None:
    _, report = quantize(small.linear(), planned(small, 8))
    assert report.places["PackWeights"] == 0
