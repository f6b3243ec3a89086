"""What report.html knows of each site: its plan, what calibration saw, and what was proved of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ptq4vit_onnx.plan.evidence import SiteEvidence
from ptq4vit_onnx.plan.scale_plan import SitePlan
from ptq4vit_onnx.report.data import Report


@dataclass(frozen=True)
class KernelUse:
    """How many products of a site run on one kernel. operands: the types that it multiplies, ("u8", "s8")."""

    kernel: str
    operands: tuple[str, ...]
    products: int


@dataclass(frozen=True)
class SiteRow:
    """One site as the page shows it, in network order.

    weight: its share of the expected damage of all sites, 0 where nothing was recorded. moved: weight codes changed so
    that no CPU saturates; None for a product of two activations. exact: None where it was not checked.
    failure: a sentence where the site is not exact.
    """

    name: str
    plan: SitePlan
    evidence: SiteEvidence | None
    weight: float
    moved: int | None
    kernels: tuple[KernelUse, ...]
    exact: bool | None
    failure: str | None


@dataclass(frozen=True)
class Figures:
    """A recorded site's figures in words, for the line above the chart of all sites."""

    name: str
    damage: str
    noise: str

    def __str__(self) -> str:
        return f"{self.name}, {self.damage}, {self.noise}"


def site_rows(report: Report) -> list[SiteRow]:
    """Every planned site with what was measured of it."""
    sites, evidence, moved = report.plan.sites, report.evidence, report.passes.moved_weights
    damage = {name: evidence[name].damage if name in evidence else 0.0 for name in sites}
    total = sum(damage.values()) or 1.0
    return [
        SiteRow(name, plan, evidence.get(name), damage[name] / total, moved.get(name), _kernels(report, name),
                *_exactness(report, name))
        for name, plan in sites.items()
    ]  # fmt: skip


def _kernels(report: Report, name: str) -> tuple[KernelUse, ...]:
    counts = Counter((item.kernel, item.operands) for item in report.kernels.products if item.site == name)
    return tuple(KernelUse(kernel, operands, count) for (kernel, operands), count in counts.items())


def _exactness(report: Report, name: str) -> tuple[bool | None, str | None]:
    checks = [item for item in report.proof.sites if item.site == name]
    if not checks:
        return None, None
    failures = [item.failure or "differs" for item in checks if not item.exact]
    return not failures, failures[0] if failures else None


def worst(rows: Sequence[SiteRow]) -> SiteRow:
    """The site with the largest share of the expected damage."""
    return max(rows, key=lambda row: row.weight)


def noisiest(rows: Sequence[SiteRow]) -> SiteRow | None:
    """The site with the lowest SQNR (signal-to-quantisation-noise ratio); None where no output has an error."""
    measured = [row for row in rows if decibels_of(row) is not None]
    return min(measured, key=lambda row: decibels_of(row) or 0.0) if measured else None


def figures_of(row: SiteRow) -> Figures:
    assert row.evidence is not None, "without a recording there are no figures"
    noise = "no error" if row.evidence.sqnr is None else f"SQNR {row.evidence.sqnr:.1f} dB"
    return Figures(row.name, f"{100 * row.weight:.1f} % of the expected damage", noise)


def decibels_of(row: SiteRow) -> float | None:
    """The SQNR of the site's output; None where it was not recorded, or where there is no error."""
    return None if row.evidence is None else row.evidence.sqnr
