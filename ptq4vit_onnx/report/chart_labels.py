"""Names beside the marks of a chart, each where it hides least of the others."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ptq4vit_onnx.report.charts import text_at

LETTER, LINE = 7.2, 14.0  # a letter's width and a line's height, in pixels; style.css has 12.5 px
MARK = 6.5  # half the side of a mark
LONGEST = 26  # letters of a name
STEP = 6.0  # pixels between the points of a line that are looked at
NEAR, FAR, FARTHER = 10.0, 26.0, 44.0  # from a mark to its name
RING = 3.0  # more, from the mark of a bold name, which has a ring
# What a name costs: by square pixel over another name, by mark and by point of the line beneath it, by pixel from its
# mark, and by pixel outside the plot.
ON_NAME, ON_MARK, ON_LINE, AWAY, OUTSIDE = 4.0, 60.0, 8.0, 1.2, 200.0

Place = tuple[float, float]


@dataclass(frozen=True)
class Box:
    left: float
    top: float
    right: float
    bottom: float

    def covers(self, x: float, y: float, margin: float = 0.0) -> bool:
        return self.left - margin < x < self.right + margin and self.top - margin < y < self.bottom + margin

    @classmethod
    def of_text(cls, text: str, x: float, y: float, right: bool = False) -> Box:
        """That of a text whose line lies at y, and which begins at x; right: which ends there."""
        width = LETTER * len(text)
        return cls(x - width * right, y - LINE + 3.5, x + width * (not right), y + 3.5)

    def shared(self, other: Box) -> float:
        """The area that lies in both."""
        width = min(self.right, other.right) - max(self.left, other.left)
        height = min(self.bottom, other.bottom) - max(self.top, other.top)
        return max(0.0, width) * max(0.0, height)

    def beyond(self, other: Box) -> float:
        """By how many pixels it leaves the other box, all sides together."""
        return sum(max(0.0, value) for value in (other.left - self.left, self.right - other.right,
                                                 other.top - self.top, self.bottom - other.bottom))  # fmt: skip


@dataclass(frozen=True)
class Label:
    """A name for the mark at x, y. kind: the class of its colour."""

    text: str
    x: float
    y: float
    kind: str
    bold: bool = False

    def boxes(self) -> Iterator[tuple[Box, float]]:
        """Where it may be written, how far from its mark: beside, above, below, at the corners; near, then farther."""
        width = LETTER * len(self.text) * (1.06 if self.bold else 1.0)
        for away in (NEAR + RING * self.bold, FAR, FARTHER):
            for across, down in ((1, 0), (1, -1), (0, -1), (-1, 0), (-1, 1), (0, 1), (-1, -1), (1, 1)):
                left = self.x + across * (away + width / 2) * (0.9 if down else 1.0) - width / 2
                middle = self.y + down * (away + LINE / 2) * (0.75 if across else 1.0)
                yield Box(left, middle - LINE / 2, left + width, middle + LINE / 2), away


def shortened(name: str) -> str:
    return name if len(name) <= LONGEST else f"{name[: LONGEST - 1]}…"


def placed(
    labels: Sequence[Label],
    marks: Sequence[Place],
    lines: Sequence[tuple[Place, Place]],
    plot: Box,
    others: Sequence[Box] = (),
) -> str:
    """The names as SVG, the first where it lies best, each other where those before it leave room.

    others: texts that have their places already.
    """
    points = [point for line in lines for point in _along(*line)]
    taken, parts = list(others), []
    for label in labels:
        box, away = min(label.boxes(), key=lambda found: _cost(found[0], found[1], taken, marks, points, plot))
        taken.append(box)
        parts.append(_drawn(label, box, away))
    return "".join(parts)


def _along(start: Place, end: Place) -> list[Place]:
    steps = max(1, math.ceil(math.dist(start, end) / STEP))
    across, down = (end[0] - start[0]) / steps, (end[1] - start[1]) / steps
    return [(start[0] + across * step, start[1] + down * step) for step in range(steps + 1)]


def _cost(
    box: Box, away: float, taken: Sequence[Box], marks: Sequence[Place], points: Sequence[Place], plot: Box
) -> float:
    names = sum(box.shared(other) for other in taken)
    hidden = sum(box.covers(*mark, margin=MARK - 1) for mark in marks)
    crossed = sum(box.covers(*point) for point in points)
    return ON_NAME * names + ON_MARK * hidden + ON_LINE * crossed + AWAY * away + OUTSIDE * box.beyond(plot)


def _anchor(label: Label, box: Box) -> tuple[float, str]:
    """Where the text begins or ends, so that larger letters grow away from the mark; and the class that says so."""
    if box.left > label.x:
        return box.left, " left"
    return (box.right, " right") if box.right < label.x else ((box.left + box.right) / 2, "")


def _drawn(label: Label, box: Box, away: float) -> str:
    """The name, with a line to its mark where it lies far from it."""
    x, anchor = _anchor(label, box)
    name = text_at(x, box.bottom - 3.5, label.text, f"{label.kind}{' b' if label.bold else ''}{anchor}")
    if away < FAR:
        return name
    x = min(max(label.x, box.left), box.right)
    y = min(max(label.y, box.top), box.bottom)
    return f'<path class="leader" d="M{label.x:.1f} {label.y:.1f}L{x:.1f} {y:.1f}"/>{name}'
