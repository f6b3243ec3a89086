"""What report.html knows of each site: its plan, what calibration saw, and what was proved of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ptq4vit_onnx.plan.evidence import SiteEvidence
from ptq4vit_onnx.plan.scale_plan import SitePlan


@dataclass(frozen=True)
class SiteRow:
    """One site as the page shows it, in network order.

    weight: its share of the expected damage of all sites, 0 where nothing was recorded.
    kernels: e.g. "u8 × s8, MatMulIntegerToFloat (2)" for two products. exact: None where it was not checked.
    """

    name: str
    plan: SitePlan
    evidence: SiteEvidence | None
    weight: float
    moved: int | None
    kernels: str
    exact: bool | None
    failure: str | None


def site_rows(
    report: Mapping[str, Any], sites: Mapping[str, SitePlan], evidence: Mapping[str, SiteEvidence]
) -> list[SiteRow]:
    """Every planned site with what was measured of it."""
    damage = {name: evidence[name].damage if name in evidence else 0.0 for name in sites}
    total = sum(damage.values()) or 1.0
    moved = report.get("passes", {}).get("moved_weights", {})
    return [
        SiteRow(name, plan, evidence.get(name), damage[name] / total, moved.get(name), _kernels(report, name),
                *_exactness(report, name))
        for name, plan in sites.items()
    ]  # fmt: skip


def _kernels(report: Mapping[str, Any], name: str) -> str:
    products = [item for item in report.get("kernels", {}).get("products", []) if item["site"] == name]
    kinds: dict[str, int] = {}
    for item in products:
        kind = f"{item['operands']}, {item['kernel']}".replace(" x ", " × ")
        kinds[kind] = kinds.get(kind, 0) + 1
    return "; ".join(kind if count == 1 else f"{kind} ({count})" for kind, count in kinds.items())


def _exactness(report: Mapping[str, Any], name: str) -> tuple[bool | None, str | None]:
    checks = [item for item in report.get("site_parity", []) if item["site"] == name]
    if not checks:
        return None, None
    failures = [item["failure"] or "differs" for item in checks if not item["exact"]]
    return not failures, failures[0] if failures else None


def worst(rows: Sequence[SiteRow]) -> SiteRow:
    return max(rows, key=lambda row: row.weight)


def noisiest(rows: Sequence[SiteRow]) -> SiteRow | None:
    measured = [row for row in rows if decibels_of(row) is not None]
    return min(measured, key=lambda row: decibels_of(row) or 0.0) if measured else None


def said(row: SiteRow) -> str:
    """A recorded site's figures in words, its name first, parted by commas."""
    assert row.evidence is not None, "without a recording there are no figures"
    noise = "no error" if row.evidence.sqnr is None else f"SQNR {row.evidence.sqnr:.1f} dB"
    return f"{row.name}, {100 * row.weight:.1f} % of the expected damage, {noise}"


def decibels_of(row: SiteRow) -> float | None:
    return None if row.evidence is None else row.evidence.sqnr
