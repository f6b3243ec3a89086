"""A made-up export of five unlike sites: its plan, its evidence, and the report of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from ptq4vit_onnx.images.choice import MeasuredOn
from ptq4vit_onnx.output_kinds.logits import LogitsAgainstFloat
from ptq4vit_onnx.output_kinds.metrics import PairedDrop
from ptq4vit_onnx.passes import PassReport
from ptq4vit_onnx.plan.evidence import Histogram, SearchCurve, SiteEvidence
from ptq4vit_onnx.plan.quantizers import Affine, Quantizer, TwinGelu, TwinSoftmax, Uniform, as_float32
from ptq4vit_onnx.plan.scale_plan import Outliers, ScalePlan, SitePlan
from ptq4vit_onnx.proof.end_to_end import EndToEnd
from ptq4vit_onnx.proof.float_parity import FloatParity
from ptq4vit_onnx.proof.kernels import KernelAudit, ProductKernel
from ptq4vit_onnx.proof.prove import Proof
from ptq4vit_onnx.proof.replay import Divergence
from ptq4vit_onnx.proof.site_parity import SiteParity
from ptq4vit_onnx.report.charts import points_of
from ptq4vit_onnx.report.data import Bits, CalibrationImages, FileSizes, Inputs, Output, Report
from ptq4vit_onnx.report.page import render
from ptq4vit_onnx.runtime.bench import BenchResult

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
OPTIONS = {"metric": "hessian", "seed": 7, "bias_correction": "none"}
PLAN = ScalePlan("vit_test", "w" * 64, "i" * 64, OPTIONS, {"onnxruntime": "1.31.1"}, SITES)


def kernels_of(plan: ScalePlan) -> KernelAudit:
    products = [ProductKernel(name, "MatMul", "MatMulIntegerToFloat", True, ("u8", "s8")) for name in plan.sites]
    return KernelAudit(tuple(products), {"QuantizeLinear": 4})


def proof_of(plan: ScalePlan) -> Proof:
    sites = [SiteParity(name, "MatMul", "MatMulIntegerToFloat", True, 0.0, 1e-6) for name in plan.sites]
    replay = [Divergence(name, number * 1e-7, 0.01) for number, name in enumerate(plan.sites)]
    sentence = "99.80 % of 500 predictions equal the simulator's"
    end_to_end = EndToEnd(500, 99.8, 0.001, coin_toss=False, passed=True, sentence=sentence, identical=0.0)
    versus = LogitsAgainstFloat(500, 98.4, 5.7e-5, 99.2, 98.9, PairedDrop(0.3, 0.2, lost=2, gained=1, images=500))
    return Proof(kernels_of(plan), sites, replay, end_to_end, versus, MeasuredOn(500, "embedded digits (test)", True))


def report_of(plan: ScalePlan = PLAN, evidence: Mapping[str, SiteEvidence] = EVIDENCE) -> Report:
    moved = {"head": 12, "patch_embed.proj": 30}
    passes = PassReport(moved, dict.fromkeys(plan.sites, 1), (), {"MatMul": 5}, {"MatMul": 5}, {"Tidy": 3})
    return Report(
        folder=Path("out"),
        inputs=Inputs(
            plan.model, "embedded", Bits(8, 6), CalibrationImages(32, ("broken.png",), "photos"),
            output=Output(why="logits [n, 10]: its num_classes is 10"),
        ),
        plan=plan, evidence=evidence, float_parity=FloatParity(8, 2e-7), proof=proof_of(plan), passes=passes,
        latency=BenchResult((), "AVX2, no VNNI"), sizes=FileSizes(1_252_262, 418_535),
        seconds={"load": 3.2, "calibrate": 4.5},
    )  # fmt: skip


@dataclass(frozen=True)
class MadeUp:
    """The export, as one fixture. report_of: a report of the same export with another plan or other evidence."""

    report: Report
    page: str
    report_of: Callable[..., Report] = report_of
    evidence_of: Callable[[str, SitePlan], SiteEvidence] = evidence_of


@pytest.fixture
def made_up() -> MadeUp:
    report = report_of()
    return MadeUp(report, render(report))
