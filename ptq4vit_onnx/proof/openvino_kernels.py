"""The kernel audit in OpenVINO: in which layer does it compute every product, and from integers?

OpenVINO fuses what it can and says of each layer which nodes of the file it computes. The layer of one product
(FullyConnected, MatMul, Convolution) has the product's name among those, or, where only what was fused behind it is
named, another name of the same site: `blocks.0.attn.qk/Mul`. A whole attention may become one Subgraph with both of its
products.

What counts are the types of each product's operands. OpenVINO states one precision for a layer, and calls a Subgraph i8
if one of its products has integer operands, whatever the other has. The inside of a Subgraph is not shown: its second
product counts as integer if the values, its right side, enter as integers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from ptq4vit_onnx.graph.integer_products import GraphIndex, ProductName, parse_name, product_nodes
from ptq4vit_onnx.graph.model_proto import load
from ptq4vit_onnx.plan.scale_plan import ScalePlan
from ptq4vit_onnx.proof.kernels import MISSING, KernelAudit, ProductKernel, audit, outside_the_sites, planned_but_absent
from ptq4vit_onnx.runtime.engines import EngineName, is_own_format, require_engine
from ptq4vit_onnx.runtime.runner import Layer

_ONE_PRODUCT = ("FullyConnected", "MatMul", "Convolution", "GroupConvolution")  # how such kinds of layers begin
_SEVERAL = ("Subgraph", "ScaledDotProductAttention")
_SHORT = {"u8": "u8", "i8": "s8", "f32": "float"}
_ATTENTION_INPUTS = 3
_INSIDE = "inside"  # an operand that is computed in the same layer


def audit_in(engine: EngineName, path: Path, plan: ScalePlan | None = None) -> KernelAudit:
    """The kernels of a model file in this engine."""
    return audit_openvino(path, plan) if engine == "openvino" else audit(path, plan)


def audit_openvino(path: Path, plan: ScalePlan | None = None) -> KernelAudit:
    """Find each planned product of a file in the graph that OpenVINO executes; without a plan, each named one.

    Whether a product can saturate is not asked: `audit` does, and the codes are the same.
    """
    require_engine("openvino")
    from ptq4vit_onnx.runtime import openvino_engine

    layers = openvino_engine.load(path).layers()
    floats: list[ProductKernel] = []
    unplanned: list[ProductKernel] = []
    tensors: dict[str, ProductName] = {}
    if is_own_format(path):
        names = [name for node in openvino_engine.product_names(path) if (name := parse_name(node)) is not None]
    else:
        source = GraphIndex(load(path, weights=False))
        names = [name for name, _ in product_nodes(source) if plan is None or name.site in plan.sites]
        tensors = {node.output[0]: name for name, node in product_nodes(source)}
        floats, unplanned = outside_the_sites(source, source, plan)
    wanted = [*dict.fromkeys(names), *planned_but_absent(set(names), plan)]
    counts = Counter(layer.kind for layer in layers)
    ordered = dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))
    return KernelAudit((*find_products(layers, wanted, tensors), *unplanned), ordered, tuple(floats))


def find_products(
    layers: Sequence[Layer], wanted: Sequence[ProductName], tensors: Mapping[str, ProductName] | None = None
) -> list[ProductKernel]:
    """The layer that computes each product: by the product's name, else by its site's, else by its output's.

    tensors: the name of a product's output -> the product. What ends the graph may be called after it.
    """
    found: dict[ProductName, ProductKernel] = {}
    nameless: list[Layer] = []
    for layer in layers:
        inside = _products_in(layer)
        found.update({name: _kernel(name, layer, place) for name, place in inside.items()})
        if not inside and layer.kind.startswith(_ONE_PRODUCT):
            nameless.append(layer)
    missing = [name for name in wanted if name not in found]
    for name in missing:
        kernel = _in_attention(name, layers) or _by_site(name, nameless, missing)
        found[name] = kernel or _by_output(name, nameless, tensors or {})
    return [found[name] for name in wanted]


def _products_in(layer: Layer) -> dict[ProductName, int]:
    """The products that a layer names, and where among what it computes.

    Of a layer of several products only whole names count: a rescaling behind a product, fused into a Subgraph that
    computes none, is called `SITE/MatMul/DequantizationMultiply`.
    """
    parsed = {place: name for place, origin in enumerate(layer.origins) if (name := parse_name(origin)) is not None}
    if layer.kind.startswith(_ONE_PRODUCT):
        return {name: place for place, name in list(parsed.items())[:1]}
    if not layer.kind.startswith(_SEVERAL):
        return {}
    return {name: place for place, name in parsed.items() if layer.origins[place] == str(name)}


def _in_attention(name: ProductName, layers: Sequence[Layer]) -> ProductKernel | None:
    """A product of an attention that names, of this product, only what was fused behind it: `SITE/Mul`."""
    for layer in layers:
        behind = [place for place, origin in enumerate(layer.origins) if _is_behind(origin, name)]
        if behind and layer.kind.startswith(_SEVERAL) and (_products_in(layer) or _is_attention(layer)):
            return _kernel(name, layer, behind[0])
    return None


def _is_attention(layer: Layer) -> bool:
    """A softmax among what it computes, from queries, keys and values."""
    softmax = any(origin.rpartition("/")[2].startswith("Softmax") for origin in layer.origins)
    return softmax and len(layer.computed) >= _ATTENTION_INPUTS


def _is_behind(origin: str, name: ProductName) -> bool:
    """What prepares a product's operands has another name in between: SITE/lhs/QuantizeLinear."""
    return origin.partition("/")[0] == name.site and origin.count("/") == 1


def _by_site(name: ProductName, nameless: Sequence[Layer], missing: Sequence[ProductName]) -> ProductKernel | None:
    """Layers of the site that name no product, in the order of the site's products; None if there are more or fewer."""
    own = [layer for layer in nameless if any(_site_of(origin) == name.site for origin in layer.origins)]
    alike = [other for other in missing if other.site == name.site]
    return _kernel(name, own[alike.index(name)], 0) if len(own) == len(alike) else None


def _by_output(name: ProductName, nameless: Sequence[Layer], tensors: Mapping[str, ProductName]) -> ProductKernel:
    for layer in nameless:
        if any(tensors.get(origin) == name for origin in layer.origins):
            return _kernel(name, layer, 0)
    return ProductKernel(name.site, name.product, MISSING, False, ())


def _site_of(origin: str) -> str:
    return origin.partition("/")[0].removesuffix(".outliers")


def _kernel(name: ProductName, layer: Layer, place: int) -> ProductKernel:
    """place: of the product among what the layer computes.

    In an attention the first product reads queries and keys, the first two inputs; the one behind the softmax
    multiplies what it returns by the values, the last input that is no constant.
    """
    if layer.kind.startswith(_ONE_PRODUCT):
        types = layer.inputs[:2]
    elif any(origin.rpartition("/")[2].startswith("Softmax") for origin in layer.origins[:place]):
        types = (_INSIDE, *layer.computed[-1:])
    else:
        types = layer.computed[:2]
    operands = tuple(_SHORT.get(kind, kind) for kind in types)
    integer = len(operands) == 2 and all(kind in ("u8", "s8", _INSIDE) for kind in operands)
    return ProductKernel(name.site, name.product, layer.kind, integer, operands)
