"""What all tables share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]
BITS = ("W8A8", "W6A8", "W5A8", "W4A8", "W6A6", "W4A4")
NAMES = {"vit_t": "ViT-T", "deit_t": "DeiT-T"}


def table(titles: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    lines = ["| " + " | ".join(map(str, cells)) + " |" for cells in (titles, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(titles), *lines[1:]])


def mean(rows: Sequence[Row], key: str) -> float:
    return float(sum(row[key] for row in rows)) / len(rows)
