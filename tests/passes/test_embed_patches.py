"""EmbedPatches turns a convolution of whole patches into a product."""

from __future__ import annotations

import numpy as np
import pytest

from ptq4vit_onnx.passes import PassError, quantize
from ptq4vit_onnx.passes.tensors import Array, values_of
from ptq4vit_onnx.plan.quantizers import Uniform
from ptq4vit_onnx.plan.scale_plan import SitePlan
from tests.passes.small_models import Batch, Small

IMAGE = (2, 2, 8, 12)
PLAN = SitePlan("conv", "other", Uniform(8, (0.03125,)), Uniform(8, (0.03125,)))


@pytest.fixture
def image(random: np.random.Generator) -> Array:
    return random.standard_normal(IMAGE).astype(np.float32)


@pytest.mark.parametrize("follow", ["tokens", "grid", "nothing"])
def test_embed_patches_computes_the_convolution(follow: str, small: Small, image: Array) -> None:
    model = small.patches(follow=follow)
    work = small.run_until(model, small.plan({"patch_embed.proj": PLAN}), "EmbedPatches")
    expected, got = small.fetch(model, image)[0], small.fetch(small.export(work), image)[0]
    assert got.shape == expected.shape
    np.testing.assert_allclose(got, expected, atol=1e-5)  # float32 sums of 32 terms in another order


def test_embed_patches_drops_the_turning_of_channels_that_follows(small: Small) -> None:
    work = small.run_until(small.patches(), small.plan({"patch_embed.proj": PLAN}), "EmbedPatches")
    operations = [node.op for node in work.graph.copy().cleanup().toposort().nodes]
    assert operations == ["Reshape", "Transpose", "Reshape", "Transpose", "Reshape", "MatMul", "Add"]


def test_the_image_is_quantised_before_it_is_cut_up(small: Small, image: Array) -> None:
    quantized, _ = quantize(small.patches(), small.plan({"patch_embed.proj": PLAN}))
    assert quantized.graph.node[0].op_type == "QuantizeLinear" or any(
        node.op_type == "QuantizeLinear" and node.input[0] == "x" for node in quantized.graph.node
    )
    assert small.execute(quantized, image).by_name["patch_embed.proj/MatMul"] == "MatMulIntegerToFloat"


@pytest.mark.parametrize("batch", ["batch", 2])
def test_embedded_patches_compute_the_plan(batch: Batch, small: Small, image: Array) -> None:
    model = small.patches(batch)
    quantized, _ = quantize(model, small.plan({"patch_embed.proj": PLAN}))
    patches = image.reshape(2, 2, 2, 4, 3, 4).transpose(0, 2, 4, 1, 3, 5).reshape(2, 6, 32)
    weight = small.weight(model, "patch_embed.proj.weight").reshape(6, 32).T
    expected = small.fake_linear(patches, weight, PLAN.lhs, PLAN.rhs) + small.weight(model, "patch_embed.proj.bias")
    np.testing.assert_allclose(small.execute(quantized, image).output, expected, atol=1e-5)


def test_pixels_side_by_side_do_not_share_a_pair(small: Small) -> None:
    model = small.patches()
    work = small.run_until(model, small.plan({"patch_embed.proj": PLAN}), "EmbedPatches")
    matrix = values_of(next(node for node in work.graph.nodes if node.op == "MatMul").inputs[1])
    kernel = small.weight(model, "patch_embed.proj.weight").reshape(6, 32)
    for pair in range(16):
        np.testing.assert_array_equal(matrix[2 * pair : 2 * pair + 2].T, kernel[:, [pair, pair + 16]])


def test_embed_patches_refuses_overlapping_patches(small: Small) -> None:
    with pytest.raises(PassError, match=r"patch_embed\.proj/Conv: expected a convolution of stride \[4, 4\]"):
        quantize(small.patches(follow="nothing", stride=2), small.plan({"patch_embed.proj": PLAN}))
