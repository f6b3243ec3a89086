"""ShapeBiases keeps the products in integers, and adds the plan's correction."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ptq4vit_onnx.passes import PassError, quantize
from ptq4vit_onnx.passes.tensors import Array
from ptq4vit_onnx.plan.quantizers import Uniform
from ptq4vit_onnx.plan.scale_plan import SitePlan
from tests.passes.small_models import Batch, Small

PLAN = SitePlan("linear", "other", Uniform(8, (0.03125,)), Uniform(8, (0.03125,)))
CORRECTION = tuple(n / 8 for n in range(8))


@pytest.fixture
def x(random: np.random.Generator) -> Array:
    return random.standard_normal((2, 5, 12)).astype(np.float32)


@pytest.mark.parametrize("batch", ["batch", 2])
def test_a_linear_with_a_bias_runs_in_integers(batch: Batch, small: Small, x: Array) -> None:
    quantized, _ = quantize(small.linear(batch), small.plan({"fc": PLAN}))
    assert small.execute(quantized, x).by_name["fc/MatMul"] == "MatMulIntegerToFloat"


def test_a_bias_of_one_axis_and_a_static_batch_would_run_in_float(small: Small, x: Array) -> None:
    quantized, _ = quantize(small.linear(2), small.plan({"fc": PLAN}))
    for tensor in quantized.graph.initializer:
        if tensor.name == "fc/bias":
            del tensor.dims[0]
    assert not small.execute(quantized, x).operations["MatMulIntegerToFloat"]


@pytest.mark.parametrize("bias", [True, False])
def test_the_correction_is_added_with_and_without_a_bias(bias: bool, small: Small, x: Array) -> None:
    model = small.linear(bias=bias)
    plain = small.execute(quantize(model, small.plan({"fc": PLAN}))[0], x).output
    corrected = replace(PLAN, bias_correction=CORRECTION)
    executed = small.execute(quantize(model, small.plan({"fc": corrected}))[0], x)
    assert executed.operations["Add"] == 1
    np.testing.assert_allclose(executed.output - plain, np.broadcast_to(CORRECTION, plain.shape), atol=1e-5)


def test_shape_biases_never_edits_a_shared_bias(small: Small, x: Array) -> None:
    model = small.linear()
    work = small.run_until(model, small.plan({"fc": replace(PLAN, bias_correction=CORRECTION)}), "ShapeBiases")
    bias = work.graph.nodes[1].inputs[1]
    assert bias.name == "fc/bias" and bias.shape == (1, 8)
    assert work.graph.nodes[1].name == "fc/Add"


def test_shape_biases_refuses_a_correction_of_another_length(small: Small) -> None:
    with pytest.raises(PassError, match="bias_correction has 2 values, the product 8 outputs"):
        quantize(small.linear(), small.plan({"fc": replace(PLAN, bias_correction=(1.0, 2.0))}))
