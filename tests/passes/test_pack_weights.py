"""PackWeights: k bits take k bits on disk, and unpack to the same codes."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import numpy_helper

from ptq4vit_onnx.passes import quantize
from ptq4vit_onnx.passes.pack_weights import layout_of, pack
from ptq4vit_onnx.plan.file_layout import Target
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
@pytest.mark.parametrize("inputs", [64, 63, 1])
def test_a_weight_of_k_bits_takes_k_bits(bits: int, inputs: int, small: Small) -> None:
    quantized, _ = quantize(small.linear(inputs=inputs, outputs=32), planned(small, bits))
    stored = [item for item in quantized.graph.initializer if item.name.startswith("fc/weight/byte")]
    assert sum(numpy_helper.to_array(item).nbytes for item in stored) * 8 == inputs * 32 * bits
    assert all(numpy_helper.to_array(item).nbytes <= inputs * 32 / 2 for item in stored)


@pytest.mark.parametrize("bits", range(2, 8))
def test_every_bit_of_every_byte_belongs_to_one_code(bits: int) -> None:
    layout = layout_of(bits)
    places = [(piece.byte, piece.at + bit) for code in layout for piece in code for bit in range(piece.width)]
    assert sorted(places) == [(byte, bit) for byte in range(len(layout) * bits // 8) for bit in range(8)]
    for code in layout:
        assert sorted(piece.to + bit for piece in code for bit in range(piece.width)) == list(range(bits))


@pytest.mark.parametrize("bits", range(2, 8))
@pytest.mark.parametrize("shape", [(16, 3), (5, 3), (1, 1)])
def test_the_pieces_of_all_bytes_are_the_codes(bits: int, shape: tuple[int, int], random: np.random.Generator) -> None:
    codes = random.integers(0, 2**bits, shape).astype(np.uint8)
    stored = [item.astype(int) for item in pack(codes, bits)]
    found = [
        sum((stored[piece.byte] >> piece.at & (2**piece.width - 1)) << piece.to for piece in code)
        for code in layout_of(bits)
    ]
    assert np.array_equal(np.concatenate([np.ravel(item) for item in found])[: codes.size], codes.ravel())


@pytest.mark.parametrize("bits", range(2, 8))
def test_raw_codes_are_used_only_where_two_of_them_cannot_saturate(bits: int, small: Small) -> None:
    quantized, _ = quantize(small.linear(), planned(small, bits))
    (dequantize,) = [node for node in quantized.graph.node if node.name == "fc/weight/DequantizeLinear"]
    assert (len(dequantize.input) == 3) == (255 * 2 * (2**bits - 1) < 2**15)


@pytest.mark.parametrize("target", ["onnxruntime", "openvino"])
@pytest.mark.parametrize("bits", range(2, 8))
def test_both_targets_unpack_the_same_codes(
    bits: int, target: Target, small: Small, random: np.random.Generator
) -> None:
    model, x = small.linear(outputs=7), random.standard_normal((2, 5, 12)).astype(np.float32)
    plan = planned(small, bits)
    expected = quantize(model, plan)[0]
    found = quantize(model, plan, target=target)[0]
    assert np.array_equal(small.execute(found, x).output, small.execute(expected, x).output)
    assert np.array_equal(small.reference(found, x), small.reference(expected, x))


def test_eight_bits_are_not_packed(small: Small) -> None:
    _, report = quantize(small.linear(), planned(small, 8))
    assert report.places["PackWeights"] == 0
