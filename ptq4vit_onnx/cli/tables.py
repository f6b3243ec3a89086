"""Tables as text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def table(rows: Sequence[Sequence[str]]) -> str:
    """Rows as lines; each column is as wide as its widest cell."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)


def shown(value: Any, form: str = ".2f") -> str:
    """A number as the text of a cell; None as an empty cell."""
    return "" if value is None else format(value, form)
