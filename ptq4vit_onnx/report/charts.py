"""The two charts of a site as inline SVG: its values with the quantisation points, and the search curves.

Colours are the page's (classes r1, r2, and one for each metric), so the charts follow its theme. Parts are built as
plain strings of numbers and class names; text enters through `text_at` and `_svg`, which escape it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from markupsafe import Markup, escape

from ptq4vit_onnx.plan.evidence import Histogram, SearchCurve
from ptq4vit_onnx.plan.quantizers import Points, Quantizer

WIDTH, HEIGHT = 520.0, 262.0
LEFT, RIGHT, TOP, BOTTOM = 52.0, 12.0, 26.0, 52.0
FLOOR = HEIGHT - BOTTOM  # where the x axis lies
GAP = 16.0  # between the two ranges of a twin
FINE_SHARE = 0.42  # of the width, for the fine range
RUG = 9.0  # height of the strip of points below the axis
VISIBLE_STEP = 4.5  # pixels between points, from which on they are also drawn across the chart
WORST_RATIO = 100.0  # losses beyond this many times the smallest are clipped
METRICS = ("pearson", "cosine", "mse", "hessian")


@dataclass(frozen=True)
class Panel:
    """A part of a chart with an x axis of its own: values low..high at left..right."""

    low: float
    high: float
    left: float
    right: float

    def x(self, value: float) -> float:
        return self.left + (value - self.low) / (self.high - self.low) * (self.right - self.left)


def points_of(lhs: Quantizer) -> tuple[Points, ...]:
    """The points of each range: one range, or fine and coarse. Of several scales (heads) the largest's."""
    return lhs.points


def histogram_chart(histograms: Sequence[Histogram], lhs: Quantizer, title: str) -> Markup:
    """A histogram with a logarithmic count axis, and the quantisation points as a strip below the x axis.

    Points that lie far enough apart are also drawn as lines across the chart. histograms: one for each range of `lhs`.
    """
    ranges = points_of(lhs)
    panels = _panels([(min(h.low, p.first), max(h.high, p.last)) for h, p in zip(histograms, ranges, strict=True)])
    most = max(max(histogram.counts) for histogram in histograms)
    top = max(1.0, math.log10(max(most, 1)) * 1.04)
    parts = [_count_axis(top)]
    for number, (panel, histogram, points) in enumerate(zip(panels, histograms, ranges, strict=True)):
        colour = "r1" if len(panels) == 2 and number == 0 else "r2"
        parts += [_steps(panel, histogram, top, colour), _rug(panel, points, colour), _value_axis(panel)]
        parts.append(_range_label(panel, points, colour, at_the_end=number == 1))
    parts.append(_axis_title("value of the left operand"))
    return _svg(title, parts)


def curve_chart(curve: SearchCurve, used: str, title: str) -> Markup:
    """Each metric's loss of every candidate, divided by that metric's smallest loss, on a logarithmic axis.

    A vertical line marks the chosen candidate. used: the metric that the search used.
    """
    low, high = (0.0, max(curve.x)) if curve.axis == "scale" else (min(curve.x) - 0.5, max(curve.x) + 0.5)
    panel = Panel(low, max(high, *curve.chosen), LEFT, WIDTH - RIGHT)
    finite = [value for losses in curve.losses.values() for value in losses if value is not None]
    top = math.log10(min(WORST_RATIO, max([10.0, *finite])))
    order = sorted(curve.losses, key=lambda metric: (metric == used, METRICS.index(metric)))
    parts = [_ratio_axis(top), _value_axis(panel, whole=curve.axis == "shift"), _chosen(panel, curve)]
    parts += [_line(panel, curve, metric, top, metric == used) for metric in order]
    name = "scale / scale that covers all values" if curve.axis == "scale" else "shift: D1 = D2 / 2^shift"
    return _svg(title, [*parts, _axis_title(name)])


def figure(value: float, digits: int = 3) -> str:
    """A number in few characters: 0.0123, 41, 5.7e-5, inf."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    if 1e-3 <= abs(value) < 1e5:
        text = f"{value:.{max(0, digits - 1 - math.floor(math.log10(abs(value))))}f}"
        return text.rstrip("0").rstrip(".") if "." in text else text
    mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
    short = mantissa.rstrip("0").rstrip(".") if "." in mantissa else mantissa
    return f"{short}e{int(exponent)}"


def _range_label(panel: Panel, points: Points, colour: str, at_the_end: bool) -> str:
    place, anchor = (panel.right, "right") if at_the_end else (panel.left, "left")
    name = f"{points.name}: " if points.name else ""
    text = f"{name}step {figure(points.step)}"
    return text_at(place, 14, text, f"{colour} b {anchor}")


def _panels(domains: Sequence[tuple[float, float]]) -> list[Panel]:
    widened = [(low, high if high > low else low + 1.0) for low, high in domains]
    if len(widened) == 1:
        return [Panel(*widened[0], LEFT, WIDTH - RIGHT)]
    border = LEFT + FINE_SHARE * (WIDTH - RIGHT - LEFT)
    return [Panel(*widened[0], LEFT, border - GAP / 2), Panel(*widened[1], border + GAP / 2, WIDTH - RIGHT)]


def _y(share: float) -> float:
    """The y coordinate of a share of the plot's height; shares are clamped to 0..1."""
    return FLOOR - min(max(share, 0.0), 1.0) * (FLOOR - TOP)


def _steps(panel: Panel, histogram: Histogram, top: float, colour: str) -> str:
    """The outline of the bins. 0.04 is added to every logarithm, so that a bin with one value still shows."""
    width = (histogram.high - histogram.low) / len(histogram.counts)
    path = [f"M{panel.x(histogram.low):.1f} {FLOOR:.0f}"]
    for number, count in enumerate(histogram.counts):
        height = _y((math.log10(count) + 0.04) / top) if count else FLOOR
        path.append(f"V{height:.0f}H{panel.x(histogram.low + (number + 1) * width):.1f}")
    return f'<path class="{colour} area" d="{"".join(path)}V{FLOOR:.0f}z"/>'


def _rug(panel: Panel, points: Points, colour: str) -> str:
    """A rug plot: all points as one dashed line, with a dash for each point."""
    step = points.step / (panel.high - panel.low) * (panel.right - panel.left)
    dash = min(1.2, 0.45 * step)
    start, end = panel.x(points.first) - dash / 2, panel.x(points.last) + dash / 2
    pattern = f'x1="{start:.2f}" x2="{end:.2f}" stroke-dasharray="{dash:.4f} {step - dash:.4f}"'
    middle = FLOOR + RUG / 2 + 1
    rug = f'<line class="{colour} rug" y1="{middle}" y2="{middle}" stroke-width="{RUG}" {pattern}/>'
    if step < VISIBLE_STEP:
        return rug
    middle, height = (TOP + FLOOR) / 2, FLOOR - TOP
    return f'{rug}<line class="{colour} across" y1="{middle}" y2="{middle}" stroke-width="{height}" {pattern}/>'


def _chosen(panel: Panel, curve: SearchCurve) -> str:
    lines = "".join(f"M{panel.x(value):.1f} {TOP:.0f}V{FLOOR:.0f}" for value in dict.fromkeys(curve.chosen))
    values = [figure(min(curve.chosen)), figure(max(curve.chosen))]
    text = values[0] if len(curve.chosen) == 1 else f"{values[0]} to {values[1]}, one per head"
    middle = panel.x(sum(curve.chosen) / len(curve.chosen))
    anchor = "right" if middle > WIDTH * 0.6 else "left" if middle < WIDTH * 0.3 else ""
    return f'<path class="chosen" d="{lines}"/>' + text_at(middle, 14, f"chosen: {text}", f"b {anchor}")


def _line(panel: Panel, curve: SearchCurve, metric: str, top: float, used: bool) -> str:
    """One metric's curve, with a dot at the candidate of its smallest loss."""
    places: list[tuple[float, float] | None] = [
        None if loss is None else (panel.x(x), math.log10(max(loss, 1.0)) / top)
        for x, loss in zip(curve.x, curve.losses[metric], strict=True)
    ]
    marks = f"{metric} line{' used' if used else ''}"
    best = next((place for place in places if place is not None and place[1] == 0.0), None)
    dot = f'<circle class="{metric}" cx="{best[0]:.1f}" cy="{FLOOR:.1f}" r="3.5"/>' if best else ""
    return f'<path class="{marks}" d="{_polyline(places)}"/>{dot}'


def _polyline(places: Sequence[tuple[float, float] | None]) -> str:
    """A path through places (x, share of the height), clipped at the top of the chart and interrupted at None."""
    path, reached = "", ""
    for start, end in pairwise(places):
        if start is None or end is None or (start[1] > 1 and end[1] > 1):
            continue
        if start[1] > 1 or end[1] > 1:
            part = (1 - start[1]) / (end[1] - start[1])
            border = (start[0] + part * (end[0] - start[0]), 1.0)
            start, end = (border, end) if start[1] > 1 else (start, border)
        ends = [f"{x:.1f} {_y(share):.1f}" for x, share in (start, end)]
        path += f"L{ends[1]}" if ends[0] == reached else f"M{ends[0]}L{ends[1]}"
        reached = ends[1]
    return path


def _count_axis(top: float) -> str:
    marks = [(exponent / top, _count(10**exponent)) for exponent in range(math.floor(top) + 1)]
    return _y_axis(marks[:: 2 if len(marks) > 6 else 1], "values in bin")


def _ratio_axis(top: float) -> str:
    ratios = [1, 3, 10, 30, 100] if top > 1 else [1, 2, 5, 10]
    marks = [(math.log10(ratio) / top, f"{ratio}×") for ratio in ratios if math.log10(ratio) <= top + 1e-9]
    return _y_axis(marks, "loss / best loss")


def _y_axis(marks: Sequence[tuple[float, str]], title: str) -> str:
    lines = "".join(f"M{LEFT:.0f} {_y(share):.0f}H{WIDTH - RIGHT:.0f}" for share, _ in marks)
    labels = "".join(text_at(LEFT - 6, _y(share) + 4, text) for share, text in marks)
    name = f'<text class="m" transform="translate(11 {(TOP + FLOOR) / 2:.0f}) rotate(-90)">{escape(title)}</text>'
    return f'<path class="grid" d="{lines}"/><g class="right">{labels}</g>{name}'


def _value_axis(panel: Panel, whole: bool = False) -> str:
    wanted = max(2, round((panel.right - panel.left) / 80))
    ticks = [float(n) for n in range(math.ceil(panel.low), math.floor(panel.high) + 1)] if whole else []
    ticks = ticks or nice_ticks(panel.low, panel.high, wanted)
    axis = f'<path class="axis" d="M{panel.left:.1f} {FLOOR:.0f}H{panel.right:.1f}"/>'
    return axis + "".join(text_at(panel.x(tick), FLOOR + 25, figure(tick)) for tick in ticks)


def nice_ticks(low: float, high: float, wanted: int) -> list[float]:
    """About `wanted` multiples of 1, 2 or 5 times a power of ten within low..high."""
    raw = (high - low) / wanted
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1)]


def _axis_title(text: str) -> str:
    return text_at((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 6, text, "m")


def _count(number: int) -> str:
    for unit, suffix in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if number >= unit:
            return f"{number // unit}{suffix}"
    return str(number)


def text_at(x: float, y: float, text: str, kind: str = "") -> str:
    """kind: classes of the style sheet, empty for none."""
    marks = f'class="{kind}" ' if kind else ""
    return f'<text {marks}x="{x:.0f}" y="{y:.0f}">{escape(text)}</text>'


def _svg(title: str, parts: Sequence[str]) -> Markup:
    """A whole chart. parts: SVG, escaped already; title: plain text, read out instead of the chart."""
    box = f'viewBox="0 0 {WIDTH:.0f} {HEIGHT:.0f}"'
    return Markup(f'<svg {box} role="img" aria-label="{escape(title)}">{"".join(parts)}</svg>')
