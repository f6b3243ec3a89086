"""Size against distance from the float model as SVG: single widths on a line, mixtures, other tools' files, the budget.

Colours are the page's, as in charts.py. Names enter through `text_at` and `escape`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from markupsafe import Markup, escape

from ptq4vit_onnx.plan.budget import Budget
from ptq4vit_onnx.report.chart_labels import Box, Label, Place, placed, shortened
from ptq4vit_onnx.report.charts import figure, nice_ticks, text_at

Group = Literal["single", "mixed", "peer", "float"]
WIDTH, HEIGHT = 520.0, 350.0
PLOT = Box(58.0, 34.0, WIDTH - 12.0, HEIGHT - 48.0)
FLOAT_NAME = (PLOT.left + 6, PLOT.bottom - 6)
MARGIN = 0.07  # of the range of sizes, on both sides; of the decades, below and above
LEAST_DECADES = 0.5
NEXT_MARK = 12.0  # pixels from a mark of the legend to its name
LETTER = 8.0  # of the legend, in pixels
LEGEND = {"single": "one width", "mixed": "mixture", "peer": "other tools", "guess": "predicted", "chosen": "chosen"}
WIDER = {"chosen": 3.0}  # than other marks, on each side
_MARKS = {
    "single": "m-4.2 0a4.2 4.2 0 1 0 8.4 0a4.2 4.2 0 1 0-8.4 0z",
    "mixed": "m0-5.4l5.4 5.4l-5.4 5.4l-5.4-5.4z",
    "peer": "m-4-4h8v8h-8z",
    "guess": "m-5 0h10",
    "chosen": "m-8.5 0a8.5 8.5 0 1 0 17 0a8.5 8.5 0 1 0-17 0z",
}


@dataclass(frozen=True)
class Dot:
    """A file. size: in bytes. distance, predicted: from the float model. group: of one width, mixed, another tool's, or
    the float model itself, whose distance is 0 and which is named at the border."""

    title: str
    size: int
    distance: float
    group: Group
    predicted: float | None = None


def size_chart(
    dots: Sequence[Dot], chosen: int | None, distance: str, limit: Budget | None = None, title: str = "files by size"
) -> Markup:
    """The chart for a page. chosen: index of the dot to emphasise. distance: what is measured: "KL".

    limit: the budget; a line where it is a size, or a KL.
    """
    named = f'role="img" aria-label="{escape(title)}"'
    description = escape(described(dots, chosen, distance))
    return Markup(
        f'<svg viewBox="0 0 {WIDTH:.0f} {HEIGHT:.0f}" {named}><desc>{description}</desc>'
        f"{size_chart_parts(dots, chosen, distance, limit)}</svg>"
    )


def described(dots: Sequence[Dot], chosen: int | None, distance: str) -> str:
    """The chart in a sentence, for those who do not see it."""
    shown = sorted((dot for dot in dots if dot.group != "float"), key=lambda dot: dot.size)
    ends = [f"{dot.size / 1e6:.2f} MB at {distance} {figure(dot.distance, 2)}" for dot in (shown[0], shown[-1])]
    text = f"{len(shown)} files, from {ends[0]} to {ends[1]}."
    if chosen is not None:
        dot = dots[chosen]
        text += f" Chosen: {dot.title}, {dot.size / 1e6:.2f} MB at {distance} {figure(dot.distance, 2)}."
    return text


def size_chart_parts(dots: Sequence[Dot], chosen: int | None, distance: str, limit: Budget | None = None) -> str:
    """What is inside the svg element. A size limit beyond all files is not drawn."""
    scale = _Scale.of(dots, limit)
    shown = [dot for dot in dots if dot.group != "float"]
    parts = [_grid(scale, distance), _limit(scale, limit), _curve(scale, shown), *(_guess(scale, dot) for dot in shown)]
    parts += [_mark(scale, dot, distance) for dot in shown]
    if chosen is not None:
        parts.append(_at("chosen", *scale.place(dots[chosen])))
    parts.append(_labels(scale, dots, chosen, limit))
    return "".join([*parts, _float(dots), _legend(shown, chosen is not None)])


@dataclass(frozen=True)
class _Scale:
    """Bytes low..high along x, decimal logarithms bottom..top along y."""

    low: float
    high: float
    bottom: float
    top: float

    @classmethod
    def of(cls, dots: Sequence[Dot], limit: Budget | None) -> _Scale:
        """What is neither positive nor finite has no logarithm, and lies at the border."""
        shown = [dot for dot in dots if dot.group != "float"]
        sizes = [float(dot.size) for dot in shown]
        found = [value for dot in shown for value in (dot.distance, dot.predicted) if _drawable(value)]
        if limit is not None and limit.limited == "max_kl" and _drawable(limit.limit):
            found.append(limit.limit)
        logs = [math.log10(value) for value in found if value is not None] or [0.0]
        room = max(max(sizes) - min(sizes), 0.02 * max(sizes)) * MARGIN
        middle, decades = (max(logs) + min(logs)) / 2, max(max(logs) - min(logs), LEAST_DECADES)
        half = decades * (0.5 + MARGIN)
        return cls(min(sizes) - room, max(sizes) + room, middle - half, middle + half)

    def x(self, size: float) -> float:
        return PLOT.left + (size - self.low) / (self.high - self.low) * (PLOT.right - PLOT.left)

    def y(self, distance: float) -> float:
        if not _drawable(distance):
            return PLOT.bottom if distance <= 0 else PLOT.top
        share = (math.log10(distance) - self.bottom) / (self.top - self.bottom)
        return PLOT.bottom - min(max(share, 0.0), 1.0) * (PLOT.bottom - PLOT.top)

    def place(self, dot: Dot) -> Place:
        return self.x(dot.size), self.y(dot.distance)


def _drawable(value: float | None) -> bool:
    return value is not None and 0 < value < math.inf


def _at(kind: str, x: float, y: float, title: str = "") -> str:
    inside = f"<title>{escape(title)}</title>" if title else ""
    return f'<path class="{kind} mark" d="M{x:.1f} {y:.1f}{_MARKS[kind]}">{inside}</path>'


def _mark(scale: _Scale, dot: Dot, distance: str) -> str:
    guess = "" if dot.predicted is None else f", predicted {figure(dot.predicted)}"
    title = f"{dot.title}: {dot.size / 1e6:.2f} MB, {distance} {figure(dot.distance)}{guess}"
    return _at(dot.group, *scale.place(dot), title)


def _guess(scale: _Scale, dot: Dot) -> str:
    """A short bar at the predicted distance, tied to the measured one."""
    if dot.predicted is None:
        return ""
    x, y = scale.place(dot)
    guess = scale.y(dot.predicted)
    return f'<path class="guess mark" d="M{x:.1f} {y:.1f}V{guess:.1f}{_MARKS["guess"]}"/>'


def _singles(scale: _Scale, dots: Sequence[Dot]) -> list[Place]:
    return sorted(scale.place(dot) for dot in dots if dot.group == "single")


def _curve(scale: _Scale, dots: Sequence[Dot]) -> str:
    places = _singles(scale, dots)
    return f'<path class="curve" d="M{"L".join(f"{x:.1f} {y:.1f}" for x, y in places)}"/>' if places else ""


def _grid(scale: _Scale, distance: str) -> str:
    """Both axes with their ticks and titles."""
    heights = [(scale.y(tick), figure(tick)) for tick in log_ticks(scale.bottom, scale.top)]
    sizes = nice_ticks(scale.low / 1e6, scale.high / 1e6, 6)
    lines = "".join(f"M{PLOT.left:.0f} {y:.1f}H{PLOT.right:.0f}" for y, _ in heights)
    middle = (PLOT.top + PLOT.bottom) / 2
    return (
        f'<path class="grid" d="{lines}"/><path class="axis" d="M{PLOT.left:.0f} {PLOT.bottom:.0f}H{PLOT.right:.0f}"/>'
        f'<g class="right">{"".join(text_at(PLOT.left - 6, y + 4, text) for y, text in heights)}</g>'
        + "".join(text_at(scale.x(1e6 * tick), PLOT.bottom + 17, figure(tick)) for tick in sizes)
        + text_at((PLOT.left + PLOT.right) / 2, HEIGHT - 8, "size of the file, MB", "m")
        + f'<text class="m" transform="translate(11 {middle:.0f}) rotate(-90)">{escape(distance)}</text>'
    )


def log_ticks(bottom: float, top: float) -> list[float]:
    """1, 10, 100 .. within decimal logarithms bottom..top; with 3, or 2 and 5, between them where these are few."""
    decades = range(math.floor(bottom), math.ceil(top) + 1)
    within: list[float] = []
    for factors, enough in (((1,), 4), ((1, 3), 4), ((1, 2, 5), 3), (tuple(range(1, 10)), 0)):
        marks = [factor * 10.0**exponent for exponent in decades for factor in factors]
        within = [mark for mark in marks if bottom <= math.log10(mark) <= top]
        if len(within) >= enough:
            break
    return within


def _limit_line(scale: _Scale, limit: Budget | None) -> list[tuple[Place, Place]]:
    """From where to where; empty for a limit that is of neither axis, or beyond all files."""
    if limit is not None and limit.limited == "max_kl":
        y = scale.y(limit.limit)
        return [((PLOT.left, y), (PLOT.right, y))]
    if limit is not None and limit.limited == "max_size" and scale.low <= limit.limit <= scale.high:
        x = scale.x(limit.limit)
        return [((x, PLOT.top), (x, PLOT.bottom))]
    return []


def _limit(scale: _Scale, limit: Budget | None) -> str:
    line = _limit_line(scale, limit)
    if not line or limit is None:
        return ""
    (left, top), (right, bottom) = line[0]
    path = f'<path class="limit" d="M{left:.1f} {top:.1f}L{right:.1f} {bottom:.1f}"/>'
    x, y, text, at_its_end = _limit_name(line[0], limit)
    return path + text_at(x, y, text, f"limit {'right' if at_its_end else 'left'}")


def _limit_name(line: tuple[Place, Place], limit: Budget) -> tuple[float, float, str, bool]:
    """Where the text begins or ends, the text, and whether that is its end."""
    (left, top), (_, bottom) = line
    if limit.limited == "max_kl":
        return left + 4, top - 5, f"KL {figure(limit.limit)}", False
    at_its_end = left > (PLOT.left + PLOT.right) / 2
    return left + (-5 if at_its_end else 5), bottom - 6, f"{limit.limit / 1e6:g} MB", at_its_end


def _labels(scale: _Scale, dots: Sequence[Dot], chosen: int | None, limit: Budget | None) -> str:
    """Names of the chosen file, other tools' files and the single widths; mixtures have theirs when pointed at."""
    order = [index for index, dot in enumerate(dots) if dot.group == "peer"]
    singles = [index for index, dot in enumerate(dots) if dot.group == "single"]
    order += sorted(singles, key=lambda index: -dots[index].size)  # at the right border there is the least room
    if chosen is not None:
        order = [chosen, *(index for index in order if index != chosen)]
    labels = [
        Label(shortened(dots[index].title), *scale.place(dots[index]), bold=index == chosen, kind=dots[index].group)
        for index in order
    ]
    marks = [scale.place(dot) for dot in dots if dot.group != "float"]
    line, x, y = _limit_line(scale, limit), *FLOAT_NAME
    others = [Box.of_text(_float_text(dots), x, y)]
    if limit is not None and line:
        x, y, text, at_its_end = _limit_name(line[0], limit)
        others.append(Box.of_text(text, x, y, at_its_end))
    return placed(labels, marks, [*pairwise(_singles(scale, dots)), *line], PLOT, others)


def _float(dots: Sequence[Dot]) -> str:
    text = _float_text(dots)
    return text_at(*FLOAT_NAME, text, "left") if text else ""


def _float_text(dots: Sequence[Dot]) -> str:
    """The float model has no place on a logarithmic axis, and is far larger: it is named in a corner."""
    return "; ".join(f"{shortened(dot.title)}: {dot.size / 1e6:.1f} MB" for dot in dots if dot.group == "float")


def _legend(dots: Sequence[Dot], chosen: bool) -> str:
    """A line above the plot, of what is drawn."""
    groups = {dot.group for dot in dots} | ({"guess"} if any(dot.predicted is not None for dot in dots) else set())
    x, parts = PLOT.left + 4.0, []
    for kind, name in LEGEND.items():
        if kind in groups or (kind == "chosen" and chosen):
            x += WIDER.get(kind, 0.0)
            parts.append(_at(kind, x, 14.0) + text_at(x + NEXT_MARK + WIDER.get(kind, 0.0), 18.0, name, "left"))
            x += NEXT_MARK + LETTER * len(name) + 16
    return "".join(parts)
