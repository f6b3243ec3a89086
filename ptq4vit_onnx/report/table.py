"""The table of sites of report.html, and quantizers in words."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from ptq4vit_onnx.plan.quantizers import Quantizer
from ptq4vit_onnx.plan.twins import twin_choice
from ptq4vit_onnx.report.charts import figure
from ptq4vit_onnx.report.rows import SiteRow, decibels_of, noisiest, worst

NUMBERS = ("SQNR, dB", "Damage, %", "Clipped, %", "Bits", "Outliers", "Moved")  # set to the right
NO_BREAK = "\u2011"  # a hyphen at which no line ends
WRAPPED = ("Channels", "Twin")  # in two lines where sites' names are long
RETURNS = {"MatMulIntegerToFloat": "float", "QLinearMatMul": "codes"}  # whole names would not fit on a screen


def table(rows: Sequence[SiteRow]) -> str:
    """All sites; a column that is empty for every site is left out."""
    cells = [_cells(row) for row in rows]
    shown = [name for name in cells[0] if any(line[name] for line in cells)]
    head = "".join(
        f'<th scope="col"{_class(_setting(name))}>{name.replace(", ", ",<br>")}</th>' for name in ("Site", *shown)
    )
    noise = noisiest(rows)
    marks = {("Damage, %", worst(rows).name): "warm", ("SQNR, dB", noise.name if noise else ""): "warm"}
    marks |= {("Parity", row.name): "bad" for row in rows if row.exact is False}
    body = ""
    for index, (row, line) in enumerate(zip(rows, cells, strict=True)):
        kinds = {name: f"{_setting(name)} {marks.get((name, row.name), '')}".strip() for name in shown}
        columns = "".join(f"<td{_class(kinds[name])}>{escape(line[name])}</td>" for name in shown)
        body += f'<tr><th scope="row">{_link(index, row)}</th>{columns}</tr>'
    return (
        '<div class="scroll" tabindex="0" role="region" aria-label="table of sites">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _cells(row: SiteRow) -> dict[str, str]:
    lhs, rhs, evidence, decibels = row.plan.lhs, row.plan.rhs, row.evidence, decibels_of(row)
    return {
        "Parity": "" if row.exact is None else "exact" if row.exact else (row.failure or "differs"),
        "SQNR, dB": "" if decibels is None else f"{decibels:.1f}",
        "Damage, %": "" if evidence is None else f"{100 * row.weight:.1f}",
        "Clipped, %": "" if evidence is None else figure(100 * evidence.clipped, 2),
        "Bits": f"{lhs.bits} × {rhs.bits}",
        "Left": type_name(lhs),
        "Channels": _channels(row),
        "Twin": _twin(row),
        "Left step": steps(lhs),
        "Right step": steps(rhs),
        "Outliers": "" if row.plan.outliers is None else str(len(row.plan.outliers.channels)),
        "Moved": "" if row.moved is None else str(row.moved),
        "Kernel": _kernels(row),
    }


def _channels(row: SiteRow) -> str:
    channels = row.plan.channels
    return "" if channels is None else "centred, scaled" if any(channels.shift) else "scaled"


def _twin(row: SiteRow) -> str:
    """Why two ranges were taken or left: the expected damage they save, in nats per image or by the metric."""
    choice = twin_choice(row.plan)
    if choice is None:
        return ""
    verb = "saves" if choice.taken else "would save" if choice.saves > 0 else "would add"
    return f"{verb} {figure(abs(choice.saves), 2)}".replace("-", NO_BREAK)


def _kernels(row: SiteRow) -> str:
    """u8 × s8, MatMulIntegerToFloat -> u8 × s8 → float"""
    text = row.kernels
    for name, returned in RETURNS.items():
        text = text.replace(f", {name}", f" → {returned}")
    return text


def _link(index: int, row: SiteRow) -> str:
    name = escape(row.name)
    return name if row.evidence is None else f'<a href="#site-{index}">{name}</a>'


def _setting(name: str) -> str:
    return "n" if name in NUMBERS else "w" if name in WRAPPED else ""


def _class(kind: str) -> str:
    return f' class="{kind}"' if kind else ""


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
