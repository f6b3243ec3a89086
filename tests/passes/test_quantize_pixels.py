"""QuantizePixels turns an image into its own bytes, colour by colour."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ptq4vit_onnx.graph.movement import MOVING
from ptq4vit_onnx.passes import PASSES, PassError, quantize
from ptq4vit_onnx.passes.quantize_pixels import QuantizePixels
from ptq4vit_onnx.passes.tensors import Array
from ptq4vit_onnx.plan.quantizers import Pixels, Uniform
from ptq4vit_onnx.plan.quantizers.patch_order import pair_far_inputs
from ptq4vit_onnx.plan.saturation_safe_weights import shipped
from ptq4vit_onnx.plan.scale_plan import SitePlan
from tests.passes.small_models import Batch, Small

IMAGE = (2, 2, 8, 12)
PIXELS = Pixels.of((0.485, 0.5), (0.25, 0.5), 2)
PLAN = SitePlan("conv", "other", PIXELS, Uniform(6, (0.0009765625,)))


@pytest.fixture
def image(random: np.random.Generator) -> Array:
    """Bytes of two colours, normalised."""
    codes = random.integers(0, 256, IMAGE).astype(np.float32)
    centre, scale = (np.asarray(values, np.float32).reshape(-1, 1, 1) for values in (PIXELS.centre, PIXELS.scale))
    return np.asarray((codes - centre) * scale)


@pytest.mark.parametrize("batch", ["batch", 2])
def test_bytes_compute_the_plan(batch: Batch, small: Small, image: Array) -> None:
    model = small.patches(batch)
    quantized, _ = quantize(model, small.plan({"patch_embed.proj": PLAN}))
    patches = pair_far_inputs(image.reshape(2, 2, 2, 4, 3, 4).transpose(0, 2, 4, 1, 3, 5).reshape(2, 6, 32))
    weight = pair_far_inputs(small.weight(model, "patch_embed.proj.weight").reshape(6, 32)).T
    expected = patches @ shipped(np.ascontiguousarray(weight), PIXELS, PLAN.rhs)
    expected = expected + small.weight(model, "patch_embed.proj.bias")
    executed = small.execute(quantized, image)
    np.testing.assert_allclose(executed.output, expected, atol=1e-4)  # sums of 32 terms up to 2, bias of up to 10
    assert executed.by_name["patch_embed.proj/MatMul"] == "MatMulIntegerToFloat"


def test_one_add_and_one_quantize_linear_stand_in_front_of_the_patches(small: Small) -> None:
    eight = replace(PLAN, rhs=Uniform(8, (0.0009765625,)))
    quantized, report = quantize(small.patches(), small.plan({"patch_embed.proj": eight}))
    nodes = [node for node in quantized.graph.node if node.op_type not in MOVING]
    assert sorted(node.op_type for node in nodes) == [
        "Add", "Add", "DequantizeLinear", "DequantizeLinear", "MatMul", "QuantizeLinear"
    ]  # fmt: skip
    assert report.places["QuantizePixels"] == 1
    first = next(node for node in quantized.graph.node if "x" in node.input)
    assert first.op_type == "Add" and {node.op_type for node in nodes if first.output[0] in node.input} == {
        "QuantizeLinear"
    }


def test_whole_centres_need_no_add(small: Small) -> None:
    whole = replace(PLAN, lhs=Pixels(8, (0.5, 0.25), (0.0, 128.0)), rhs=Uniform(8, (0.125,)))
    quantized, _ = quantize(small.patches(), small.plan({"patch_embed.proj": whole}))
    assert [node.op_type for node in quantized.graph.node if "x" in node.input] == ["QuantizeLinear"]


def test_a_product_without_a_bias_gets_one(small: Small, image: Array) -> None:
    model = small.patches()
    conv = next(node for node in model.graph.node if node.op_type == "Conv")
    bias = small.weight(model, "patch_embed.proj.bias")
    plan = small.plan({"patch_embed.proj": PLAN})
    with_bias = small.execute(quantize(model, plan)[0], image).output
    del conv.input[2]
    without = small.execute(quantize(model, plan)[0], image).output
    np.testing.assert_allclose(without + bias, with_bias, atol=1e-5)


def test_another_number_of_colours_is_refused(small: Small) -> None:
    three = replace(PLAN, lhs=Pixels.of((0.5,), (0.5,), 4))
    with pytest.raises(PassError, match=r"QuantizePixels: site patch_embed\.proj.*the plan has 4 colours, the image 2"):
        quantize(small.patches(), small.plan({"patch_embed.proj": three}))


def test_it_runs_once_and_after_the_weights(small: Small) -> None:
    work = small.run_until(small.patches(), small.plan({"patch_embed.proj": PLAN}), "QuantizePixels")
    with pytest.raises(PassError, match="already run"):
        QuantizePixels()(work)
    early = small.run_until(small.patches(), small.plan({"patch_embed.proj": PLAN}), "ShapeBiases")
    with pytest.raises(PassError, match="QuantizePixels needs QuantizeWeights first"):
        QuantizePixels()(early)
    assert QuantizePixels in PASSES
