"""The kernel audit: float fallbacks, missing products and saturation are caught, on any CPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest

from ptq4vit_onnx.errors import ParityError
from ptq4vit_onnx.graph.integer_products import GraphIndex, IntegerProduct, parse_name
from ptq4vit_onnx.plan.quantizers import Affine, TwinGelu, Uniform
from ptq4vit_onnx.plan.scale_plan import SitePlan
from ptq4vit_onnx.proof.kernels import audit, largest_code
from ptq4vit_onnx.runtime.session import optimised_model
from tests.small_graphs import plan_of


@pytest.mark.parametrize("batch", ["batch", 2])
def test_a_product_in_integers_passes_with_dynamic_and_static_batch(
    linear: Callable[..., Any], batch: int | str
) -> None:
    small = linear(batch=batch)
    report = audit(small.model, small.plan)
    assert str(report) == "1 of 1 products in integers"
    assert (report.products[0].kernel, report.products[0].operands) == ("MatMulIntegerToFloat", ("u8", "s8"))
    assert report.op_counts["MatMulIntegerToFloat"] == 1
    report.require_integer()
    report.require_exact()


def test_a_float_bias_that_takes_a_static_product_back_to_float_is_caught(linear: Callable[..., Any]) -> None:
    small = linear(bias_shape=(8,), batch=2)
    report = audit(small.model, small.plan)
    assert report.fell_back == ("fc",)
    with pytest.raises(ParityError, match=r"0 of 1 products in integers; not in integers: fc/MatMul \(Gemm\)"):
        report.require_integer()


@pytest.mark.parametrize(
    ("options", "kernel"),
    [
        ({"requantised": True, "bias_shape": None}, "QLinearMatMul"),
        ({"requantised": True, "bias_shape": (8,), "batch": 2}, "QGemm"),
    ],
)
def test_fused_kernels_are_found_under_the_products_name(
    linear: Callable[..., Any], options: dict[str, Any], kernel: str
) -> None:
    small = linear(**options)
    report = audit(small.model, small.plan)
    assert [product.kernel for product in report.products] == [kernel]
    report.require_integer()


def test_both_branches_of_a_twin_are_counted(attention: Callable[..., Any]) -> None:
    small = attention()
    report = audit(small.model, small.plan)
    assert {product.product for product in report.products if product.site == "attn.pv"} == {
        "MatMul",
        "MatMul.coarse",
    }
    assert {product.operands for product in report.products} == {("u8", "u8")}
    assert str(report) == "3 of 3 products in integers"
    report.require_exact()


def test_a_branch_that_left_the_optimised_graph_is_caught(attention: Callable[..., Any]) -> None:
    small = attention()
    optimised = optimised_model(small.model)
    for node in optimised.graph.node:
        if node.name == "attn.pv/MatMul.coarse":
            node.name, node.output[0] = "someone/else", "elsewhere"
    report = audit(small.model, small.plan, optimised)
    assert report.fell_back == ("attn.pv",)
    with pytest.raises(ParityError, match=r"attn.pv/MatMul.coarse \(not found\)"):
        report.require_integer()


def test_a_planned_site_that_the_model_does_not_have_is_caught(linear: Callable[..., Any]) -> None:
    small = linear()
    plan = replace(small.plan, sites={**small.plan.sites, "head": small.plan.sites["fc"]})
    with pytest.raises(ParityError, match=r"1 of 2 products in integers; not in integers: head/MatMul \(not found\)"):
        audit(small.model, plan).require_integer()


def test_a_fusion_with_a_name_of_its_own_is_found_by_its_output(linear: Callable[..., Any]) -> None:
    small = linear()
    optimised = optimised_model(small.model)
    next(node for node in optimised.graph.node if node.name == "fc/MatMul").name = "fusion_17"
    audit(small.model, small.plan, optimised).require_integer()


def test_weights_that_saturate_on_avx2_are_caught_by_arithmetic(linear: Callable[..., Any]) -> None:
    codes = np.zeros((16, 8), np.int8)
    codes[4:6, 3] = 65  # 255 * (65 + 65) = 33150 > 32767, in the pair (4, 5)
    codes[7:9, 2] = 127  # rows 7 and 8 are in different pairs: safe
    small = linear(codes=codes)
    with pytest.raises(ParityError, match=r"fc/MatMul .*: 1 pairs of weights overflow 16 bits next to codes up to 255"):
        audit(small.model, small.plan).require_exact()


def test_a_left_side_of_few_bits_makes_large_weights_safe(linear: Callable[..., Any]) -> None:
    codes = np.full((16, 8), 127, np.int8)
    small = linear(codes=codes, lhs=Uniform(6, (0.125,)))
    audit(small.model, small.plan).require_exact()  # 63 * 254 = 16002
    assert audit(small.model).unsafe  # without the plan nothing says that codes end at 63


def test_signed_activations_on_both_sides_are_unsafe(attention: Callable[..., Any]) -> None:
    small = attention()
    optimised = optimised_model(small.model)
    index = GraphIndex(optimised)
    node = next(node for node in index.nodes if node.name == "attn.qk/MatMul")
    rhs_zero = node.input[5]
    optimised.graph.initializer.add().CopyFrom(
        next(tensor for tensor in optimised.graph.initializer if tensor.name == rhs_zero)
    )
    signed = optimised.graph.initializer[-1]
    signed.name, signed.data_type = "signed_zero", 3  # INT8
    producer = index.producer[index.moved_from(node.input[1])]
    producer.input[2] = "signed_zero"
    report = audit(small.model, small.plan, optimised)
    reasons = {product.site: product.unsafe for product in report.unsafe}
    assert reasons["attn.qk"] == "signed activations up to 128 next to codes up to 255; use u8 x u8"


def test_signed_activations_pass_where_the_graphs_clips_prove_that_two_products_fit(
    signed: Callable[..., Any],
) -> None:
    small = signed(6, 63)
    report = audit(small.model)  # without the plan: 2 * 63 * 63 follows from the clips alone
    assert [product.operands for product in report.products] == [("u8", "s8")]
    report.require_exact()


def test_signed_activations_are_caught_where_they_may_saturate(signed: Callable[..., Any]) -> None:
    small = signed(7, 255)
    with pytest.raises(ParityError, match="signed activations up to 127 next to codes up to 255"):
        audit(small.model).require_exact()


_EMPTY = GraphIndex(onnx.ModelProto())


def _product(zero: int, kind: Any = np.uint8) -> IntegerProduct:
    one = np.ones((), np.float32)
    point = np.asarray(zero, kind)
    return IntegerProduct("MatMulIntegerToFloat", "n", "a", "b", "y", one, one, point, point)


@pytest.mark.parametrize(
    ("quantizer", "zero", "branch", "merged", "expected"),
    [
        (Uniform(8, (1.0,)), 128, "", True, 255),
        (Uniform(6, (1.0,)), 32, "", True, 63),
        (Uniform(6, (1.0,)), 128, "", True, 159),
        (Affine(6, (1.0,), (5,)), 5, "", True, 63),
        (TwinGelu(8, 1.0, 3), 0, "coarse", False, 127),
        (TwinGelu(8, 1.0, 3), 0, "", False, 127),
        (TwinGelu(8, 1.0, 3), 255, "", False, 255),
        (TwinGelu(6, 1.0, 2), 32, "", True, 32 + 31 * 4),
    ],
)
def test_the_largest_code_follows_from_quantizer_and_zero_point(
    quantizer: Any, zero: int, branch: str, merged: bool, expected: int
) -> None:
    site = SitePlan("linear", "other", quantizer, Uniform(8, (1.0,)))
    assert largest_code(_EMPTY, _product(zero), branch, site, merged) == expected


def test_signed_left_codes_count_from_minus_128() -> None:
    site = SitePlan("linear", "other", Uniform(6, (1.0,)), Uniform(8, (1.0,)))
    assert largest_code(_EMPTY, _product(0, np.int8), "", site, True) == 128 + 31


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        ("head/MatMul/MatMulAddFusion", "head/MatMul"),
        ("blocks.0.mlp.fc2/MatMul.coarse", "blocks.0.mlp.fc2/MatMul.coarse"),
        ("blocks.0.mlp.fc2/MatMul.outliers/MatMulAddFusion", "blocks.0.mlp.fc2/MatMul.outliers"),
        ("patch_embed.proj/Conv_nchwc", "patch_embed.proj/Conv"),
        ("head/Gemm_token_3", "head/Gemm"),
        ("head/MatMulNothing", "None"),
        ("head/Add", "None"),
        ("MatMul_12", "None"),
    ],
)
def test_names_are_read_with_what_the_runtime_appends(node: str, expected: str) -> None:
    assert str(parse_name(node)) == expected


def test_the_audit_is_plain_data(linear: Callable[..., Any]) -> None:
    small = linear(bias_shape=(8,), batch=2)
    data = audit(small.model, small.plan).to_data()
    assert data["fell_back"] == ["fc"]
    assert data["products"][0]["kernel"] == "Gemm"


def _behind_a_float_product(linear: Callable[..., Any], name: str, constant: bool = False) -> onnx.ModelProto:
    """The linear's model, in front of it a MatMul in float of this name, or one of constants that is added."""
    model: onnx.ModelProto = linear().model
    graph, weight = model.graph, np.eye(16, dtype=np.float32)
    graph.initializer.append(onnx.numpy_helper.from_array(weight, "eye"))
    entry = next(node for node in graph.node if "image" in node.input)
    entry.input[list(entry.input).index("image")] = "mixed"
    nodes = [onnx.helper.make_node("MatMul", ["image", "eye"], ["mixed"], name=name)]
    if constant:  # the batch decides its shape, so the runtime cannot fold it; the image's values do not enter
        graph.initializer.append(onnx.numpy_helper.from_array(np.ones((1, 1, 1), np.float32), "one"))
        nodes = [
            onnx.helper.make_node("Shape", ["image"], ["shape"]),
            onnx.helper.make_node("Expand", ["one", "shape"], ["table"]),
            onnx.helper.make_node("MatMul", ["table", "eye"], ["turned"], name=name),
            onnx.helper.make_node("Add", ["image", "turned"], ["mixed"]),
        ]
    for node in reversed(nodes):
        graph.node.insert(0, node)
    return model


def test_a_float_product_that_the_plan_does_not_list_is_caught(linear: Callable[..., Any]) -> None:
    plan = linear().plan
    (planned,) = plan.sites
    for name in ("mix/MatMul", "mix/float_MatMul", "MatMul_12", f"{planned}/behind"):
        report = audit(_behind_a_float_product(linear, name), plan)
        assert str(report) == "1 of 2 products in integers"
        with pytest.raises(ParityError, match=rf"not in integers: {name}"):
            report.require_integer()


def test_a_float_product_that_the_plan_lists_is_reported(linear: Callable[..., Any]) -> None:
    plan = replace(linear().plan, floats={"mix": "its weight is used twice"})
    report = audit(_behind_a_float_product(linear, "mix/float_MatMul"), plan)
    report.require_integer()
    assert str(report) == "1 of 2 products in integers, 1 stay in float as the plan says"
    assert [item["site"] for item in report.to_data()["floats"]] == ["mix"]
    with pytest.raises(ParityError, match="not in integers: mix/MatMul"):
        audit(_behind_a_float_product(linear, "mix/MatMul"), plan).require_integer()  # the file must say so, too


def test_a_product_that_does_not_depend_on_the_image_counts_nowhere(linear: Callable[..., Any]) -> None:
    model = _behind_a_float_product(linear, "pool.q/constant_MatMul", constant=True)
    assert "MatMul" in audit(model, linear().plan).op_counts, "otherwise this test is about nothing"
    assert str(audit(model, linear().plan)) == "1 of 1 products in integers"


def test_a_product_called_constant_that_reads_the_image_is_caught(linear: Callable[..., Any]) -> None:
    with pytest.raises(ParityError, match="not in integers: mix/constant_MatMul"):
        audit(_behind_a_float_product(linear, "mix/constant_MatMul"), linear().plan).require_integer()


def _convolution(codes: np.ndarray[Any, Any]) -> onnx.ModelProto:
    """A QLinearConv named patch/Conv with weights `codes` [outputs, channels, height, width]."""
    inputs = ["codes", "one", "zero", "weight", "one", "signed_zero", "one", "zero"]
    constants = {
        "weight": codes,
        "one": np.ones((), np.float32),
        "zero": np.zeros((), np.uint8),
        "signed_zero": np.zeros((), np.int8),
    }
    tensors = [onnx.numpy_helper.from_array(value, name) for name, value in constants.items()]
    node = onnx.helper.make_node("QLinearConv", inputs, ["out"], name="patch/Conv")
    return onnx.helper.make_model(onnx.helper.make_graph([node], "convolution", [], [], tensors))


def test_pairs_of_a_convolutions_weights_are_neighbours_among_the_channels() -> None:
    beside = np.zeros((3, 2, 2, 2), np.int8)
    beside[0, :, 0, 0] = 127  # both channels of one pixel
    apart = np.zeros((3, 2, 2, 2), np.int8)
    apart[0, 0] = 127  # all pixels of one channel
    unsafe, safe = (audit(model, None, model) for model in map(_convolution, (beside, apart)))
    with pytest.raises(
        ParityError, match=r"patch/Conv .*: 1 pairs of weights overflow 16 bits next to codes up to 255"
    ):
        unsafe.require_exact()
    assert [product.kernel for product in safe.products] == ["QLinearConv"]
    safe.require_exact()


def test_a_twin_in_one_product_reaches_the_coarse_ranges_codes_and_in_two_its_own(linear: Callable[..., Any]) -> None:
    codes = np.zeros((16, 8), np.int8)
    codes[4:6, 3] = 127
    small = linear(codes=codes)
    twin = replace(small.plan.sites["fc"], lhs=TwinGelu(6, 1.0, 2))
    optimised = optimised_model(small.model)
    (product,) = audit(small.model, plan_of(fc=twin), optimised).unsafe  # from the zero point 128 on: 128 + 31 * 4
    assert product.unsafe == "1 pairs of weights overflow 16 bits next to codes up to 252"
    for sibling, bound in (("fc/MatMul.coarse", 159), ("other/MatMul.coarse", 252)):
        executed = onnx.ModelProto()
        executed.CopyFrom(optimised)
        executed.graph.node.add(name=sibling, op_type="MatMul", input=["x", "y"], output=["z"])
        (product,) = audit(small.model, plan_of(fc=twin), executed).unsafe
        assert product.unsafe == f"1 pairs of weights overflow 16 bits next to codes up to {bound}"
