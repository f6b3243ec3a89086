"""The pictures of docs/method.md, drawn from benchmarks/results/method_figures.json: nobody types a number.

    python tools/method_pictures.py            # writes docs/pictures/method-NAME-light.svg and -dark.svg
    python tools/method_pictures.py --check    # ends with 1 where pictures and results disagree

The same results give the same bytes. benchmarks/method_figures.py measures them.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import escape

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from ptq4vit_onnx.report.charts import figure, nice_ticks, text_at
from ptq4vit_onnx.report.size_chart import log_ticks

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "method_figures.json"
FOLDER = ROOT / "docs" / "pictures"
WIDTH, LEFT, RIGHT, TOP = 480.0, 56.0, 16.0, 34.0
NAMES, ERRORS = 88.0, 70.0  # margins of a distribution: for names of forms, for what they cost
ROW, RUG = 20.0, 11.0  # from one form's points to the next one's; their height
GAP, NEGATIVES = 14.0, 0.36  # between GELU's two panels; the share of the first
DECADES = 1.5  # of a search curve that are shown
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif"
THEMES: Mapping[str, Mapping[str, str]] = {
    "light": {"page": "#ffffff", "ink": "#16191d", "soft": "#5a6370", "grid": "#e0e4e9", "axis": "#b9c0c9",
              "cool": "#0a66b7", "warm": "#c2500a", "bad": "#b3261e"},
    "dark": {"page": "#14171b", "ink": "#e8eaed", "soft": "#a9b1bb", "grid": "#343a43", "axis": "#59616c",
             "cool": "#5cabf2", "warm": "#f08c4a", "bad": "#f2867e"},
}  # fmt: skip
STYLE = """
text {{ font: 13px {font}; fill: {soft}; text-anchor: middle; }} .left {{ text-anchor: start; }}
.right {{ text-anchor: end; }} text.b {{ fill: {ink}; font-weight: 600; }} text.bad {{ fill: {bad}; }}
text.cool {{ fill: {cool}; }} text.warm {{ fill: {warm}; }}
path {{ fill: none; stroke-linejoin: round; }} .grid {{ stroke: {grid}; }} .axis {{ stroke: {axis}; }}
path.area {{ fill: {soft}; fill-opacity: 0.3; }} path.points {{ stroke-width: 1.6; stroke: {soft}; }}
path.cool {{ stroke: {cool}; }} path.warm {{ stroke: {warm}; }} path.ink {{ stroke: {ink}; }}
path.line {{ stroke-width: 2.2; }} path.dashed {{ stroke-dasharray: 7 4; }}
path.bad {{ stroke: {bad}; stroke-dasharray: 6 4; }}
circle {{ stroke: {page}; }} circle.cool {{ fill: {cool}; }} circle.warm {{ fill: {warm}; }}
circle.ink {{ fill: {ink}; }}
"""
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Scale:
    """Values low..high at pixels start..end, evenly or by their logarithms."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        low, high, value = map(math.log10, (self.low, self.high, value)) if self.log else (self.low, self.high, value)
        return self.start + (value - low) / (high - low) * (self.end - self.start)

    def ticks(self, wanted: int = 5) -> list[float]:
        if self.log:
            return log_ticks(math.log10(self.low), math.log10(self.high))
        return nice_ticks(self.low, self.high, wanted)


@dataclass(frozen=True)
class Picture:
    """height: of the drawing, as its width is always the same. description: read out instead of it."""

    height: float
    description: str
    parts: Sequence[str]

    def svg(self, theme: str) -> str:
        style = STYLE.format(font=FONT, **THEMES[theme])
        size = f'viewBox="0 0 {WIDTH:.0f} {self.height:.0f}" width="{WIDTH:.0f}" height="{self.height:.0f}"'
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img"><desc>{escape(self.description)}</desc>'
            f"<style>{style}</style>{''.join(self.parts)}</svg>\n"
        )


def path(kind: str, d: str) -> str:
    return f'<path class="{kind}" d="{d}"/>'


def circle(kind: str, x: float, y: float, title: str = "") -> str:
    inside = f"<title>{escape(title)}</title>" if title else ""
    return f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="4">{inside}</circle>'


def heights(y: Scale, left: float, right: float, title: str, ticks: Sequence[float]) -> list[str]:
    """Grid lines with what they stand for, and the title of the axis above them."""
    lines = "".join(f"M{left:.0f} {y(tick):.1f}H{right:.0f}" for tick in ticks)
    names = [text_at(left - 6, y(tick) + 4.5, figure(tick), "right") for tick in ticks]
    return [path("grid", lines), *names, text_at(4, 18, title, "left")]


def widths(x: Scale, floor: float, title: str = "", wanted: int = 6) -> list[str]:
    names = [text_at(x(tick), floor + 18, figure(tick)) for tick in x.ticks(wanted)]
    middle = (x.start + x.end) / 2
    return [path("axis", f"M{x.start:.1f} {floor:.0f}H{x.end:.1f}"), *names, text_at(middle, floor + 38, title)]


def distribution(row: Row) -> Picture:
    """A histogram; below it a row of points for each form, with what the form costs."""
    floor, left, right = 170.0, NAMES, WIDTH - ERRORS
    most = max(max(panel["counts"]) for panel in row["panels"])
    y = Scale(0.7, 1.5 * most, floor, TOP, log=True)
    ticks = [tick for tick in log_ticks(0.0, math.log10(most)) if math.log10(tick) % 2 == 0]
    parts = heights(y, left, right, f"number of values, {row['site']}, {row['bits']} bits", ticks)
    parts.append(text_at(WIDTH - 4, floor + 18, "KL", "right"))
    scales = panels_of(row["panels"], left, right)
    for panel, x in zip(row["panels"], scales, strict=True):
        parts += [outline("area", panel["counts"], x, y, floor), *widths(x, floor, wanted=4 if len(scales) == 1 else 3)]
    for number, form in enumerate(row["forms"]):
        at = floor + 26 + ROW * (number + 0.75)
        parts += [text_at(left - 8, at + 4.5, form["form"], "b right"), *rugs(form["points"], scales, at)]
        parts.append(text_at(WIDTH - 4, at + 4.5, figure(form["kl"], 2), "b right"))
    costs = ", ".join(f"{form['form']} {figure(form['kl'], 2)}" for form in row["forms"])
    return Picture(floor + 26 + ROW * (len(row["forms"]) + 0.5), f"Values of {row['site']}. KL: {costs}.", parts)


def panels_of(panels: Sequence[Row], left: float, right: float) -> list[Scale]:
    if len(panels) == 1:
        return [Scale(panels[0]["low"], panels[0]["high"], left, right, log=panels[0]["axis"] == "log")]
    border = left + NEGATIVES * (right - left)
    ends = ((left, border - GAP / 2), (border + GAP / 2, right))
    return [Scale(panel["low"], panel["high"], *end) for panel, end in zip(panels, ends, strict=True)]


def outline(kind: str, counts: Sequence[int], x: Scale, y: Scale, floor: float) -> str:
    """The steps of a histogram."""
    width = (x.end - x.start) / len(counts)
    steps = [f"V{y(count) if count else floor:.1f}H{x.start + (place + 1) * width:.1f}"
             for place, count in enumerate(counts)]  # fmt: skip
    return path(kind, f"M{x.start:.1f} {floor:.0f}{''.join(steps)}V{floor:.0f}")


def rugs(ranges: Sequence[Row], scales: Sequence[Scale], at: float) -> list[str]:
    """The points of one form; those of a twin's ranges in two colours. Zero has no logarithm: it lies at the edge."""
    colours = ("warm", "cool") if len(ranges) == 2 else ("",)
    parts = []
    for colour, points in zip(colours, ranges, strict=True):
        values = [points["first"] + place * points["step"] for place in range(points["count"])]
        marks = [mark for x in scales for value in values if (mark := mark_of(value, x)) is not None]
        lines = "".join(f"M{mark:.1f} {at - RUG / 2:.1f}v{RUG:.0f}" for mark in marks)
        parts.append(path(f"points {colour}".strip(), lines))
    return parts


def mark_of(value: float, x: Scale) -> float | None:
    """Where a point is drawn; None outside the panel."""
    if x.log and abs(value) < x.low:
        return x.start
    slack = 1e-6 * (x.high - x.low)
    return x(value) if x.low - slack <= value <= x.high + slack else None


def channels(row: Row) -> Picture:
    floor, largest = 180.0, row["largest"]
    x = Scale(0, len(largest), LEFT, WIDTH - RIGHT)
    y = Scale(0, 1.05 * max(largest), floor, TOP)
    lines = "".join(f"M{x(place + 0.5):.1f} {floor:.0f}V{y(value):.1f}" for place, value in enumerate(largest))
    limit = y(row["limit"])
    parts = [*heights(y, LEFT, WIDTH - RIGHT, "largest value of a channel", y.ticks(4)), path("cool", lines)]
    parts += [path("bad", f"M{LEFT:.0f} {limit:.1f}H{WIDTH - RIGHT:.0f}")]
    parts.append(text_at(LEFT + 6, limit - 6, f"above {figure(row['limit'])}: an outlier", "bad left"))
    for place in row["outliers"]:
        side, away = ("left", 8) if place < len(largest) * 0.75 else ("right", -8)
        name = f"channel {place}: {figure(largest[place])}"
        parts.append(text_at(x(place) + away, y(largest[place]) + 10, name, f"b {side}"))
    parts += widths(x, floor, f"input channel of {row['site']}")
    return Picture(floor + 46, f"Outlier channels of {row['site']}: {row['outliers']}.", parts)


def metric(row: Row) -> Picture:
    """Three curves, each over its own smallest value, with a dot where that lies."""
    floor = 210.0
    x = Scale(0, max(row["scale"]), LEFT, WIDTH - RIGHT)
    y = Scale(1.0, 10**DECADES, floor, TOP + 20, log=True)
    parts = [*heights(y, LEFT, WIDTH - RIGHT, "times the best candidate's", [1, 2, 5, 10, 20])]
    names = {"mse": ("output MSE", "warm dashed"), "hessian": ("Hessian metric", "cool"), "kl": ("measured KL", "ink")}
    for number, (key, (name, kind)) in enumerate(names.items()):
        parts += [curve(x, y, row, key, kind), circle(kind.split()[0], x(best_scale(row, key)), floor)]
        start = LEFT + 10 + 140 * number
        parts += [path(f"{kind} line", f"M{start:.0f} 40h26"), text_at(start + 32, 44, name, "left")]
    parts += widths(x, floor, "scale, in units of the one that covers the largest value")
    costs = {key: row["kl"][row[key].index(min(row[key]))] for key in ("mse", "hessian")}
    said = f"KL at the scale of the MSE {figure(costs['mse'], 2)}, of the Hessian metric {figure(costs['hessian'], 2)}"
    parts.append(text_at(WIDTH / 2, floor + 58, said, "b"))
    return Picture(floor + 68, f"{row['site']}, {row['bits']} bits. {said}.", parts)


def best_scale(row: Row, key: str) -> float:
    return float(row["scale"][row[key].index(min(row[key]))])


def curve(x: Scale, y: Scale, row: Row, key: str, kind: str) -> str:
    """Cut off at the top."""
    least = min(row[key])
    places = [(x(scale), y(min(value / least, y.high))) for scale, value in zip(row["scale"], row[key], strict=True)]
    return path(f"{kind} line", "M" + "L".join(f"{across:.1f} {up:.1f}" for across, up in places))


def choices(rows: Sequence[Row]) -> Picture:
    """A dot for each layer, by what the two metrics' scales cost; below the diagonal the Hessian metric's cost less."""
    floor, values = 330.0, [row[key] for row in rows for key in ("mse", "hessian")]
    low, high = min(values) / 1.3, max(values) * 1.3
    x, y = Scale(low, high, LEFT + 14, WIDTH - RIGHT, log=True), Scale(low, high, floor, TOP, log=True)
    parts = [*heights(y, x.start, x.end, "KL at the scale that the Hessian metric chose", y.ticks())]
    parts += [path("axis", f"M{x.start:.1f} {floor:.0f}L{x.end:.1f} {TOP:.0f}")]
    parts += [circle("cool", x(row["mse"]), y(row["hessian"]), row["site"]) for row in rows]
    better, worse = (sum(sign * row["hessian"] < sign * row["mse"] for row in rows) for sign in (1, -1))
    ratio = math.exp(sum(math.log(row["mse"] / row["hessian"]) for row in rows) / len(rows))
    said = f"{better} of {len(rows)} layers below the line, {worse} above"
    parts += widths(x, floor, "KL at the scale that the output MSE chose")
    parts += [text_at(WIDTH / 2, floor + 60, said, "b")]
    parts += [text_at(WIDTH / 2, floor + 79, f"geometric mean of MSE / Hessian: {figure(ratio)}")]
    return Picture(floor + 88, f"{said}; geometric mean of the ratio {figure(ratio)}.", parts)


def pairs(rows: Sequence[Row]) -> Picture:
    floor, bins = 190.0, len(rows[0]["counts"])
    x = Scale(0, rows[0]["bin"] * bins, LEFT + 6, WIDTH - RIGHT)
    y = Scale(0.7, 2 * max(max(row["counts"]) for row in rows), floor, TOP + 40, log=True)
    ticks = [tick for tick in y.ticks() if math.log10(tick) % 2 == 0]
    parts = heights(y, x.start, x.end, "pairs of neighbouring weights", ticks)
    limit = x(rows[0]["limit"])
    parts += [path("bad", f"M{limit:.1f} {TOP + 40:.0f}V{floor:.0f}")]
    parts += [text_at(limit + 6, TOP + 52, "may saturate without VNNI", "bad left")]
    for number, (row, kind) in enumerate(zip(rows, ("warm dashed", "cool"), strict=True)):
        said = f"scale {row['scales']}: {figure(row['beyond'])} of {row['pairs'] / 1e6:.1f} million beyond"
        parts += [path(f"{kind} line", f"M{LEFT + 10:.0f} {38 + 20 * number}h26")]
        parts += [
            text_at(LEFT + 42, 42.5 + 20 * number, said, "left"),
            outline(f"{kind} line", row["counts"], x, y, floor),
        ]
    parts += widths(x, floor, "size of the sum of two codes")
    return Picture(floor + 46, "Sums of neighbouring weight codes; see the legend.", parts)


def pictures(rows: Sequence[Row]) -> dict[str, Picture]:
    """By name. rows: of benchmarks/results/method_figures.json."""
    of = {kind: [row for row in rows if row["figure"] == kind] for kind in ("metric", "channels", "choices", "pairs")}
    found = {row["source"]: distribution(row) for row in rows if row["figure"] == "distribution"}
    return {
        **found,
        "outliers": channels(of["channels"][0]),
        "metric": metric(of["metric"][0]),
        "choices": choices(of["choices"]),
        "pairs": pairs(of["pairs"]),
    }


def drawn(results: Path = RESULTS) -> dict[str, str]:
    """The text of every file in docs/pictures, by its name."""
    rows = json.loads(results.read_text(encoding="utf-8"))["rows"]
    return {f"method-{name}-{theme}.svg": picture.svg(theme) for name, picture in pictures(rows).items()
            for theme in THEMES}  # fmt: skip


def stale(folder: Path = FOLDER) -> dict[str, str]:
    return {name: text for name, text in drawn().items()
            if not (folder / name).is_file() or (folder / name).read_text(encoding="utf-8") != text}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    found = stale()
    for name, text in found.items():
        if not check:
            FOLDER.mkdir(parents=True, exist_ok=True)
            (FOLDER / name).write_text(text, encoding="utf-8")
        print(f"{name}: {'differs from its results' if check else 'written'}")
    return 1 if check and found else 0


if __name__ == "__main__":
    sys.exit(main())
