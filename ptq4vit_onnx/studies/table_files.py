"""Measured rows of the paper's tables on disk: a CSV to go on from, and the same as Markdown to read."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ptq4vit_onnx.errors import UserError
from ptq4vit_onnx.files.inputs import read_text
from ptq4vit_onnx.files.outputs import write_whole
from ptq4vit_onnx.output_kinds import metrics
from ptq4vit_onnx.output_kinds.metrics import Array

COLUMNS = (  # of a row; the CSV has all but the minutes
    "model", "method", "bits", "images", "top1", "paper_top1", "drop", "drop_error", "paper_drop", "float_top1",
    "paper_float_top1", "agreement", "kl", "minutes", "paper_minutes", "engine", "validation_images", "seed", "key",
)  # fmt: skip
MINUTES = "minutes"  # the only column that differs from run to run, so it lies in a file of its own
CSV_COLUMNS = tuple(name for name in COLUMNS if name != MINUTES)
# The simulator computes what ships, so a W8A8 row is not quite the paper's experiment; whoever compares has to know.
NOTE = (
    "Weights of 8 bits are those that ship: neighbours whose products could overflow 16 bits on CPUs without VNNI are "
    "moved towards zero, by engine simulator as well. The paper's are not."
)


@dataclass
class Tally:
    """A model next to its float form, summed over images as they come."""

    images: int = 0
    right: int = 0
    lost: int = 0
    gained: int = 0
    agreeing: int = 0
    divergence: float = 0.0

    def add(self, logits: Array, reference: Array, labels: Array) -> None:
        drop = metrics.paired_drop(reference, logits, labels)
        predicted = metrics.predictions(logits)
        self.images += len(labels)
        self.right += int((predicted == labels).sum())
        self.lost, self.gained = self.lost + drop.lost, self.gained + drop.gained
        self.agreeing += int((predicted == metrics.predictions(reference)).sum())
        self.divergence += metrics.mean_kl(reference, logits) * len(labels)

    def join(self, later: Tally) -> None:
        """Of images that come after these: the same sum, in the same order, as if they had been added here."""
        for name in ("images", "right", "lost", "gained", "agreeing", "divergence"):
            setattr(self, name, getattr(self, name) + getattr(later, name))

    def cells(self) -> dict[str, str]:
        change, count = self.lost - self.gained, self.images
        variance = (self.lost + self.gained - change**2 / count) / max(count - 1, 1)
        percent = {
            "top1": self.right, "drop": change, "float_top1": self.right + change, "agreement": self.agreeing,
            "drop_error": (count * variance) ** 0.5,
        }  # fmt: skip
        cells = {name: f"{100 * value / count:.2f}" for name, value in percent.items()}
        return {**cells, "kl": f"{self.divergence / count:.5f}", "validation_images": str(count)}


def read_rows(path: Path) -> list[dict[str, str]]:
    """The rows of an earlier run; a file of something else is refused, not overwritten."""
    minutes = {row["key"]: row[MINUTES] for row in _read(minutes_file(path), ("key", MINUTES))}
    return [{**row, MINUTES: minutes.get(row["key"], "")} for row in _read(path, CSV_COLUMNS)]


def minutes_file(path: Path) -> Path:
    """table1.csv -> table1_minutes.csv, by key."""
    return path.with_name(f"{path.stem}_minutes.csv")


def _read(path: Path, columns: Sequence[str]) -> list[dict[str, str]]:
    if not os.path.lexists(path):
        return []
    reader = csv.DictReader(io.StringIO(read_text(path, "table", "give another --output"), newline=""))
    try:
        rows = list(reader)
    except (ValueError, csv.Error) as error:
        raise UserError(f"cannot read {path}: {error}; give another --output") from error
    if tuple(reader.fieldnames or ()) != tuple(columns) or any(None in row or None in row.values() for row in rows):
        raise UserError(f"{path} has other columns than this command writes; move it away or give another --output")
    return rows


def add_row(path: Path, row: dict[str, str], order: Sequence[str] = ()) -> None:
    """Put a row where the table has it. order: keys of the table's rows. Rows of other runs stay where they are.

    Read again before writing: another process may have added rows of other models meanwhile.
    """
    rows = read_rows(path)
    rows.insert(_place([other["key"] for other in rows], row["key"], order), row)
    write_rows(path, rows)


def _place(keys: Sequence[str], key: str, order: Sequence[str]) -> int:
    """Behind the last of those that come before it in the table, else in front of the first that comes after it."""
    number = {name: place for place, name in enumerate(order)}
    mine = number.get(key, len(order))
    before = [place for place, other in enumerate(keys) if number.get(other, len(order)) < mine]
    after = [place for place, other in enumerate(keys) if mine < number.get(other, -1)]
    return before[-1] + 1 if before else after[0] if after else len(keys)


def write_rows(path: Path, rows: Sequence[dict[str, str]]) -> None:
    """All files, each whole or not at all; the Markdown and the minutes lie next to the CSV."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot write {path.parent}: {error.strerror}; give another --output") from error
    write_whole(minutes_file(path), _csv_text(rows, ("key", MINUTES)))
    write_whole(path, _csv_text(rows, CSV_COLUMNS))
    write_whole(path.with_suffix(".md"), markdown(rows))


def _csv_text(rows: Sequence[dict[str, str]], columns: Sequence[str]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def markdown(rows: Sequence[dict[str, str]]) -> str:
    """The same as a table to read, without the key; columns that no row fills are left out."""
    titles = {name: name.replace("top1", "top-1").replace("_", " ") for name in COLUMNS if name != "key"}
    titles |= {"images": "calibration images", "kl": "KL"}
    shown = [name for name in titles if not rows or any(row[name] for row in rows)]
    lines = [[titles[name] for name in shown], ["---"] * len(shown), *([row[name] for name in shown] for row in rows)]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines) + f"\n{NOTE}\n"
