"""The products that a graph computes in float: which product of the file each of them is.

A product that stays in float is called `stem.conv/float_Conv`. ONNX Runtime's convolutions over blocks of channels lose
that name and are called after the tensor they write, behind what was fused into them: `relu_4_nchwc`. They are followed
back to the file's product that the tensor was computed from. A batch norm next to them becomes a convolution of one
pixel and one channel, called `norm_2_bn_nchwc`: it is no product.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import onnx

from ptq4vit_onnx.graph.integer_products import FLOAT_KERNELS, OTHER_KERNELS, GraphIndex, parse_name
from ptq4vit_onnx.graph.movement import MOVING

FLOAT_PRODUCTS = FLOAT_KERNELS | OTHER_KERNELS | {
    "ConvTranspose", "NhwcFusedConv", "FusedConvTranspose", "FusedMatMulActivation", "Einsum", "TransposeMatMul",
    "Attention", "MultiHeadAttention", "GroupQueryAttention", "PackedAttention", "LSTM", "GRU", "RNN", "DeformConv",
}  # fmt: skip
_FUSED_BEHIND = MOVING | {
    "Add", "BatchNormalization", "Clip", "Div", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu", "Mul", "Relu",
    "Sigmoid", "Sub", "Sum", "Tanh",
}  # fmt: skip
_FLOAT_NAME = re.compile(r"(?P<product>[^/\s]+)/float_[A-Z][A-Za-z]*(?:_\d+)?(?![A-Za-z0-9])")
_BLOCKED = "_nchwc"


@dataclass(frozen=True)
class FloatNode:
    """One product of the executed graph. node: the name of the file's node that it computes, or its own.

    marked: the name of the product, where the file says that it stays in float.
    """

    kernel: str
    node: str
    marked: str | None


def marked_float(node_name: str) -> str | None:
    """`stem.conv/float_Conv` -> stem.conv; None for a node that is not marked."""
    match = _FLOAT_NAME.search(node_name)
    return match["product"] if match else None


def float_products(executed: GraphIndex, source: GraphIndex) -> Iterator[FloatNode]:
    """Every product that depends on the image and is not computed by an integer kernel."""
    pixels = made_of_pixels(executed)
    for node in executed.nodes:
        if node.op_type in FLOAT_PRODUCTS and node.output[0] in pixels and not _is_batch_norm(source, node):
            name = node.name if _is_named(node.name) else _origin(source, node)
            yield FloatNode(node.op_type, name, marked_float(name))


def made_of_pixels(index: GraphIndex) -> set[str]:
    """The tensors whose values depend on the graph's input; on its shape alone does not count."""
    found = set(index.inputs)
    for node in index.nodes:
        if node.op_type not in ("Shape", "Size") and any(name in found for name in node.input):
            found.update(node.output)
    return found


def _is_batch_norm(source: GraphIndex, node: onnx.NodeProto) -> bool:
    maker = source.producer.get(node.name.removesuffix(f"_bn{_BLOCKED}"))
    return maker is not None and maker.op_type == "BatchNormalization"


def _is_named(node_name: str) -> bool:
    return parse_name(node_name) is not None or marked_float(node_name) is not None


def _origin(source: GraphIndex, node: onnx.NodeProto) -> str:
    """The name of the file's product that is nearest behind the tensor that `node` writes; its own if none is near."""
    wave = [node.output[0], node.name.removesuffix(_BLOCKED)]
    seen: set[str] = set()
    while wave:
        makers = [source.producer[name] for name in wave if name in source.producer]
        for maker in makers:
            if maker.op_type in FLOAT_PRODUCTS:
                return maker.name
        seen.update(wave)
        behind = [name for maker in makers if maker.op_type in _FUSED_BEHIND for name in maker.input]
        wave = [name for name in dict.fromkeys(behind) if name and name not in seen]
    return node.name
