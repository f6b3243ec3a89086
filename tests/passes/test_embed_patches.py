"""EmbedPatches turns convolutions into products."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest

from ptq4vit_onnx.passes import PassError, quantize
from ptq4vit_onnx.passes.tensors import Array, values_of
from ptq4vit_onnx.plan.quantizers import Affine, Uniform
from ptq4vit_onnx.plan.quantizers.patch_order import flat_kernels
from ptq4vit_onnx.plan.saturation_safe_weights import ship_weight
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


CONVOLUTIONS: list[dict[str, Any]] = [
    {"kernel": 3, "pads": [1, 1, 1, 1]},
    {"kernel": 3, "pads": [1, 1, 1, 1], "strides": [2, 2]},
    {"kernel": 3, "pads": [0, 2, 1, 3], "dilations": [2, 1]},
    {"kernel": 4, "strides": [2, 2]},
    {"kernel": 1},
    {"kernel": 1, "strides": [2, 3]},
]


@pytest.mark.parametrize("attributes", CONVOLUTIONS)
def test_overlapping_windows_and_single_pixels_are_products_too(
    attributes: dict[str, Any], small: Small, random: np.random.Generator
) -> None:
    image, model = random.standard_normal((2, 3, 8, 12)).astype(np.float32), small.convolution(**attributes)
    work = small.run_until(model, small.plan({"conv": PLAN}), "EmbedPatches")
    expected, got = small.fetch(model, image)[0], small.fetch(small.export(work), image)[0]
    assert got.shape == expected.shape
    np.testing.assert_allclose(got, expected, atol=1e-5)  # float32 sums of at most 48 terms in another order


@pytest.mark.parametrize("left", [Uniform(8, (0.03125,)), Uniform(6, (0.09375,)), Affine(8, (0.03125,), (117,))])
@pytest.mark.parametrize("attributes", CONVOLUTIONS)
def test_their_bytes_are_the_plans_also_at_the_border(
    attributes: dict[str, Any], left: Uniform | Affine, small: Small, random: np.random.Generator
) -> None:
    """Padding is the code of zero: the file's output is the float convolution of what the quantizers round to."""
    image, model = random.standard_normal((2, 3, 8, 12)).astype(np.float32), small.convolution(**attributes)
    quantized, _ = quantize(model, small.plan({"conv": replace(PLAN, lhs=left)}))
    fed = [node for node in quantized.graph.node if node.op_type == "QuantizeLinear"]
    assert [node.input[0] for node in fed] == ["x"] or "Slice" in [node.op_type for node in quantized.graph.node][:1]
    weight = small.weight(model, "conv.weight")
    rows = flat_kernels(weight, "pads" not in attributes and attributes["kernel"] == 1)
    codes, _ = ship_weight(np.ascontiguousarray(rows.T), left, PLAN.rhs)
    depth, kernel = weight.shape[1], attributes["kernel"]
    shipped = (codes.T * np.float32(0.03125)).reshape(6, kernel, kernel, depth).transpose(0, 3, 1, 2)
    for tensor in model.graph.initializer:
        if tensor.name == "conv.weight":
            tensor.CopyFrom(onnx.numpy_helper.from_array(np.ascontiguousarray(shipped), tensor.name))
    executed = small.execute(quantized, image)
    assert executed.by_name["conv/MatMul"] == "MatMulIntegerToFloat"
    np.testing.assert_allclose(executed.output, small.reference(model, left.fake_quantize(image)), atol=1e-4)


@pytest.mark.parametrize("attributes", [{"kernel": 3, "pads": [1, 1, 1, 1]}, {"kernel": 1}])
def test_a_convolution_without_a_bias_stays_in_integers_next_to_a_residual(
    attributes: dict[str, Any], small: Small
) -> None:
    """Its tokens are quantised for the next product, and added to that product's output."""
    model = small.convolution(**attributes)
    graph, make = model.graph, onnx.helper.make_node
    del graph.node[0].input[2]
    y, graph.node[0].output[0] = graph.output[0].name, "grid"
    graph.output[0].CopyFrom(onnx.helper.make_tensor_value_info(y, onnx.TensorProto.FLOAT, ["batch", 96, 6]))
    constants = {"tokens": np.asarray([-1, 6, 96]), "next.weight": np.eye(6, dtype=np.float32)}
    graph.initializer.extend(onnx.numpy_helper.from_array(value, name) for name, value in constants.items())
    graph.node.append(make("Reshape", ["grid", "tokens"], ["flat"], name="model/Reshape"))
    graph.node.append(make("Transpose", ["flat"], ["first"], name="model/Transpose", perm=[0, 2, 1]))
    graph.node.append(make("MatMul", ["first", "next.weight"], ["second"], name="next/MatMul"))
    graph.node.append(make("Add", ["first", "second"], [y], name="model/Add"))
    plan = small.plan({"conv": PLAN, "next": replace(PLAN, kind="linear")})
    executed = small.execute(quantize(model, plan)[0], np.ones((2, 3, 8, 12), np.float32))
    kernels = [executed.by_name.get(name) for name in ("conv/MatMul", "next/MatMul")]
    assert kernels == ["MatMulIntegerToFloat"] * 2


def test_embed_patches_refuses_groups(small: Small) -> None:
    model = small.convolution(kernel=3)
    model.graph.node[0].attribute.append(onnx.helper.make_attribute("group", 3))
    with pytest.raises(PassError, match=r"conv/Conv: expected a convolution without groups"):
        small.run_until(model, small.plan({"conv": PLAN}), "EmbedPatches")


def test_embed_patches_refuses_patches_that_do_not_fill_the_image(small: Small) -> None:
    with pytest.raises(PassError, match=r"conv/Conv: image .* is no whole number of patches \[5, 5\]"):
        quantize(small.convolution(kernel=5, strides=[5, 5]), small.plan({"conv": PLAN}))
