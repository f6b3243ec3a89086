"""quantize(): the whole line of passes on small models."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest

from ptq4vit_onnx.passes import quantize
from ptq4vit_onnx.passes.tensors import Array
from ptq4vit_onnx.plan.plan_json import fingerprint
from ptq4vit_onnx.plan.quantizers import Affine, Quantizer, TwinSoftmax
from tests.passes.small_models import Small


@pytest.fixture
def x(random: np.random.Generator) -> Array:
    return random.standard_normal((2, 5, 12)).astype(np.float32)


@pytest.mark.parametrize("lhs", [None, TwinSoftmax(8, 5), TwinSoftmax(6, 2), Affine(8, (2.0**-8,), (0,))])
@pytest.mark.parametrize("bits", [3, 6, 8])
def test_the_reference_evaluator_computes_the_same(bits: int, lhs: Quantizer | None, small: Small, x: Array) -> None:
    model = small.attention()
    quantized, _ = quantize(model, small.attention_plan(model, x, bits, lhs=lhs))
    expected = small.reference(quantized, x)
    np.testing.assert_allclose(small.execute(quantized, x).output, expected, atol=1e-4)


def test_the_file_is_standard_onnx_and_keeps_the_models_metadata(small: Small, x: Array) -> None:
    model = small.attention()
    model.producer_name, model.producer_version = "a maker", "1.2"
    plan = small.attention_plan(model, x)
    quantized, _ = quantize(model, plan)
    onnx.checker.check_model(quantized, full_check=True)
    assert [(item.domain, item.version) for item in quantized.opset_import] == [("", 20)]
    assert {node.domain for node in quantized.graph.node} == {""}
    assert {item.key: item.value for item in quantized.metadata_props} == {
        "name": "small",
        "ptq4vit_onnx.target": "onnxruntime",
        "ptq4vit_onnx.oldest_runtime": "ONNX Runtime 1.17, onnxruntime-web 1.17, OpenVINO 2026.2",
        "ptq4vit_onnx.plan_sha256": fingerprint(plan),
    }
    assert (quantized.producer_name, quantized.producer_version) == ("a maker", "1.2")
    assert [item.name for item in quantized.graph.input] == ["x"]
    assert [item.name for item in quantized.graph.output] == [item.name for item in model.graph.output]


def test_eight_bit_activations_at_their_extremes_do_not_saturate_in_any_product(small: Small) -> None:
    """Codes 0 and 255 everywhere: where int16 sums would overflow, the output would be far off."""
    model = small.attention()
    x = np.where(np.arange(12) % 3 == 0, -4.0, 4.0).astype(np.float32) * np.ones((2, 5, 1), np.float32)
    plan = small.attention_plan(model, x)
    output = small.execute(quantize(model, plan)[0], x).output
    np.testing.assert_allclose(output, small.fake_attention(model, x, plan), atol=1e-4)


def test_the_report_says_what_was_done(small: Small, x: Array) -> None:
    model = small.attention()
    _, report = quantize(model, small.attention_plan(model, x, lhs=TwinSoftmax(8, 1)))
    assert set(report.moved_weights) == {"attn.qkv", "attn.proj"}
    assert report.merged == ("attn.pv",) and set(report.products.values()) == {1}
    assert report.places["QuantizeWeights"] == 2


def test_the_passes_import_no_torch(run_python: Callable[..., object]) -> None:
    run_python("import sys, ptq4vit_onnx.passes; sys.exit('torch' in sys.modules)")
