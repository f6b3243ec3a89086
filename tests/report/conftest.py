"""A made-up export of five unlike sites: its plan, its evidence, and what report.json would say of it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from ptq4vit_onnx.plan.evidence import Histogram, SearchCurve, SiteEvidence
from ptq4vit_onnx.plan.quantizers import Affine, Quantizer, TwinGelu, TwinSoftmax, Uniform, as_float32
from ptq4vit_onnx.plan.scale_plan import Outliers, ScalePlan, SitePlan
from ptq4vit_onnx.report.charts import points_of
from ptq4vit_onnx.report.page import render

STEP = as_float32(0.02)
QUANTIZERS: dict[str, Quantizer] = {
    "symmetric": Uniform(6, (STEP,)),
    "affine": Affine(6, (STEP,), (20,)),
    "softmax": TwinSoftmax(6, 3),
    "gelu": TwinGelu(6, STEP, 2),
}
WEIGHT = Uniform(8, (STEP, 2 * STEP, 3 * STEP))
NARROW = Outliers((3, 5), Uniform(8, (STEP,)), Uniform(8, (STEP,)))
SITES = {
    "patch_embed.proj": SitePlan("conv", "other", QUANTIZERS["symmetric"], WEIGHT, losses={"hessian": 0.5}),
    "blocks.0.attn.qk": SitePlan("matmul", "other", Uniform(8, (STEP, 2 * STEP), -3), Uniform(8, (STEP,), -3)),
    "blocks.0.attn.pv": SitePlan("matmul", "softmax", QUANTIZERS["softmax"], Uniform(8, (STEP,), -3)),
    "blocks.0.mlp.fc2": SitePlan("linear", "gelu", QUANTIZERS["gelu"], WEIGHT, NARROW, losses={"hessian": 3.0}),
    "head": SitePlan("linear", "other", QUANTIZERS["affine"], WEIGHT),
}
DAMAGE = {"blocks.0.mlp.fc2": 6.0, "head": 2.0}
DECIBELS = {"blocks.0.attn.pv": 20.0, "head": 31.5}


def evidence_of(name: str, plan: SitePlan) -> SiteEvidence:
    twin = isinstance(plan.lhs, (TwinSoftmax, TwinGelu))
    shapes = [(points.first, points.last) for points in points_of(plan.lhs)]
    bins = (40, 56) if twin else (96,)
    histograms = tuple(
        Histogram(low, high, tuple(10 ** (number % 5) for number in range(count)))
        for (low, high), count in zip(shapes, bins, strict=True)
    )
    axis = "shift" if isinstance(plan.lhs, TwinSoftmax) else "scale"
    x = tuple(map(float, range(1, 12))) if axis == "shift" else tuple(0.03 * number for number in range(1, 41))
    best = x[len(x) * 3 // 4]
    losses = {
        metric: tuple(round(1 + 40 * ((value - best) / best) ** 2 * (1 + shift), 4) for value in x)
        for shift, metric in enumerate(("hessian", "mse", "cosine", "pearson"))
    }
    scales = (best, 0.9 * best) if name.endswith("qk") else (best,)
    curve = SearchCurve(axis, x, losses, scales)  # type: ignore[arg-type]
    return SiteEvidence(histograms, 0.001, DECIBELS.get(name, 40.0), DAMAGE.get(name, 1.0), curve)


EVIDENCE = {name: evidence_of(name, plan) for name, plan in SITES.items()}
PLAN = ScalePlan("vit_test", "w" * 64, "i" * 64, {}, {}, SITES)


def report_of(plan: ScalePlan = PLAN, **changes: Any) -> dict[str, Any]:
    products = [
        {"site": name, "product": "MatMul", "kernel": "MatMulIntegerToFloat", "integer": True, "operands": "u8 x s8",
         "unsafe": None} for name in plan.sites
    ]  # fmt: skip
    parity = [{"site": name, "product": "MatMul", "exact": True, "failure": None} for name in plan.sites]
    data: dict[str, Any] = {
        "version": "0.1.0", "model": plan.model, "random_weights": False, "synthetic_images": False,
        "weights_from": "embedded", "bits": {"weights": 8, "activations": 6},
        "options": {"metric": "hessian", "seed": 7, "bias_correction": "none"}, "versions": {"onnxruntime": "1.31.1"},
        "fingerprints": {"weights": plan.weights, "images": plan.images},
        "calibration_images": {"count": 32, "skipped": ["broken.png"]},
        "float_parity": {"images": 8, "error": 2e-7, "tolerance": 1e-4, "passed": True},
        "kernels": {"summary": f"{len(products)} of {len(products)} products in integers", "fell_back": [],
                    "products": products, "op_counts": {"QuantizeLinear": 4}},
        "site_parity": parity,
        "end_to_end": {"passed": True, "sentence": "99.80 % of 500 predictions equal the simulator's"},
        "against_float": {"agreement": 98.4, "kl": 5.7e-5, "top1_float": 99.2, "top1_quantised": 98.9,
                          "drop": {"points": 0.3, "standard_error": 0.2, "images": 500}},
        "measured_on": "500 of embedded digits (test)",
        "passes": {"moved_weights": {"head": 12, "patch_embed.proj": 30}},
        "bytes": {"float": 1_252_262, "model": 418_535}, "seconds": {"load": 3.2, "calibrate": 4.5},
    }  # fmt: skip
    return {**copy.deepcopy(data), **changes}


def page(**changes: Any) -> str:
    return render(report_of(**changes), PLAN, EVIDENCE)


@dataclass(frozen=True)
class MadeUp:
    """The export, as one fixture; `page` renders it with changes to its report."""

    plan: ScalePlan
    evidence: Mapping[str, SiteEvidence]
    evidence_of: Callable[[str, SitePlan], SiteEvidence] = evidence_of
    report_of: Callable[..., dict[str, Any]] = report_of
    page: Callable[..., str] = page


@pytest.fixture
def made_up() -> MadeUp:
    return MadeUp(PLAN, EVIDENCE)
