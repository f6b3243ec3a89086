"""Find the planned products, and refuse a model that is not a float model of the plan's sites."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_graphsurgeon as gs

from ptq4vit_onnx.errors import UserError
from ptq4vit_onnx.passes.pass_interface import Pass
from ptq4vit_onnx.passes.work import Product, Violation, Work, invariant
from ptq4vit_onnx.plan.scale_plan import SitePlan

_QUANTIZED = (
    "QuantizeLinear",
    "DequantizeLinear",
    "MatMulInteger",
    "QLinearMatMul",
    "QLinearConv",
    "ConvInteger",
)
_PRODUCT_OF_KIND = {"linear": ("MatMul", "Gemm"), "conv": ("Conv",), "matmul": ("MatMul",)}


@invariant("the graph holds the product of every site of the plan")
def products_are_there(work: Work) -> Iterator[Violation]:
    nodes = {id(node) for node in work.graph.nodes}
    yield from (item.violation("it is not in the graph") for item in work.products if id(item.node) not in nodes)
    missing = work.plan.sites.keys() - {item.site for item in work.products}
    yield from (Violation(site, "none", "no product is bound to the site") for site in sorted(missing))


class FindProducts(Pass):
    """Bind every site of the plan to its product node SITE/MatMul, SITE/Gemm or SITE/Conv.

    Refuses a graph with quantised operations (it would be quantised twice), with operations outside the
    default domain, without one of the planned products, or with a plan that has no meaning for its site.
    """

    ensures = (products_are_there,)

    def apply(self, work: Work) -> int:
        by_name = {node.name: node for node in work.graph.nodes}
        for node in work.graph.nodes:
            _check_node(node)
        for site, plan in work.plan.sites.items():
            self._check_plan(site, plan)
            names = [f"{site}/{operation}" for operation in _PRODUCT_OF_KIND[plan.kind]]
            found = [by_name[name] for name in names if name in by_name]
            if len(found) != 1:
                raise UserError(
                    f"the model has no product for the plan's site {site}: expected one node "
                    f"{' or '.join(names)}, found {len(found)}; is the plan from another model?"
                )
            has_weight = plan.kind != "matmul"
            work.products.append(Product(site, found[0], plan, plan.lhs, plan.rhs, has_weight))
        return len(work.products)

    def _check_plan(self, site: str, plan: SitePlan) -> None:
        expected = plan.lhs.source
        if expected not in (None, plan.lhs_source):
            raise UserError(
                f"plan, site {site}: {type(plan.lhs).__name__} needs a left side out of {expected}, "
                f"this one comes out of {plan.lhs_source}; choose Uniform or Affine"
            )
        if plan.kind != "matmul" and plan.lhs.groups > 1:
            raise UserError(f"plan, site {site}: lhs has several scales, a {plan.kind} takes one")
        if plan.outliers is not None and plan.kind != "linear":
            raise UserError(f"plan, site {site}: outliers are for linear sites, this one is a {plan.kind}")


def _check_node(node: gs.Node) -> None:
    if node.op in _QUANTIZED:
        raise UserError(
            f"the model is already quantised: it holds {node.op} {node.name!r}; give the float model instead"
        )
    if node.domain not in (None, "", "ai.onnx"):
        raise UserError(f"node {node.name!r} is {node.domain}.{node.op}; only standard ONNX operations are supported")
