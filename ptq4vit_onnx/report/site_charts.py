"""The charts of report.html: one of all sites, two of each site."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from itertools import groupby

from ptq4vit_onnx.plan.quantizers import Quantizer
from ptq4vit_onnx.report.charts import curve_chart, figure, histogram_chart, points_of
from ptq4vit_onnx.report.rows import SiteRow, decibels_of, noisiest, said, worst
from ptq4vit_onnx.report.table import describe

METRIC_TITLES = {"hessian": "Hessian", "mse": "MSE", "cosine": "cosine", "pearson": "Pearson"}
LOWEST_DECIBELS = 3.0  # room below the worst dot
# The chart of all sites, in pixels from its top: bars from BARS to BASE, dots from DOTS to FLOOR.
BARS, BASE, DOTS, FLOOR = 18, 168, 192, 282


def overview(rows: Sequence[SiteRow]) -> str:
    """A bar (damage) and a dot (SQNR) for every recorded site, in network order, the worst in another colour."""
    decibels = [value for row in rows if (value := decibels_of(row)) is not None]
    low, high = (min(decibels) - LOWEST_DECIBELS, max(decibels) + 1.0) if decibels else (0.0, 1.0)
    top = max(row.weight for row in rows) or 1.0
    columns = "".join(
        f'<div class="block" style="flex-grow:{len(group)}">{"".join(group)}<span>{label}</span></div>'
        for label, group in _blocks(rows, top, low, high)
    )
    rules = [_rule(BARS, f"{100 * top:.0f} %"), _rule(BASE, "0", "base")]
    if decibels:
        places = {tick: DOTS + (FLOOR - DOTS) * (high - tick) / (high - low) for tick in _ticks(low, high)}
        rules += [_rule(place, f"{tick:.0f} dB") for tick, place in places.items()]
    titles = '<div class="what" style="top:-3px">expected damage, share of all sites</div>'
    if decibels:
        titles += f'<div class="what" style="top:{BASE + 3}px">SQNR of the output, higher is better</div>'
    return (
        f'<p class="readout" id="readout" aria-live="polite">{_parts(said(worst(rows)))}</p>'
        f'<div class="strip">{"".join(rules)}<div class="columns" role="group" '
        f'aria-label="sites in network order">{columns}</div>{titles}</div>'
    )


def _blocks(rows: Sequence[SiteRow], top: float, low: float, high: float) -> list[tuple[str, list[str]]]:
    """Columns by block: (the block's number or nothing, the columns)."""
    peak, noise = worst(rows).name, noisiest(rows)

    def column(index: int, row: SiteRow) -> str:
        marks = "column" + (" worst" if row.name == peak else "")
        marks += " noisiest" if noise is not None and row.name == noise.name else ""
        value = decibels_of(row)
        height = 0.0 if value is None else 4 + (FLOOR - DOTS) * (value - low) / (high - low)
        dot = "" if value is None else f'<i class="dot" style="bottom:{height:.1f}px"></i>'
        return (
            f'<a class="{marks}" href="#site-{index}" title="{escape(said(row), quote=True)}">'
            f'<i class="bar" style="height:{(BASE - BARS) * row.weight / top:.1f}px"></i>{dot}</a>'
        )

    grouped = groupby(enumerate(rows), key=lambda item: _block_of(item[1].name))
    return [(".".join(re.findall(r"\d+", key)), [column(*item) for item in items]) for key, items in grouped]


def _block_of(name: str) -> str:
    """blocks.3.attn.qkv -> blocks.3; layers.1.blocks.0.mlp.fc1 -> layers.1.blocks.0; head -> nothing."""
    found = re.match(r".*?\bblocks\.\d+", name)
    return found.group() if found else ""


def _rule(top: float, text: str, kind: str = "") -> str:
    return f'<div class="rule {kind}" style="top:{top:.0f}px"><span>{text}</span></div>'


def _ticks(low: float, high: float) -> list[float]:
    step = next(step for step in (5, 10, 20, 50, 100) if (high - low) / step <= 4)
    return [float(tick) for tick in range(0, int(high) + 1, step) if tick >= low]


def _parts(text: str) -> str:
    name, *rest = (escape(part) for part in text.split(", "))
    return f"<b>{name}</b>" + "".join(f"<span>{part}</span>" for part in rest)


def details(rows: Sequence[SiteRow], metric: str) -> str:
    """The charts of every site; the page shows one of them at a time, the worst first."""
    peak = worst(rows).name
    options = "".join(f"<option>{escape(row.name)}</option>" for row in rows)
    picker = (
        '<div class="pick"><label for="pick">Site</label>'
        f'<select id="pick" autocomplete="off">{options}</select>'
        '<button type="button" id="previous">Previous</button>'
        '<button type="button" id="next">Next</button></div>'
    )
    sites = "".join(_detail(index, row, metric, row.name == peak) for index, row in enumerate(rows))
    legend = "".join(_legend(name, name == metric) for name in METRIC_TITLES)
    return f'{picker}{sites}<p class="legend">Search: {legend}</p>'


def _detail(index: int, row: SiteRow, metric: str, first: bool) -> str:
    evidence = row.evidence
    assert evidence is not None, "only recorded sites have charts"
    histogram = histogram_chart(evidence.histograms, row.plan.lhs, f"histogram of the left values of {row.name}")
    curves = curve_chart(evidence.curve, metric, f"search curves of {row.name}")
    facts = [f"left: {describe(row.plan.lhs)}", f"right: {describe(row.plan.rhs)}",
             f"{figure(100 * evidence.clipped, 2)} % of left values clipped"]  # fmt: skip
    if row.plan.outliers is not None:
        channels = ", ".join(map(str, row.plan.outliers.channels))
        facts.append(f"input channels with scales of their own, not in the histogram: {channels}")
    correction = row.plan.bias_correction
    if correction is not None:
        facts.append(f"mean errors taken off {sum(value != 0 for value in correction)} of {len(correction)} outputs")
    if row.plan.channels is not None:
        facts.append(f"input channels centred and scaled one by one, folded into {row.plan.channels.norm}")
    return (
        f'<section class="site{" first" if first else ""}" id="site-{index}"><h3>{escape(row.name)}</h3>'
        f'<p class="soft">{escape("; ".join(facts))}.</p><div class="charts">'
        f"<figure>{histogram}<figcaption>{_histogram_caption(row.plan.lhs)}</figcaption></figure>"
        f"<figure>{curves}</figure></div></section>"
    )


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


def _legend(metric: str, used: bool) -> str:
    marks = f"{metric} line{' used' if used else ''}"
    line = f'<svg viewBox="0 0 26 8" aria-hidden="true"><path class="{marks}" d="M0 4H26"/></svg>'
    return f"<span>{line}{METRIC_TITLES.get(metric, metric)}{' (used by the search)' if used else ''}</span>"
