"""What report.html draws: a chart of all sites, and two charts of each site."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from markupsafe import Markup

from ptq4vit_onnx.plan.quantizers import Quantizer
from ptq4vit_onnx.report.charts import curve_chart, figure, histogram_chart, points_of
from ptq4vit_onnx.report.rows import Figures, SiteRow, decibels_of, figures_of, noisiest, worst
from ptq4vit_onnx.report.table import describe

METRIC_TITLES = {"hessian": "Hessian", "mse": "MSE", "cosine": "cosine", "pearson": "Pearson"}
LOWEST_DECIBELS = 3.0  # room below the lowest dot, in dB
# The chart of all sites, in pixels from its top: bars from BARS to BASE, dots from DOTS to FLOOR.
BARS, BASE, DOTS, FLOOR = 18, 168, 192, 282


@dataclass(frozen=True)
class Rule:
    """A horizontal line with its label. top: pixels from the chart's top."""

    top: float
    text: str
    base: bool = False


@dataclass(frozen=True)
class SiteColumn:
    """One site of the chart. bar, dot: heights in pixels; dot None: the output has no error."""

    index: int
    figures: Figures
    worst: bool
    noisiest: bool
    bar: float
    dot: float | None


@dataclass(frozen=True)
class Block:
    """Columns of one block of the network. label: the block's number; empty for sites outside the blocks."""

    label: str
    columns: tuple[SiteColumn, ...]


@dataclass(frozen=True)
class Overview:
    """A bar (damage) and a dot (SQNR) for every recorded site, in network order.

    first: what is said before a site is chosen. noise_title: where the title of the dots lies, in pixels from the top;
    None: no site has a dot.
    """

    first: Figures
    rules: tuple[Rule, ...]
    blocks: tuple[Block, ...]
    noise_title: int | None


@dataclass(frozen=True)
class _Scale:
    """What the chart of all sites covers. top: the largest share of the damage. low, high: of the dots, in dB."""

    top: float
    low: float = 0.0
    high: float = 1.0
    dots: bool = False

    @classmethod
    def of(cls, rows: Sequence[SiteRow]) -> _Scale:
        top = max(row.weight for row in rows) or 1.0
        decibels = [value for row in rows if (value := decibels_of(row)) is not None]
        return cls(top, min(decibels) - LOWEST_DECIBELS, max(decibels) + 1.0, True) if decibels else cls(top)

    def share(self, decibels: float) -> float:
        return (decibels - self.low) / (self.high - self.low)


def overview(rows: Sequence[SiteRow]) -> Overview:
    """The chart of all sites, each of which must have been recorded."""
    scale = _Scale.of(rows)
    rules = [Rule(BARS, f"{100 * scale.top:.0f} %"), Rule(BASE, "0", base=True)]
    if scale.dots:
        ticks = _ticks(scale.low, scale.high)
        rules += [Rule(FLOOR - (FLOOR - DOTS) * scale.share(tick), f"{tick:.0f} dB") for tick in ticks]
    first = figures_of(worst(rows))
    return Overview(first, tuple(rules), _blocks(rows, scale), BASE + 3 if scale.dots else None)


def _blocks(rows: Sequence[SiteRow], scale: _Scale) -> tuple[Block, ...]:
    peak, noise = worst(rows), noisiest(rows)

    def column(index: int, row: SiteRow) -> SiteColumn:
        decibels = decibels_of(row)
        dot = None if decibels is None else 4 + (FLOOR - DOTS) * scale.share(decibels)
        bar = (BASE - BARS) * row.weight / scale.top
        return SiteColumn(index, figures_of(row), row is peak, row is noise, bar, dot)

    grouped = groupby(enumerate(rows), key=lambda item: block_of(item[1].name))
    return tuple(Block(block_label(key), tuple(column(*item) for item in items)) for key, items in grouped)


def block_of(name: str) -> str:
    """blocks.3.attn.qkv -> blocks.3; layers.1.blocks.0.mlp.fc1 -> layers.1.blocks.0; head -> nothing."""
    found = re.match(r".*?\bblocks\.\d+", name)
    return found.group() if found else ""


def block_label(block: str) -> str:
    """layers.1.blocks.0 -> 1.0"""
    return ".".join(re.findall(r"\d+", block))


def _ticks(low: float, high: float) -> list[float]:
    step = next(step for step in (5, 10, 20, 50, 100) if (high - low) / step <= 4)
    return [float(tick) for tick in range(0, int(high) + 1, step) if tick >= low]


@dataclass(frozen=True)
class Detail:
    """One site's charts, with what is said of it. first: the page shows this site when it opens. curves: None where
    nothing was searched."""

    name: str
    first: bool
    facts: tuple[str, ...]
    histogram: Markup
    caption: str
    curves: Markup | None


def details(rows: Sequence[SiteRow], metric: str) -> list[Detail]:
    """Of every recorded site; the page shows one at a time, the worst first. metric: the one the search used."""
    peak = worst(rows)
    return [_detail(row, metric, row is peak) for row in rows]


def _detail(row: SiteRow, metric: str, first: bool) -> Detail:
    evidence = row.evidence
    assert evidence is not None, "only recorded sites have charts"
    histogram = histogram_chart(evidence.histograms, row.plan.lhs, f"histogram of the left values of {row.name}")
    curves = None if evidence.curve is None else curve_chart(evidence.curve, metric, f"search curves of {row.name}")
    return Detail(row.name, first, tuple(_facts(row)), histogram, _histogram_caption(row.plan.lhs), curves)


def _facts(row: SiteRow) -> list[str]:
    assert row.evidence is not None, "only recorded sites have charts"
    facts = [f"left: {describe(row.plan.lhs)}", f"right: {describe(row.plan.rhs)}",
             f"{figure(100 * row.evidence.clipped, 2)} % of left values clipped"]  # fmt: skip
    if row.plan.outliers is not None:
        channels = ", ".join(map(str, row.plan.outliers.channels))
        facts.append(f"input channels with scales of their own, not in the histogram: {channels}")
    correction = row.plan.bias_correction
    if correction is not None:
        facts.append(f"mean errors taken off {sum(value != 0 for value in correction)} of {len(correction)} outputs")
    if row.plan.channels is not None:
        facts.append(f"input channels centred and scaled one by one, folded into {row.plan.channels.norm}")
    return facts


def _histogram_caption(lhs: Quantizer) -> str:
    counts = [points.count for points in points_of(lhs)]
    if len(counts) > 1:
        return (
            f"The strip below the axis shows the quantisation points: {counts[0]} of the fine range R1 and "
            f"{counts[1]} of the coarse range R2, each range on an axis of its own."
        )
    strip = f"The strip below the axis shows the {counts[0]} quantisation points"
    if lhs.groups > 1:
        return f"{strip} of the head with the largest of {lhs.groups} steps; values of all heads."
    return f"{strip}."
