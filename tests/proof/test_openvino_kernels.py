"""The audit of OpenVINO's graph: which layer computes a product, and whether from integers."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from ptq4vit_onnx.graph.integer_products import ProductName
from ptq4vit_onnx.proof.kernels import MISSING, audit
from ptq4vit_onnx.proof.openvino_kernels import audit_in, audit_openvino, find_products
from ptq4vit_onnx.runtime.runner import Layer

needs_openvino = pytest.mark.skipif(not importlib.util.find_spec("openvino"), reason="openvino is not installed")
QK, PV = ProductName("attn.qk", "MatMul"), ProductName("attn.pv", "MatMul")


def layer(kind: str, origins: str, *inputs: str, constants: int = 0) -> Layer:
    """constants: how many of the inputs, the last ones, are no operands."""
    return Layer("layer", kind, tuple(origins.split(",")), inputs, inputs[: len(inputs) - constants])


def test_a_product_is_found_by_its_own_name_among_what_was_fused() -> None:
    fused = layer("FullyConnected", "fc/MatMul,fc/MatMul/DequantizationMultiply,fc/Add,act/Gelu", "u8", "i8", "dynamic")
    (found,) = find_products([fused], [ProductName("fc", "MatMul")])
    assert (found.kernel, found.operands, found.integer) == ("FullyConnected", ("u8", "s8"), True)


def test_a_layer_named_only_after_what_was_fused_behind_it_is_found_by_its_site() -> None:
    layers = [layer("Eltwise", "attn.qk/lhs/DequantizeLinear", "f32"), layer("MatMul", "attn.qk/Mul", "f32", "f32")]
    (found,) = find_products(layers, [QK])
    assert (found.kernel, found.operands, found.integer) == ("MatMul", ("float", "float"), False)


def test_the_branches_of_a_site_are_told_apart() -> None:
    coarse = ProductName("attn.pv", "MatMul.coarse")
    layers = [layer("MatMul", "attn.pv/Add", "f32", "f32"), layer("MatMul", "attn.pv/MatMul.coarse", "u8", "i8")]
    assert [item.integer for item in find_products(layers, [PV, coarse])] == [False, True]


@pytest.mark.parametrize(
    ("inputs", "integer"),
    [(("i8", "i8", "f32"), [True, False]), (("f32", "f32", "i8"), [False, True]), (("u8", "i8", "i8"), [True, True])],
)
def test_an_attention_in_one_layer_is_judged_operand_by_operand(inputs: tuple[str, ...], integer: list[bool]) -> None:
    """OpenVINO calls all of these i8, although in two of them one product is computed in float."""
    origins = "attn.qk/MatMul,attn.qk/MatMul/DequantizationMultiply,attn/Softmax,attn.pv/MatMul"
    attention = layer("Subgraph", origins, *inputs, "f32", "f32", constants=2)
    assert [item.integer for item in find_products([attention], [QK, PV])] == integer


def test_a_product_of_an_attention_may_be_named_only_after_what_was_fused_behind_it() -> None:
    origins = "attn.qk/Mul,attn/Softmax,attn.pv/lhs/QuantizeLinear,attn.pv/MatMul,proj/lhs/QuantizeLinear"
    attention = layer("Subgraph", origins, "u8", "u8", "f32")
    found = find_products([attention], [QK, PV, ProductName("proj", "MatMul")])
    assert [item.integer for item in found] == [True, False, False]
    assert [item.kernel for item in found] == ["Subgraph", "Subgraph", MISSING]


@pytest.mark.parametrize(("queries", "integer"), [("i8", True), ("f32", False)])
def test_an_attention_may_name_neither_of_its_products(queries: str, integer: bool) -> None:
    """Of a single row, where both factors of heads are fused."""
    origins = "attn.qk/Mul,attn.qk/Mul/DequantizationMultiply,attn/Softmax,attn.pv/lhs/QuantizeLinear,attn.pv/Mul"
    attention = layer("Subgraph", origins, queries, "i8", "f32", "i8")
    found = find_products([attention], [QK, PV])
    assert [(item.kernel, item.integer) for item in found] == [("Subgraph", integer), ("Subgraph", True)]


def test_the_product_that_ends_the_graph_may_be_named_after_its_output() -> None:
    head = ProductName("head", "Gemm")
    (found,) = find_products([layer("FullyConnected", "logits", "f32", "f32")], [head], {"logits": head})
    assert (found.kernel, found.integer) == ("FullyConnected", False)


@pytest.mark.parametrize(
    "other",
    [
        layer("Subgraph", "attn.qk/MatMul/DequantizationMultiply,attn/Softmax", "i8", "i8"),
        layer("Subgraph", "attn.qk/Mul,attn/Softmax", "i8", "i8"),
        layer("Eltwise", "attn.qk/MatMul", "u8", "i8"),
        layer("Transpose", "attn.qk/MatMul/transpose_b", "i8", "i8"),
        layer("MatMul", "attn.other/MatMul", "u8", "i8"),
    ],
    ids=lambda item: f"{item.kind} {item.origins[0]}",
)
def test_a_layer_that_computes_no_product_of_the_site_is_not_taken_for_one(other: Layer) -> None:
    (found,) = find_products([other], [QK])
    assert (found.kernel, found.integer) == (MISSING, False)


def test_weights_in_integers_next_to_float_activations_are_no_integer_product() -> None:
    (found,) = find_products([layer("FullyConnected", "fc/MatMul", "f32", "u8")], [ProductName("fc", "MatMul")])
    assert not found.integer


@needs_openvino
def test_the_same_products_are_looked_for_as_in_onnx_runtime(exported: Path) -> None:
    path = exported / "model.onnx"
    there, here = audit_openvino(path), audit(path)
    names = [{(item.site, item.product) for item in found.products} for found in (there, here)]
    assert names[0] == names[1]
    assert all(item.kernel != MISSING for item in there.products)
    linears = [item for item in there.products if ".mlp." in item.site]
    assert linears and all(item.integer and item.operands == ("u8", "s8") for item in linears)


@needs_openvino
def test_a_float_file_has_no_product_in_integers(exported: Path) -> None:
    found = audit_in("openvino", exported / "float.onnx")
    assert found.integers == 0 and len(found.products) > 30
    assert all(item.kernel != MISSING for item in found.products)
