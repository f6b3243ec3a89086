"""The page and the picture of `pareto`: files of one model by size and distance from the float model."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Literal, get_args

from markupsafe import escape

from ptq4vit_onnx.report.charts import figure
from ptq4vit_onnx.report.page import environment
from ptq4vit_onnx.report.pareto_rows import (
    GROUPS,
    ParetoAbout,
    ParetoRow,
    dominated,
    pareto_sentences,
)
from ptq4vit_onnx.report.size_chart import HEIGHT, WIDTH, Dot, described, size_chart, size_chart_parts
from ptq4vit_onnx.report.table import Cell, FileLine, FileTable, Heading, fixed, with_error

Theme = Literal["light", "dark"]
THEMES: tuple[Theme, ...] = get_args(Theme)
PIXELS = 1.7  # of a screen for each of the chart's, where the picture stands alone
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif"


def render_pareto(rows: Sequence[ParetoRow], about: ParetoAbout) -> str:
    """The page, complete in itself: no script, nothing is loaded."""
    ordered = sorted(rows, key=lambda row: (row.size, row.title))
    texts = [_cells(row, about.distance) for row in ordered]
    shown = [heading for heading in texts[0] if any(text[heading] for text in texts)]
    lines = [
        FileLine(row.title, tuple(Cell(text[heading], heading.kind) for heading in shown),
                 "dull" if dominated(row, rows) else "")
        for row, text in zip(ordered, texts, strict=True)
    ]  # fmt: skip
    return environment().get_template("pareto.html").render(
        about=about,
        chart=size_chart([row.dot for row in rows], None, about.distance, title=_title(about)),
        sentences=pareto_sentences(rows, about.distance),
        files=FileTable(tuple(shown), tuple(lines)),
    )  # fmt: skip


def _cells(row: ParetoRow, distance: str) -> dict[Heading, str]:
    """By column; one that is empty for all files is left out."""
    return {
        Heading("Kind", "", ""): GROUPS[row.group],
        Heading("Size", "MB", "n"): f"{row.size / 1e6:.2f}",
        Heading("Bits on average", "", "n"): fixed(row.average_bits, 2),
        Heading(distance, "", "n"): figure(row.distance),
        Heading("Predicted", "", "n"): "" if row.predicted is None else figure(row.predicted),
        Heading("Agreement", "%", "n"): fixed(row.agreement, 2),
        Heading("Drop", "points", "n"): with_error(row.top1_drop, row.drop_error),
        Heading("Time", "ms", "n"): fixed(row.milliseconds, 2),
        Heading("Speed", "times float", "n"): fixed(row.speed, 2),
        Heading("Path", "", "mono"): row.file,
    }


def _title(about: ParetoAbout) -> str:
    return f"{about.model}: size against {about.distance} from the float model"


def pareto_svg(rows: Sequence[ParetoRow], about: ParetoAbout) -> str:
    """The chart as a file of its own."""
    return sizes_svg([row.dot for row in rows], _title(about), about.distance)


def sizes_svg(dots: Sequence[Dot], title: str, distance: str, theme: Theme = "light") -> str:
    """A chart of any files, on the theme's page colour."""
    colours = _colours(theme)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 -8 {WIDTH:.0f} {HEIGHT + 8:.0f}" '
        f'width="{PIXELS * WIDTH:.0f}" height="{PIXELS * (HEIGHT + 8):.0f}" role="img">'
        f"<title>{escape(title)}</title><desc>{escape(described(dots, None, distance))}</desc>"
        f"<style>{_style(colours)}</style>"
        f'<rect y="-8" width="100%" height="100%" fill="{colours["page"]}"/>'
        f"{size_chart_parts(dots, None, distance)}</svg>\n"
    )


def _style(colours: Mapping[str, str]) -> str:
    """The page's rules for charts, with the values of its variables: not every program that shows SVG knows these."""
    rules = [line for line in _css().splitlines() if line.startswith("svg ") and not line.startswith("svg {")]
    named = re.sub(r"var\(--([\w-]+)\)", lambda found: colours[found[1]], "\n".join(rules))
    return f"\nsvg text {{ font-family: {FONT}; }}\n{named}\n"


def _colours(theme: Theme) -> dict[str, str]:
    """The page's variables: its first :root are the light ones, its second the dark ones."""
    block = re.findall(r":root {(.*?)}", _css(), re.DOTALL)[THEMES.index(theme)]
    return dict(re.findall(r"--([\w-]+): ([^;]+);", block))


def _css() -> str:
    return files("ptq4vit_onnx.report").joinpath("templates", "style.css").read_text(encoding="utf-8")
