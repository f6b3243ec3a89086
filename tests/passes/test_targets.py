"""Files for OpenVINO and for ONNX Runtime: the same numbers, and only operators that engines define alike."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from ptq4vit_onnx.passes import quantize
from ptq4vit_onnx.passes.tensors import Array
from ptq4vit_onnx.plan.file_layout import Target
from ptq4vit_onnx.plan.quantizers import TwinGelu, TwinSoftmax, Uniform
from ptq4vit_onnx.plan.scale_plan import ScalePlan, SitePlan
from tests.passes.small_models import Small
from tests.passes.small_transformer import IMAGE, transformer_model, transformer_plan

TARGETS: tuple[Target, ...] = ("onnxruntime", "openvino")
BYTES = {TensorProto.UINT8, TensorProto.INT8}
ON_BITS = {"BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitShift"}


@pytest.fixture
def image(random: np.random.Generator) -> Array:
    return random.standard_normal(IMAGE).astype(np.float32)


def low_bits() -> ScalePlan:
    """The plan of the small transformer with twins whose branches are one product."""
    plan = transformer_plan()
    sites = dict(plan.sites)
    sites["attn.pv"] = SitePlan("matmul", "softmax", TwinSoftmax(6, 2), Uniform(6, (0.0625,)))
    sites["mlp.fc2"] = SitePlan("linear", "gelu", TwinGelu(4, 0.25, 3), Uniform(7, (0.0625,)))
    return ScalePlan(plan.model, plan.weights, plan.images, plan.options, plan.versions, sites)


PLANS = {"eight bits": transformer_plan, "low bits": low_bits}


def typed(model: onnx.ModelProto) -> list[tuple[onnx.NodeProto, list[int]]]:
    """Every node with the element types of its inputs."""
    inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True).graph
    values = (*inferred.value_info, *inferred.input, *inferred.output)
    types = {item.name: item.type.tensor_type.elem_type for item in values}
    types.update({item.name: item.data_type for item in inferred.initializer})
    return [(node, [types[name] for name in node.input if name]) for node in inferred.node]


@pytest.mark.parametrize("plan", PLANS)
def test_both_targets_give_the_same_bits_in_onnx_runtime(plan: str, small: Small, image: Array) -> None:
    outputs = [small.execute(quantize(transformer_model(), PLANS[plan](), target=item)[0], image) for item in TARGETS]
    np.testing.assert_array_equal(outputs[0].output, outputs[1].output)


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("target", TARGETS)
def test_no_arithmetic_is_done_on_bytes(target: Target, plan: str) -> None:
    """ONNX does not say what happens where a byte overflows, and ONNX Runtime before 1.21 has no such kernels."""
    model, _ = quantize(transformer_model(), PLANS[plan](), target=target)
    wrong = [node.name for node, types in typed(model) if node.op_type in {"Add", "Sub", "Mul"} and BYTES & {*types}]
    assert wrong == []
    assert model.ir_version <= 9 and model.opset_import[0].version <= 20  # what ONNX Runtime 1.17 reads


@pytest.mark.parametrize("plan", PLANS)
def test_only_masked_bits_are_shifted(plan: str) -> None:
    """Engines differ in what a shift makes of bits that fall off."""
    model, _ = quantize(transformer_model(), PLANS[plan]())
    maker = {name: node for node in model.graph.node for name in node.output}
    constants = {item.name: onnx.numpy_helper.to_array(item) for item in model.graph.initializer}
    shifts = [node for node in model.graph.node if node.op_type == "BitShift"]
    assert shifts
    for node in shifts:
        mask, by = int(constants[maker[node.input[0]].input[1]]), int(constants[node.input[1]])
        right = next(item.s for item in node.attribute if item.name == "direction") == b"RIGHT"
        assert maker[node.input[0]].op_type == "BitwiseAnd"
        assert mask % 2**by == 0 if right else mask << by < 256


def test_for_openvino_weights_are_unpacked_without_operators_on_bits() -> None:
    """OpenVINO computes none of these while it loads."""
    model, _ = quantize(transformer_model(), transformer_plan(), target="openvino")
    on_bits = [node.name for node in model.graph.node if node.op_type in ON_BITS]
    assert on_bits == ["mlp.fc2/lhs.coarse/BitwiseXor"]  # of the GELU twin: an activation


def test_for_openvino_q_and_k_reach_their_product_signed_and_without_a_zero_point() -> None:
    model, _ = quantize(transformer_model(), transformer_plan(), target="openvino")
    maker = {name: node for node in model.graph.node for name in node.output}
    constants = {item.name: onnx.numpy_helper.to_array(item) for item in model.graph.initializer}
    product = next(node for node in model.graph.node if node.name == "attn.qk/MatMul")
    for side in product.input:
        dequantize = maker[side]
        if dequantize.op_type == "Transpose":  # of the keys, which OpenVINO joins with the product
            dequantize = maker[dequantize.input[0]]
        quantize_linear = maker[dequantize.input[0]]
        assert (dequantize.op_type, quantize_linear.op_type) == ("DequantizeLinear", "QuantizeLinear")
        zero = constants[dequantize.input[2]]
        assert zero.dtype == np.int8 and zero == 0
        assert constants[quantize_linear.input[1]] != 1
