"""report.html: one self-contained file that a person reads in a minute. No torch, no network.

This module says what the page shows; the files in templates/ say how, and escape every text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from jinja2 import Environment, PackageLoader, StrictUndefined

from ptq4vit_onnx import __version__
from ptq4vit_onnx.output_kinds.output_kind import Headline as Tile
from ptq4vit_onnx.plan.budget import BUDGET, Budget
from ptq4vit_onnx.report.budget_section import budget_section
from ptq4vit_onnx.report.charts import figure
from ptq4vit_onnx.report.data import Inputs, Report, weight_bits
from ptq4vit_onnx.report.rows import SiteRow, noisiest, site_rows, worst
from ptq4vit_onnx.report.site_charts import METRIC_TITLES, details, overview
from ptq4vit_onnx.report.table import table

if TYPE_CHECKING:
    from ptq4vit_onnx.runtime.bench import BenchResult


@dataclass(frozen=True)
class Banner:
    """A warning above everything else."""

    name: str
    text: str


@dataclass(frozen=True)
class Facts:
    """A titled list of names and values."""

    title: str
    entries: Mapping[str, str]


def render(report: Report) -> str:
    """The page. Charts are left out where the report has no evidence."""
    rows = site_rows(report)
    recorded, metric = all(row.evidence for row in rows), str(report.plan.options.get("metric", ""))
    return environment().get_template("report.html").render(
        version=__version__,
        inputs=report.inputs,
        banners=banners(report.inputs),
        failures=failures(report),
        weakest=_weakest(rows),
        tiles=tiles(report),
        overview=overview(rows) if recorded else None,
        details=details(rows, metric) if recorded else None,
        metric=metric,
        kind=report.inputs.output.kind,
        metric_titles=METRIC_TITLES,
        table=table(rows),
        budget=None if report.allocation is None else budget_section(report.allocation, weight_bits(report.plan)),
        facts=_facts(report),
        seconds=report.seconds,
    )  # fmt: skip


def environment() -> Environment:
    """Every text is escaped, and a name that a template asks for in vain is an error."""
    return Environment(
        loader=PackageLoader("ptq4vit_onnx.report"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True, keep_trailing_newline=True,
    )  # fmt: skip


def failures(report: Report) -> list[str]:
    """A phrase for every check that failed."""
    inexact = [item for item in report.proof.sites if not item.exact]
    found = []
    if not report.float_parity.passed:
        found.append("the float ONNX model differs from torch")
    if report.kernels.fell_back:
        found.append(f"not in integers: {', '.join(report.kernels.fell_back[:3])}")
    if inexact:
        found.append(f"{len(inexact)} products differ from integer arithmetic, first {inexact[0].site}")
    if not report.end_to_end.passed:
        found.append(report.end_to_end.sentence)
    return found


def banners(inputs: Inputs) -> list[Banner]:
    found = []
    if inputs.random_weights:
        text = "A dry run: the model predicts nothing, and no figure here speaks of accuracy."
        found.append(Banner("RANDOM WEIGHTS", text))
    found += [Banner("CALIBRATION IMAGES", _sentence(text)) for text in inputs.calibration_images.warnings]
    if inputs.resampled:
        found.append(Banner("IMAGE SIZE", _sentence(inputs.resampled)))
    if inputs.advice:
        found.append(Banner("BITS", _sentence(inputs.advice)))
    found += [Banner("MODEL", _sentence(remark)) for remark in inputs.remarks]
    return found


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def _weakest(rows: Sequence[SiteRow]) -> str:
    """A sentence on the sites with the largest damage and the lowest SQNR; empty where no error was recorded.

    The losses in a plan cannot stand in for the damage: each is in its own site's units.
    """
    peak, noise = worst(rows), noisiest(rows)
    if peak.evidence is None or noise is None or noise.evidence is None:
        return ""
    if peak is noise:
        return (
            f"The weakest site is {peak.name}: {100 * peak.weight:.0f} % of the expected damage and the noisiest "
            f"output ({noise.evidence.sqnr:.1f} dB)."
        )
    return (
        f"The largest part of the expected damage comes from {peak.name} ({100 * peak.weight:.0f} %); "
        f"the noisiest output is that of {noise.name} ({noise.evidence.sqnr:.1f} dB)."
    )


def tiles(report: Report) -> list[Tile]:
    sizes = report.sizes
    return [
        *_accuracy(report),
        Tile("Size", _megabytes(sizes.model),
             f"float {_megabytes(sizes.float)}, {sizes.float / max(sizes.model, 1):.1f}× smaller"),
        Tile("Products in integers", report.kernels.fraction,
             f"on ONNX Runtime's own kernels; {report.moved_weights} weights moved to be exact on every CPU"
             + (f"; {len(report.kernels.floats)} stay in float, listed below" if report.kernels.floats else "")),
        Tile("Parity", report.exact_products,
             f"products equal integer arithmetic; {report.end_to_end.sentence}"),
        *_latency(report.latency),
    ]  # fmt: skip


def _accuracy(report: Report) -> list[Tile]:
    """What the outputs' kind measures. The last is the distance from the float model, with a caveat where weights are
    random."""
    on = f"on {report.proof.measured_on}"
    found = [replace(tile, note=f"{tile.note}, {on}") for tile in report.against_float.headlines]
    if report.inputs.random_weights:
        found[-1] = replace(found[-1], note=f"{found[-1].note}; random weights: says nothing about accuracy")
    return found


def _latency(latency: BenchResult) -> list[Tile]:
    """The quantised model's time next to that of the first (float) model, at the first threads and batch measured."""
    if not latency.timings:
        return []
    first, *others = latency.timings
    own = next((item for item in others if (item.threads, item.batch) == (first.threads, first.batch)), None)
    if own is None:
        return []
    threads = "1 thread" if own.threads == 1 else f"{own.threads} threads"
    note = f"{own.speed:.2f}× as fast as {first.model} ({first.median:.2f} ms); "
    return [
        Tile("Latency", f"{own.median:.2f} ms", f"{note}{threads}, batch {own.batch}; {latency.cpu}{own.modes_note}")
    ]


def _facts(report: Report) -> list[Facts]:
    plan, images = report.plan, report.inputs.calibration_images
    options = {name.replace("_", " "): _word(value) for name, value in plan.options.items()}
    if BUDGET in plan.options:
        options[BUDGET] = str(Budget.from_data(plan.options[BUDGET]))
    inputs = {
        "weights from": report.inputs.weights_from,
        "weights SHA-256": plan.weights,
        "returns": f"{report.inputs.output.kind.plural}: {', '.join(report.inputs.output.names)}",
        "images": f"{images}; {len(images.skipped)} skipped",
        "images SHA-256": plan.images,
    }
    return [
        Facts("Options", options),
        Facts("Versions", plan.versions),
        Facts("Inputs", inputs),
        Facts("Checks", _checks(report)),
        *([Facts("Products in float", plan.floats)] if plan.floats else []),
    ]


def _checks(report: Report) -> dict[str, str]:
    parity, sizes, operations = report.float_parity, report.sizes, report.kernels.op_counts
    scale = f"{report.inputs.output.kind.plural}' scale"
    return {
        "float ONNX against torch": f"{figure(parity.error, 2)} of the {scale} (limit {parity.tolerance:g})",
        "end to end": report.end_to_end.sentence,
        "float.onnx": f"{sizes.float:,} bytes",
        "model.onnx": f"{sizes.model:,} bytes",
        "executed operations": ", ".join(f"{count} {name}" for name, count in operations.items()),
    }


def _word(value: object) -> str:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.2f} MB" if size < 10e6 else f"{size / 1e6:.1f} MB"
