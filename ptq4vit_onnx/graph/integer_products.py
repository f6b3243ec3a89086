"""Read the products of a graph: which node computes which site, on which kernel, from which codes and scales.

Products are known by name: `SITE/MatMul` (or Gemm, Conv), `SITE/MatMul.coarse`, `SITE/MatMul.outliers`. ONNX
Runtime's fused kernels keep that name or append to it: `head/MatMul/MatMulAddFusion`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from ptq4vit_onnx.graph.movement import MOVING

Array: TypeAlias = np.ndarray[Any, Any]

INTEGER_KERNELS = frozenset({"MatMulIntegerToFloat", "QLinearMatMul", "QGemm", "MatMulInteger", "QLinearConv"})
FLOAT_KERNELS = frozenset({"MatMul", "Gemm", "Conv", "FusedMatMul", "FusedGemm", "FusedConv", "MatMulNBits"})
# kernels that quantise while running: their codes are not the plan's
OTHER_KERNELS = frozenset({"DynamicQuantizeMatMul", "ConvInteger", "MatMulIntegerToFloat16", "QAttention"})
PRODUCT_KERNELS = INTEGER_KERNELS | FLOAT_KERNELS | OTHER_KERNELS

_PRODUCT_NAME = re.compile(r"(?P<site>[^/\s]+)/(?P<product>(?:MatMul|Gemm|Conv)(?:\.[a-z]+)?)(?![A-Za-z0-9])")


@dataclass(frozen=True)
class ProductName:
    """Which product of which site: product is MatMul, MatMul.coarse, MatMul.outliers, Gemm or Conv."""

    site: str
    product: str

    def __str__(self) -> str:
        return f"{self.site}/{self.product}"

    @property
    def branch(self) -> str:
        """ "" for the main product, else coarse or outliers."""
        return self.product.partition(".")[2]


def parse_name(node_name: str) -> ProductName | None:
    """The product that a node's name contains: `head/MatMul/MatMulAddFusion` -> (head, MatMul)."""
    match = _PRODUCT_NAME.search(node_name)
    return ProductName(match["site"], match["product"]) if match else None


class GraphIndex:
    """A graph, with its constants and the producer of every tensor by name."""

    def __init__(self, model: onnx.ModelProto) -> None:
        graph = model.graph
        self.nodes: list[onnx.NodeProto] = list(graph.node)
        self.inputs = [value.name for value in graph.input]
        self._constants = {tensor.name: tensor for tensor in graph.initializer}
        for node in self.nodes:
            if node.op_type == "Constant" and node.attribute and node.attribute[0].name == "value":
                self._constants[node.output[0]] = node.attribute[0].t
        self.producer = {output: node for node in self.nodes for output in node.output if output}
        self._types = {
            value.name: value.type.tensor_type.elem_type
            for values in (graph.input, graph.output, graph.value_info)
            for value in values
        }

    def is_constant(self, name: str) -> bool:
        return name in self._constants

    def constant(self, name: str) -> Array | None:
        """The value of a constant tensor, None for a computed or an absent one."""
        tensor = self._constants.get(name)
        return None if tensor is None else numpy_helper.to_array(tensor)

    def element_type(self, name: str) -> int:
        """TensorProto type of a tensor; UNDEFINED where nothing in the graph says it."""
        if name in self._constants:
            return int(self._constants[name].data_type)
        if self._types.get(name):
            return int(self._types[name])
        node = self.producer.get(name)
        if node is None:
            return int(TensorProto.UNDEFINED)
        if node.op_type == "QuantizeLinear":
            has_zero = len(node.input) > 2 and node.input[2]
            return self.element_type(node.input[2]) if has_zero else int(TensorProto.UINT8)
        if node.op_type == "DequantizeLinear":
            return int(TensorProto.FLOAT)
        if node.op_type == "Cast":
            return int(next(item.i for item in node.attribute if item.name == "to"))
        if node.op_type in MOVING | {"Clip", "Add", "BitwiseXor"}:
            return self.element_type(node.input[0])
        product = read_product(self, node)
        if product is not None and product.output_zero is not None:
            return _onnx_type(product.output_zero)
        return int(TensorProto.UNDEFINED)

    def moved_from(self, name: str) -> str:
        """The tensor whose elements `name` holds, followed back through ops that only move elements."""
        node = self.producer.get(name)
        while node is not None and node.op_type in MOVING:
            name = node.input[0]
            node = self.producer.get(name)
        return name


@dataclass(frozen=True)
class IntegerProduct:
    """One integer kernel, whatever its op: lhs and rhs name tensors of codes, the rest are the kernel's
    constants.

    output_scale is None where the kernel returns floats (or, for MatMulInteger, bare accumulators).
    """

    kernel: str
    node: str
    lhs: str
    rhs: str
    output: str
    lhs_scale: Array
    rhs_scale: Array
    lhs_zero: Array
    rhs_zero: Array
    bias: Array | None = None
    output_scale: Array | None = None
    output_zero: Array | None = None
    transpose_lhs: bool = False
    transpose_rhs: bool = False
    alpha: float = 1.0


# positions of the operands among each kernel's inputs
_LAYOUT: dict[str, dict[str, int]] = {
    "MatMulIntegerToFloat": {
        "lhs": 0, "rhs": 1, "lhs_scale": 2, "rhs_scale": 3, "lhs_zero": 4, "rhs_zero": 5, "bias": 6,
    },
    "QLinearMatMul": {
        "lhs": 0, "lhs_scale": 1, "lhs_zero": 2, "rhs": 3, "rhs_scale": 4, "rhs_zero": 5,
        "output_scale": 6, "output_zero": 7,
    },
    "QGemm": {
        "lhs": 0, "lhs_scale": 1, "lhs_zero": 2, "rhs": 3, "rhs_scale": 4, "rhs_zero": 5, "bias": 6,
        "output_scale": 7, "output_zero": 8,
    },
    "MatMulInteger": {"lhs": 0, "rhs": 1, "lhs_zero": 2, "rhs_zero": 3},
}  # fmt: skip
# an absent zero point is 0 and says nothing about the codes' type: hence the wide integers
_DEFAULTS: dict[str, Array] = {
    "lhs_scale": np.ones(1, np.float32),
    "rhs_scale": np.ones(1, np.float32),
    "lhs_zero": np.zeros(1, np.int32),
    "rhs_zero": np.zeros(1, np.int32),
}


def read_product(index: GraphIndex, node: onnx.NodeProto) -> IntegerProduct | None:
    """The node as an IntegerProduct; None for other kernels and for scales or zero points not constant."""
    layout = _LAYOUT.get(node.op_type)
    if layout is None:
        return None
    constants: dict[str, Array] = dict(_DEFAULTS)
    for field, position in layout.items():
        name = node.input[position] if position < len(node.input) else ""
        if field in {"lhs", "rhs"} or not name:
            continue
        value = index.constant(name)
        if value is None:
            return None
        constants[field] = value
    attributes = {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}
    return IntegerProduct(
        kernel=node.op_type,
        node=node.name,
        lhs=node.input[layout["lhs"]],
        rhs=node.input[layout["rhs"]],
        output=node.output[0],
        transpose_lhs=bool(attributes.get("transA", 0)),
        transpose_rhs=bool(attributes.get("transB", 0)),
        alpha=float(attributes.get("alpha", 1.0)),
        **constants,
    )


def operand_types(index: GraphIndex, product: IntegerProduct) -> tuple[int, int]:
    """TensorProto types of the left and right codes: as the graph declares them, else those of the zero points."""
    sides = ((product.lhs, product.lhs_zero), (product.rhs, product.rhs_zero))
    left, right = (index.element_type(name) or _onnx_type(zero) for name, zero in sides)
    return left, right


def product_nodes(index: GraphIndex) -> Iterator[tuple[ProductName, onnx.NodeProto]]:
    """Every node that computes a named product, with the product's name."""
    for node in index.nodes:
        name = parse_name(node.name) if node.op_type in PRODUCT_KERNELS else None
        if name is not None:
            yield name, node


def _onnx_type(array: Array) -> int:
    return int(onnx.helper.np_dtype_to_tensor_dtype(array.dtype))
