"""Files of one model by size and distance, as `pareto` compares them: typed rows, CSV, and a table for the terminal."""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields

from ptq4vit_onnx.report.charts import figure
from ptq4vit_onnx.report.size_chart import Dot
from ptq4vit_onnx.report.size_chart import Group as Group
from ptq4vit_onnx.report.table import fixed, with_error

GROUPS: dict[Group, str] = {"single": "one width", "mixed": "mixture", "peer": "other tool", "float": "float"}


@dataclass(frozen=True)
class ParetoRow:
    """A file that was measured; None: it was not, or the kind of output has none.

    file: where it lies, from the folder of the page. size: in bytes. average_bits: of a weight. distance: from the
    float model; predicted: what sensitivities promised. agreement: percent of the float model's predictions.
    top1_drop, drop_error: points of top-1 lost, and their standard error. milliseconds: median of a run.
    speed: times float.
    """

    title: str
    group: Group
    file: str
    size: int
    average_bits: float | None
    distance: float
    predicted: float | None = None
    agreement: float | None = None
    top1_drop: float | None = None
    drop_error: float | None = None
    milliseconds: float | None = None
    speed: float | None = None

    @property
    def dot(self) -> Dot:
        return Dot(self.title, self.size, self.distance, self.group, self.predicted)


@dataclass(frozen=True)
class ParetoAbout:
    """What all rows share. distance: what is measured: "KL". measured_on: "256 images of .., none calibrated on".
    machine: the CPU of the times; empty where there are none."""

    model: str
    distance: str
    measured_on: str
    machine: str
    version: str


def pareto_csv(rows: Sequence[ParetoRow]) -> str:
    """A header of the fields' names, then a line for each file; None is empty, numbers have all their digits."""
    text = io.StringIO()
    writer = csv.DictWriter(text, [field.name for field in fields(ParetoRow)], lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(row) for row in rows)
    return text.getvalue()


def pareto_table(rows: Sequence[ParetoRow], distance: str = "distance") -> list[tuple[str, ...]]:
    """The header, then a line of words for each file; columns that are empty for all are left out."""
    columns = _columns(distance)
    lines = [tuple(column(row) for column in columns.values()) for row in rows]
    kept = [place for place, _ in enumerate(columns) if any(line[place] for line in lines)]
    return [tuple(line[place] for place in kept) for line in (tuple(columns), *lines)]


def _columns(distance: str) -> dict[str, Callable[[ParetoRow], str]]:
    return {
        "file": lambda row: row.title,
        "": lambda row: GROUPS[row.group],
        "MB": lambda row: f"{row.size / 1e6:.2f}",
        "bits": lambda row: fixed(row.average_bits, 2),
        distance: lambda row: figure(row.distance),
        "predicted": lambda row: "" if row.predicted is None else figure(row.predicted),
        "agreement": lambda row: fixed(row.agreement, 2, " %"),
        "drop": lambda row: with_error(row.top1_drop, row.drop_error),
        "ms": lambda row: fixed(row.milliseconds, 2),
        "speed": lambda row: fixed(row.speed, 2, "x"),
    }


def dominated(row: ParetoRow, rows: Sequence[ParetoRow]) -> bool:
    """Whether another file is no larger and no farther from the float model, and better in one of them."""
    return any(
        other.size <= row.size and other.distance <= row.distance
        and (other.size, other.distance) != (row.size, row.distance)
        for other in rows
    )  # fmt: skip


def pareto_sentences(rows: Sequence[ParetoRow], distance: str) -> list[str]:
    """What the rows come to: what mixing gains, and the files to take instead of other tools'."""
    own = [row for row in rows if row.group in ("single", "mixed")]
    found = [_mixing(own, distance), *(_instead(peer, own, distance) for peer in rows if peer.group == "peer")]
    return [sentence for sentence in found if sentence]


def _mixing(own: Sequence[ParetoRow], distance: str) -> str:
    """How mixtures compare with the best single width that is no larger."""
    singles = [row for row in own if row.group == "single" and row.distance > 0]
    fitting = [
        (row, [single.distance for single in singles if single.size <= row.size])
        for row in own if row.group == "mixed"
    ]  # fmt: skip
    ratios = [row.distance / min(distances) for row, distances in fitting if distances]
    if not ratios:
        return ""
    better = sum(ratio < 1 for ratio in ratios)
    return (
        f"{better} of {len(ratios)} mixtures have a smaller {distance} than the best single width that is no larger: "
        f"{min(ratios):.2f} to {max(ratios):.2f} times its {distance}, {statistics.median(ratios):.2f} in the median."
    )


def _instead(peer: ParetoRow, own: Sequence[ParetoRow], distance: str) -> str:
    """The best file of its size at most, and the smallest that is as close to the float model."""
    closest = min((row for row in own if row.size <= peer.size), key=lambda row: row.distance, default=None)
    smallest = min((row for row in own if row.distance <= peer.distance), key=lambda row: row.size, default=None)
    begin = f"{peer.title} has {peer.size / 1e6:.2f} MB and {distance} {figure(peer.distance)}."
    if closest is None or closest.distance > peer.distance or smallest is None:
        return f"{begin} No file here is both no larger and no farther from the float model."
    return (
        f"{begin} Of the files that are no larger, {closest.title} is the closest: {distance} "
        f"{figure(closest.distance)}. Of those with no larger {distance}, {smallest.title} is the smallest: "
        f"{smallest.size / 1e6:.2f} MB."
    )
