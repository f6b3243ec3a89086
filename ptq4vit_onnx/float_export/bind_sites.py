"""Give the exporter's nodes the names of the sites they compute."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from ptq4vit_onnx.errors import UserError
from ptq4vit_onnx.plan.sites import FloatProduct, Site

_SCOPES = "pkg.torch.onnx.name_scopes"
PRODUCTS = ("MatMul", "Gemm", "Conv", "ConvTranspose")


def bind_sites(model: Any, products: Sequence[Site | FloatProduct]) -> None:
    """Rename nodes in place by module scope, and products by site; then drop the exporter's own metadata.

        node_MatMul_12   becomes   blocks.0.attn.qkv/MatMul
        node_matmul_1    becomes   blocks.0.attn.pv/MatMul      (the second product of scope blocks.0.attn)

    The n-th product node of a scope is the n-th product of that scope. One that stays in float is no site, and says so:
    stem.conv/float_Conv; nor is one that depends on no pixel: attn_pool.q/constant_MatMul.
    This runs on the ModelProto, because onnx-graphsurgeon drops metadata; and dropping it keeps stack traces and local
    paths out of the file.
    Raises where the graph holds more or fewer products than the model computed.
    """
    owners = {item.scope for item in products}
    scopes = [_owner_of_weight(node, owners) or _scope_of(node) for node in model.graph.node]
    pixels, vectors = _made_of_pixels(model.graph), _vectors(model.graph)
    names = _product_names(model, scopes, products, pixels)
    linears = {item.name for item in products if isinstance(item, Site) and item.kind == "linear"}
    floats = {item.name for item in products if isinstance(item, FloatProduct)}
    used: dict[str, int] = defaultdict(int)
    for index, (node, scope) in enumerate(zip(model.graph.node, scopes, strict=True)):
        owner = names.get(index) or _bias_owner(model, names, linears, vectors - pixels, index) or scope or "model"
        name = f"{owner}/{_mark(node, names.get(index), floats)}{node.op_type}"
        node.name = f"{name}_{used[name]}" if used[name] else name
        used[name] += 1
    strip_exporter_metadata(model)


def _mark(node: Any, product: str | None, floats: set[str]) -> str:
    """In front of the operation's name, where a node looks like a site's product and is none."""
    if node.op_type not in PRODUCTS:
        return ""
    return "constant_" if product is None else "float_" if product in floats else ""


def _made_of_pixels(graph: Any) -> set[str]:
    """The tensors whose values depend on the graph's input; on its shape alone does not count."""
    found = {item.name for item in graph.input}
    for node in graph.node:
        if node.op_type not in ("Shape", "Size") and any(name in found for name in node.input):
            found.update(node.output)
    return found


def _product_names(
    model: Any, scopes: list[str], products: Sequence[Site | FloatProduct], pixels: set[str]
) -> dict[int, str]:
    found, expected = defaultdict(list), defaultdict(list)
    for index, node in enumerate(model.graph.node):
        if node.op_type in PRODUCTS and node.output[0] in pixels:
            found[scopes[index]].append(index)
    for item in products:
        expected[item.scope].append(item.name)
    for scope in {**expected, **found}:
        if len(found[scope]) != len(expected[scope]):
            raise UserError(
                f"cannot bind sites in {scope or 'the model'}: torch computed {len(expected[scope])} "
                f"products ({', '.join(expected[scope]) or 'none'}), the ONNX graph has {len(found[scope])}; "
                "give a module whose forward has no torch.no_grad, no detach and no torch.autocast, and calls no "
                "module more than once"
            )
    return {index: name for scope in expected for index, name in zip(found[scope], expected[scope], strict=True)}


def _vectors(graph: Any) -> set[str]:
    """The tensors that have one axis."""
    values = {item.name for item in graph.value_info if len(item.type.tensor_type.shape.dim) == 1}
    return values | {tensor.name for tensor in graph.initializer if len(tensor.dims) == 1}


def _bias_owner(model: Any, names: dict[int, str], linears: set[str], biases: set[str], index: int) -> str | None:
    """The linear whose product this Add gives its bias: the Add of a constant vector right behind the product.

    Behind a linear without a bias (the exporter also leaves out one of zeros) a residual, another head or a table of
    positions may be added.
    """
    node, previous = model.graph.node[index], model.graph.node[index - 1]
    name = names.get(index - 1)
    if node.op_type != "Add" or name not in linears or previous.output[0] not in node.input:
        return None
    return name if any(item in biases for item in node.input) else None


def _owner_of_weight(node: Any, owners: set[str]) -> str:
    """The path of the module that has a convolution's weight, if it computes products.

    A convolution into which the exporter has folded a batch norm lies in the norm's scope.
    """
    owner = node.input[1].removesuffix(".weight") if node.op_type == "Conv" else ""
    return owner if owner in owners else ""


def _scope_of(node: Any) -> str:
    """Path of the innermost module: the last but one of the exporter's scopes (the last is the operation)."""
    for entry in node.metadata_props:
        if entry.key == _SCOPES:
            path = ast.literal_eval(entry.value)
            return str(path[-2]) if len(path) > 1 and not path[-2].startswith("_empty_nn_module") else ""
    return ""


def strip_exporter_metadata(model: Any) -> None:
    graph = model.graph
    for holder in (graph, *graph.node, *graph.value_info, *graph.input, *graph.output, *graph.initializer):
        del holder.metadata_props[:]
        holder.doc_string = ""
    del model.metadata_props[:]
    model.doc_string = ""
