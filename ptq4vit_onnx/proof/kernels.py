"""The kernel audit: on which kernel does ONNX Runtime run every planned product, and is it exact on every
CPU?

A graph is only integer after the *optimised* graph has been looked at: the runtime's fusions may take a
quantised product back to float without a word. A product that is neither planned nor, by the plan, left in float counts
as one that should be in integers. And u8 x s8 saturates in 16 bits on CPUs without VNNI; whether
it can is decided here by arithmetic on the weights, so the answer is the same on any CPU.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

from ptq4vit_onnx.errors import ParityError
from ptq4vit_onnx.graph.float_products import float_products
from ptq4vit_onnx.graph.integer_products import (
    INTEGER_KERNELS,
    PRODUCT_KERNELS,
    Array,
    GraphIndex,
    IntegerProduct,
    ProductName,
    operand_types,
    parse_name,
    product_nodes,
    read_product,
)
from ptq4vit_onnx.graph.model_proto import Model, load
from ptq4vit_onnx.graph.value_ranges import code_bounds
from ptq4vit_onnx.plan.quantizers import Quantizer
from ptq4vit_onnx.plan.saturation_safe_weights import INT16_MAX, saturating_pairs
from ptq4vit_onnx.plan.scale_plan import ScalePlan, SitePlan
from ptq4vit_onnx.runtime.session import optimised_model

MISSING = "not found"
LARGEST_CODE = 255
_SHORT: dict[int, str] = {TensorProto.UINT8: "u8", TensorProto.INT8: "s8", TensorProto.FLOAT: "float"}


@dataclass(frozen=True)
class ProductKernel:
    """One product in the executed graph. unsafe: why it may saturate, if it may.

    operands: the types of the left and the right side, ("u8", "s8"); empty for a product that was not found.
    """

    site: str
    product: str
    kernel: str
    integer: bool
    operands: tuple[str, ...]
    unsafe: str | None = None

    def __str__(self) -> str:
        return f"{self.site}/{self.product} ({self.kernel})"

    def to_data(self) -> dict[str, Any]:
        return {**asdict(self), "operands": " x ".join(self.operands)}


@dataclass(frozen=True)
class KernelAudit:
    """Every product of every planned site, and how often each op occurs in the graph that is executed.

    products: those that must run in integers: the planned ones, and any that the plan knows nothing of. floats: those
    that the plan leaves in float; site is the product's name.
    """

    products: tuple[ProductKernel, ...]
    op_counts: Mapping[str, int]
    floats: tuple[ProductKernel, ...] = ()

    @property
    def fell_back(self) -> tuple[str, ...]:
        """Sites with a product that does not run in integers or cannot be found."""
        return tuple(dict.fromkeys(product.site for product in self.products if not product.integer))

    @property
    def unsafe(self) -> tuple[ProductKernel, ...]:
        return tuple(product for product in self.products if product.unsafe)

    @property
    def integers(self) -> int:
        return sum(product.integer for product in self.products)

    @property
    def fraction(self) -> str:
        """How many products run in integers, of how many: "44 of 44"."""
        return f"{self.integers} of {len(self.products) + len(self.floats)}"

    def __str__(self) -> str:
        asked = f", {len(self.floats)} stay in float as the plan says" if self.floats else ""
        return f"{self.fraction} products in integers{asked}"

    def require_integer(self) -> None:
        """Raise ParityError, naming the products, unless all of them run on integer kernels."""
        if self.integers != len(self.products):
            names = [str(product) for product in self.products if not product.integer]
            raise ParityError(f"{self}; not in integers: {_few(names)}")

    def require_exact(self) -> None:
        """Raise ParityError unless no product can saturate on a CPU without VNNI."""
        if self.unsafe:
            names = [f"{product}: {product.unsafe}" for product in self.unsafe]
            raise ParityError(f"{len(names)} products can saturate on CPUs without VNNI: {_few(names)}")

    def to_data(self) -> dict[str, Any]:
        return {
            "summary": str(self),
            "fell_back": list(self.fell_back),
            "products": [product.to_data() for product in self.products],
            "op_counts": dict(self.op_counts),
            "floats": [product.to_data() for product in self.floats],
        }


def audit(model: Model, plan: ScalePlan | None = None, optimised: onnx.ModelProto | None = None) -> KernelAudit:
    """Find each planned product of `model` in the graph that ONNX Runtime makes of it.

    Without a plan, every named product of the model is looked for, and left codes are taken to reach 255:
    this is how a model made by another tool from the same float file is counted.
    """
    executed = GraphIndex(optimised if optimised is not None else optimised_model(model))
    source = GraphIndex(load(model, weights=False))
    found = [_inspect(executed, name, node, plan) for name, node in _expected(source, executed, plan)]
    floats, unplanned = outside_the_sites(executed, source, plan)
    counts = Counter(node.op_type for node in executed.nodes)
    ordered = dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))
    return KernelAudit((*found, *unplanned), ordered, tuple(floats))


def outside_the_sites(
    executed: GraphIndex, source: GraphIndex, plan: ScalePlan | None
) -> tuple[list[ProductKernel], list[ProductKernel]]:
    """Products in float that are no planned site's: (those that may be, those that the plan does not know).

    Without a plan, what the file marks as float may be, and products of other names are not counted.
    """
    allowed: list[ProductKernel] = []
    unknown: list[ProductKernel] = []
    for item in float_products(executed, source):
        site, _, operation = item.node.partition("/")
        kernel = ProductKernel(item.marked or site or item.kernel, operation or item.kernel, item.kernel, False, ())
        if item.marked is not None and (plan is None or item.marked in plan.floats):
            allowed.append(kernel)
        elif plan is not None and (site not in plan.sites or parse_name(item.node) is None):
            unknown.append(kernel)
    return allowed, unknown


def largest_code(index: GraphIndex, product: IntegerProduct, branch: str, site: SitePlan | None, merged: bool) -> int:
    """The largest unsigned left code that can occur: what the graph proves, or the site's quantizer if lower.

    The quantizer's bound follows from the zero point that is really in the graph: -x shipped under zero point
    255 reaches 255, whatever the number of bits. Signed left codes are shifted up by 128 inside the kernel.
    """
    shift = 128 if operand_types(index, product)[0] == TensorProto.INT8 else 0
    proven = int(min(LARGEST_CODE, code_bounds(index, product.lhs)[1] + shift))
    if site is None or product.lhs_zero.size != 1:
        return proven
    quantizer = site.outliers.lhs if branch == "outliers" and site.outliers else site.lhs
    zero = int(product.lhs_zero.reshape(-1)[0]) + shift
    return min(proven, zero + (_merged_reach(quantizer) if merged else quantizer.branch(branch).reach))


def _merged_reach(quantizer: Quantizer) -> int:
    """How far above zero its codes reach in one product: those of a twin counted in steps of the fine range."""
    fine, coarse = quantizer.branches[0], quantizer.branches[-1]
    return round(coarse.high * (coarse.steps[0] / fine.steps[0]))


def _expected(source: GraphIndex, executed: GraphIndex, plan: ScalePlan | None) -> list[tuple[ProductName, Any]]:
    """Products that must exist, each with its node in the executed graph (None where it is missing).

    They are those the model's file names, plus the main product of a planned site that the file does not
    name.
    """
    wanted = {name: node for name, node in product_nodes(source) if plan is None or name.site in plan.sites}
    by_name: dict[ProductName, list[Any]] = {}
    for name, node in product_nodes(executed):
        by_name.setdefault(name, []).append(node)
    pairs = [
        (name, found) for name, node in wanted.items() for found in by_name.get(name) or [_by_output(executed, node)]
    ]
    return pairs + [(name, None) for name in planned_but_absent(set(wanted), plan)]


def planned_but_absent(present: set[ProductName], plan: ScalePlan | None) -> list[ProductName]:
    absent = []
    for site, choice in (plan.sites if plan else {}).items():
        branches = {name.branch for name in present if name.site == site}
        if "" not in branches:
            absent.append(ProductName(site, "MatMul"))
        if choice.outliers is not None and "outliers" not in branches:
            absent.append(ProductName(site, "MatMul.outliers"))
    return absent


def _by_output(executed: GraphIndex, node: Any) -> Any:
    """The product kernel that writes the tensor the node wrote, for a fusion with a name of its own."""
    candidate = executed.producer.get(node.output[0])
    return candidate if candidate is not None and candidate.op_type in PRODUCT_KERNELS else None


def _inspect(index: GraphIndex, name: ProductName, node: Any, plan: ScalePlan | None) -> ProductKernel:
    if node is None:
        return ProductKernel(name.site, name.product, MISSING, False, ())
    integer = node.op_type in INTEGER_KERNELS
    product = read_product(index, node)
    if product is not None:
        types = operand_types(index, product)
    else:
        types = (index.element_type(node.input[0]), index.element_type(node.input[1]))
    operands = tuple(_SHORT.get(kind, "?") for kind in types)
    unsafe = _why_unsafe(index, name, node, plan) if integer else None
    return ProductKernel(name.site, name.product, node.op_type, integer, operands, unsafe)


def _why_unsafe(index: GraphIndex, name: ProductName, node: Any, plan: ScalePlan | None) -> str | None:
    """Why the kernel may saturate. u8 on the right is exact everywhere: its kernels add in 32 bits."""
    if node.op_type == "QLinearConv":
        return _why_conv_unsafe(index, node)
    product = read_product(index, node)
    if product is None:
        return "its scales or zero points are not constants"
    _, rhs_type = operand_types(index, product)
    if rhs_type == TensorProto.UINT8:
        return None
    if rhs_type != TensorProto.INT8:
        return "the type of its right side is unknown"
    site = plan.sites.get(name.site) if plan else None
    merged = not _has_coarse_sibling(index, name)
    bound = largest_code(index, product, name.branch, site, merged)
    codes = index.constant(product.rhs)
    if codes is None:
        largest = int(min(128, max(np.abs(code_bounds(index, product.rhs)))))
        fits = 2 * bound * largest <= INT16_MAX
        return None if fits else f"signed activations up to {largest} next to codes up to {bound}; use u8 x u8"
    return _count_pairs(codes.T if product.transpose_rhs else codes, bound)


def _why_conv_unsafe(index: GraphIndex, node: Any) -> str | None:
    codes = index.constant(node.input[3])
    if codes is None:
        return "weights that are not constants"
    if codes.dtype == np.uint8:
        return None
    # the kernel lays patches out with the channels innermost, so these are the neighbours along K
    rows = np.moveaxis(codes, 1, -1).reshape(codes.shape[0], -1).T
    return _count_pairs(rows, LARGEST_CODE)


def _count_pairs(codes: Array, bound: int) -> str | None:
    count = saturating_pairs(codes.reshape(-1, codes.shape[-1]), bound)
    return f"{count} pairs of weights overflow 16 bits next to codes up to {bound}" if count else None


def _has_coarse_sibling(index: GraphIndex, name: ProductName) -> bool:
    return any(other.site == name.site and other.branch == "coarse" for other, _ in product_nodes(index))


def _few(names: list[str], shown: int = 8) -> str:
    rest = len(names) - shown
    return "; ".join(names[:shown]) + (f"; and {rest} more" if rest > 0 else "")
