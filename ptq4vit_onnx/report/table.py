"""The tables of the pages: of sites, and of files; quantizers and figures in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ptq4vit_onnx.plan.quantizers import Quantizer
from ptq4vit_onnx.report.charts import figure
from ptq4vit_onnx.report.rows import KernelUse, SiteRow, decibels_of, noisiest, worst
from ptq4vit_onnx.report.twin_words import twin_choice

UNITS = {"SQNR": "dB", "Damage": "%", "Clipped": "%"}
NUMBERS = ("SQNR", "Damage", "Clipped", "Bits", "Outliers", "Moved")  # set to the right
WRAPPED = ("Channels", "Twin")  # in two lines where sites' names are long
NO_BREAK = "\u2011"  # a hyphen at which no line ends
RETURNS = {"MatMulIntegerToFloat": "float", "QLinearMatMul": "codes"}  # whole names would not fit on a screen


@dataclass(frozen=True)
class Heading:
    """unit: written below the title, empty for none. kind: the class of the style sheet, empty for none."""

    title: str
    unit: str
    kind: str


@dataclass(frozen=True)
class Cell:
    """kind: classes of the style sheet, empty for none."""

    text: str
    kind: str


@dataclass(frozen=True)
class Line:
    """One site. recorded: its charts are on the page, so its name is a link to them."""

    site: str
    recorded: bool
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class Table:
    """headings: of the cells; that of the sites' names is the template's."""

    headings: tuple[Heading, ...]
    lines: tuple[Line, ...]


@dataclass(frozen=True)
class FileLine:
    """A file of the model. kind: of the style sheet, for one that stands out or back; empty for none."""

    title: str
    cells: tuple[Cell, ...]
    kind: str


@dataclass(frozen=True)
class FileTable:
    """headings: of the cells; that of the files' titles is the template's."""

    headings: tuple[Heading, ...]
    lines: tuple[FileLine, ...]


def table(rows: Sequence[SiteRow]) -> Table:
    """All sites; a column that is empty for every site is left out."""
    texts = [_cells(row) for row in rows]
    shown = [title for title in texts[0] if any(line[title] for line in texts)]
    marks = _marks(rows)
    lines = [
        Line(row.name, row.evidence is not None,
             tuple(Cell(line[title], _kind(title, marks.get((title, row.name), ""))) for title in shown))
        for row, line in zip(rows, texts, strict=True)
    ]  # fmt: skip
    return Table(tuple(Heading(title, UNITS.get(title, ""), _kind(title)) for title in shown), tuple(lines))


def _marks(rows: Sequence[SiteRow]) -> dict[tuple[str, str], str]:
    """By title and site: the class of a cell that stands out."""
    noise = noisiest(rows)
    marks = {("Damage", worst(rows).name): "warm", ("SQNR", noise.name if noise else ""): "warm"}
    return marks | {("Parity", row.name): "bad" for row in rows if row.exact is False}


def _kind(title: str, mark: str = "") -> str:
    setting = "n" if title in NUMBERS else "w" if title in WRAPPED else ""
    return f"{setting} {mark}".strip()


def _cells(row: SiteRow) -> dict[str, str]:
    lhs, rhs, evidence, decibels = row.plan.lhs, row.plan.rhs, row.evidence, decibels_of(row)
    return {
        "Parity": "" if row.exact is None else "exact" if row.exact else (row.failure or "differs"),
        "SQNR": "" if decibels is None else f"{decibels:.1f}",
        "Damage": "" if evidence is None else f"{100 * row.weight:.1f}",
        "Clipped": "" if evidence is None else figure(100 * evidence.clipped, 2),
        "Bits": f"{lhs.bits} × {rhs.bits}",
        "Left": type_name(lhs),
        "Channels": _channels(row),
        "Twin": _twin(row),
        "Left step": steps(lhs),
        "Right step": steps(rhs),
        "Outliers": "" if row.plan.outliers is None else str(len(row.plan.outliers.channels)),
        "Moved": "" if row.moved is None else str(row.moved),
        "Kernel": "; ".join(map(_kernel, row.kernels)),
    }


def _channels(row: SiteRow) -> str:
    channels = row.plan.channels
    return "" if channels is None else "centred, scaled" if any(channels.shift) else "scaled"


def _twin(row: SiteRow) -> str:
    """Why two ranges were taken or left: the expected damage they save, in the output kind's unit, or by the metric."""
    choice = twin_choice(row.plan)
    if choice is None:
        return ""
    verb = "saves" if choice.taken else "would save" if choice.saves > 0 else "would add"
    return f"{verb} {figure(abs(choice.saves), 2)}".replace("-", NO_BREAK)


def _kernel(use: KernelUse) -> str:
    """u8 × s8 → float (2): two products; a kernel that is not in RETURNS is named instead."""
    operands, returned = " × ".join(use.operands), RETURNS.get(use.kernel)
    text = f"{operands} → {returned}" if returned else f"{operands}, {use.kernel}" if operands else use.kernel
    return text if use.products == 1 else f"{text} ({use.products})"


def fixed(value: float | None, digits: int, unit: str = "") -> str:
    """With so many digits behind the point; None as an empty cell."""
    return "" if value is None else f"{value:.{digits}f}{unit}"


def with_error(value: float | None, error: float | None) -> str:
    """0.31 ± 0.20; None as an empty cell."""
    return fixed(value, 2) if value is None or error is None else f"{value:.2f} ± {error:.2f}"


def describe(quantizer: Quantizer) -> str:
    """A quantizer in words: "affine, 8 bits, step 0.0123, zero point 117"."""
    return ", ".join(part for part in (type_name(quantizer), f"{quantizer.bits} bits", *_settings(quantizer)) if part)


def type_name(quantizer: Quantizer) -> str:
    return quantizer.title


def _settings(quantizer: Quantizer) -> tuple[str, ...]:
    plural = "steps" if len(quantizer.branches) > 1 or quantizer.groups > 1 else "step"
    return f"{plural} {steps(quantizer)}", *quantizer.remarks


def steps(quantizer: Quantizer) -> str:
    """The scale; of several the range and how many; of a twin both."""
    if len(quantizer.branches) > 1:
        return " and ".join(figure(branch.steps[0]) for branch in quantizer.branches)
    (scale,) = (branch.steps for branch in quantizer.branches)
    if len(scale) == 1:
        return figure(scale[0])
    return f"{figure(min(scale))}–{figure(max(scale))} ({len(scale)})"
