"""Parity of one product at a time: ONNX Runtime's own kernels against the integer oracle and the plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import onnx

from ptq4vit_onnx.errors import ParityError
from ptq4vit_onnx.graph.code_paths import CodePath, code_path, twin_source
from ptq4vit_onnx.graph.integer_products import (
    Array,
    GraphIndex,
    IntegerProduct,
    ProductName,
    product_nodes,
    read_product,
)
from ptq4vit_onnx.graph.model_proto import Model
from ptq4vit_onnx.plan.quantizers import Quantizer
from ptq4vit_onnx.plan.scale_plan import ScalePlan, SitePlan
from ptq4vit_onnx.proof import oracle, plan_checks
from ptq4vit_onnx.proof.float_sites import FloatSites, output_tensors
from ptq4vit_onnx.runtime.inner_tensors import fetch
from ptq4vit_onnx.runtime.session import optimised_model

SITES_AT_ONCE = 8  # how many sites' tensors are held in memory together


@dataclass(frozen=True)
class SiteParity:
    """One product against the oracle.

    checked: what could be held against the plan besides the product itself: weight, scales, codes.
    exact: everything checked is equal, the output up to float32 rounding. failure: a sentence if not.
    """

    site: str
    product: str
    kernel: str
    exact: bool
    max_error: float | None
    tolerance: float
    checked: tuple[str, ...] = ()
    failure: str | None = None

    def to_data(self) -> dict[str, Any]:
        return asdict(self)


def check_sites(
    model: Model,
    plan: ScalePlan,
    images: Array,
    float_sites: FloatSites | None = None,
    optimised: onnx.ModelProto | None = None,
) -> list[SiteParity]:
    """Hold every planned product against the integer oracle, on the runtime's own inputs.

    The graph ONNX Runtime makes of `model` is run as it is, with its kernels' inputs and outputs laid open,
    on a few images. float_sites: the float model's weights and biases; without them the integer weights are
    taken as they stand. A planned site without an integer kernel is a failure.
    """
    executed = optimised if optimised is not None else optimised_model(model)
    index = GraphIndex(executed)
    outputs = output_tensors(model, plan.sites)
    kernels: dict[str, dict[ProductName, IntegerProduct]] = {}
    for name, node in product_nodes(index):
        product = read_product(index, node)
        if product is not None and name.site in plan.sites:
            kernels.setdefault(name.site, {})[name] = product
    tasks = [
        _SiteTask(index, site, kernels[site], plan, float_sites, outputs.get(site, ""))
        for site in plan.sites
        if site in kernels
    ]
    results: list[SiteParity] = []
    for start in range(0, len(tasks), SITES_AT_ONCE):
        group = tasks[start : start + SITES_AT_ONCE]
        names = list(dict.fromkeys(tensor for task in group for tensor in task.tensors()))
        values = fetch(executed, names, images)
        for task in group:
            results += task.check(values)
    found = {result.site for result in results if "." not in result.product}
    results += [_missing(site) for site in plan.sites if site not in found]
    order = {site: position for position, site in enumerate(plan.sites)}
    return sorted(results, key=lambda result: order[result.site])


def require_exact(results: Sequence[SiteParity]) -> None:
    """Raise ParityError with the first failure's sentence unless every product is exact."""
    failures = [result for result in results if not result.exact]
    if failures:
        first = failures[0]
        raise ParityError(
            f"{len(failures)} of {len(results)} products are not exact; the first is "
            f"{first.site}/{first.product}: {first.failure}"
        )


@dataclass(frozen=True)
class _SiteTask:
    """All checks of one site. kernels: its products; output: the tensor that holds the site's output."""

    index: GraphIndex
    name: str
    kernels: Mapping[ProductName, IntegerProduct]
    plan: ScalePlan
    float_sites: FloatSites | None
    output: str

    @property
    def site(self) -> SitePlan:
        return self.plan.sites[self.name]

    def tensors(self) -> list[str]:
        """Names of the computed tensors the checks read."""
        names = [self._twin_source() or "", self.output if self._site_output_can_be_checked() else ""]
        for product in self.kernels.values():
            names += [product.lhs, product.rhs, product.output]
            for side in (product.lhs, product.rhs):
                path = code_path(self.index, side)
                names += [path.floats, path.codes] if path is not None else []
        return [name for name in names if name and not self.index.is_constant(name)]

    def check(self, values: Mapping[str, Array]) -> list[SiteParity]:
        sums = {
            name: oracle.accumulators(product, self._lhs(product, values), self._value(product.rhs, values))
            for name, product in self.kernels.items()
        }
        return [self._check_product(name, sums, values) for name in self.kernels]

    def _check_product(
        self, name: ProductName, sums: Mapping[ProductName, Array], values: Mapping[str, Array]
    ) -> SiteParity:
        product = self.kernels[name]
        compared = oracle.compare(product, sums[name], values[product.output])
        findings = {"product": compared.failure, **self._codes(name, values)}
        if self.site.kind != "matmul":
            findings.update(self._weights(name, sums[name].shape[-1]))
        elif product.output_scale is not None:
            planned = plan_checks.planned_scale(name, self.site, sums[name].shape[-1])
            findings["scale"] = plan_checks.check_product_scale(product, planned)
        if not name.branch:
            findings.update(self._twin(values) if self._twin_source() else {})
            findings.update(self._site_output(name, sums, values) if self._site_output_can_be_checked() else {})
        failures = [sentence for sentence in findings.values() if sentence]
        return SiteParity(
            name.site,
            name.product,
            product.kernel,
            not failures,
            compared.max_error,
            compared.tolerance,
            tuple(findings),
            "; ".join(failures) or None,
        )

    def _weights(self, name: ProductName, outputs: int) -> dict[str, str | None]:
        product = self.kernels[name]
        found = {
            "left scale": plan_checks.check_lhs_scale(name, product, self.site),
            "weight scales": plan_checks.check_weight_scale(name, product, self.plan, outputs),
        }
        codes = self.index.constant(product.rhs)
        if codes is None:
            found["weight"] = "the weight is not a constant"
        elif self.float_sites is not None:
            weight = self.float_sites.weight(self.name)
            found["weight"] = plan_checks.check_weight(name, product, codes, self.site, weight)
        return found

    def _codes(self, name: ProductName, values: Mapping[str, Array]) -> dict[str, str | None]:
        found: dict[str, str | None] = {}
        product = self.kernels[name]
        sides = (("left", product.lhs, product.lhs_zero), ("right", product.rhs, product.rhs_zero))
        quantizers = plan_checks.sides_of(name, self.site)
        for side, (what, tensor, zero) in enumerate(sides):
            path, quantizer = code_path(self.index, tensor), quantizers[side]
            if path is None:
                continue
            branch = quantizer.branch(name.branch)
            found[f"{what} range"] = plan_checks.check_range(branch, path, zero)
            if len(quantizer.branches) > 1:
                continue  # of a twin, both branches are held against what softmax or GELU returned
            if quantizer.colours and side == 0:
                found.update(self._pixels(quantizer, path, values))
                continue
            found[f"{what} step"] = plan_checks.check_step(branch, path)
            if path.floats:
                floats, codes = self._value(path.floats, values), values[path.codes]
                found[f"{what} codes"] = plan_checks.check_codes(branch, path, floats, codes, zero)
        if name.branch == "outliers" and self.site.outliers is not None:
            channels = self.site.outliers.channels
            found["channels"] = plan_checks.check_channels(self.index, product.lhs, channels)
        return found

    def _pixels(self, quantizer: Quantizer, path: CodePath, values: Mapping[str, Array]) -> dict[str, str | None]:
        return {
            "left colours": plan_checks.check_colours(self.index, quantizer, path),
            "left codes": plan_checks.check_bytes(quantizer, path, values[path.floats], values[path.codes]),
        }

    def _twin(self, values: Mapping[str, Array]) -> dict[str, str | None]:
        """Both branches together, or the one product they were merged into."""
        source = self._twin_source()
        assert source is not None
        branches = [
            (product, values[product.lhs]) for name, product in self.kernels.items() if name.branch in {"", "coarse"}
        ]
        return {"twin codes": plan_checks.check_twin(self.site.lhs, values[source], branches)}

    def _twin_source(self) -> str | None:
        main = next((product for name, product in self.kernels.items() if not name.branch), None)
        if main is None or len(self.site.lhs.branches) == 1:
            return None
        return twin_source(self.index, main.lhs)

    def _site_output(
        self, main: ProductName, sums: Mapping[ProductName, Array], values: Mapping[str, Array]
    ) -> dict[str, str | None]:
        """The sum of the site's products, each worth what the plan says, and the bias.

        A fused qkv may compute in units of its heads' scales: then all of it carries the columns' factors.
        """
        outputs = sums[main].shape[-1]
        terms = [sums[name] * plan_checks.planned_scale(name, self.site, outputs) for name in self.kernels]
        bias: Array = np.zeros(())
        if self.site.kind != "matmul" and self.float_sites is not None:
            bias = self.float_sites.bias(self.name) + np.asarray(self.site.bias_correction or 0.0)
            bias = bias + plan_checks.planned_constant(self.site, self.float_sites.weight(self.name))
            factor = plan_checks.column_factors(self.kernels[main].rhs_scale, self.site.rhs, outputs)
            terms, bias = [term * factor for term in terms], bias * factor
        return {"site output": oracle.compare_site(terms, bias, values[self.output]).failure}

    def _site_output_can_be_checked(self) -> bool:
        """Not where the runtime fused the output into a later node, or where a kernel returns codes or adds a bias."""
        if self.output not in self.index.producer:
            return False
        plain = all(item.bias is None and item.output_scale is None for item in self.kernels.values())
        return plain and (self.site.kind == "matmul" or self.float_sites is not None)

    def _lhs(self, product: IntegerProduct, values: Mapping[str, Array]) -> Array:
        """The left codes. Of a file of static batch they may be a constant (a query that was learnt, for every place
        in the batch): then those of the places where the images stood."""
        constant = self.index.constant(product.lhs)
        if constant is None:
            return values[product.lhs]
        images = len(self._value(product.rhs, values))
        return np.asarray(constant[np.arange(images) % len(constant)])

    def _value(self, name: str, values: Mapping[str, Array]) -> Array:
        constant = self.index.constant(name)
        return values[name] if constant is None else constant


def _missing(site: str) -> SiteParity:
    sentence = "no integer kernel computes this site in the graph that ONNX Runtime executes"
    return SiteParity(site, "MatMul", "not found", False, None, 0.0, (), sentence)
