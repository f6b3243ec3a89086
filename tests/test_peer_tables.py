"""The table of other tools ranks them by what they lose, and hides no failure."""

from __future__ import annotations

from typing import Any

from tools.tables.peers import peers

COMMON = {"model": "deit_t", "bits": "W8A8", "setting": "defaults", "version": "1.0", "failure": ""}
FLOAT = {**COMMON, "tool": "float", "seed": 0, "photos": 2000, "top1": 71.0, "mb": 22.9}


def row(tool: str, kl: float, seed: int = 0) -> dict[str, Any]:
    return {**COMMON, "tool": tool, "seed": seed, "kl": kl, "agreement": 90.0, "drop": 0.5, "drop_error": 0.2,
            "integer_products": 60, "products": 74, "mb": 6.0}  # fmt: skip


def test_the_tool_that_loses_least_stands_first() -> None:
    text = peers([FLOAT, row("A", 0.5), row("B", 0.1)])
    assert text.index("| B |") < text.index("| A |")


def test_seeds_are_averaged_and_shown_one_by_one() -> None:
    assert "| 0.2 (0.1, 0.3) |" in peers([FLOAT, row("A", 0.1), row("A", 0.3, seed=1)])


def test_a_tool_that_fails_is_a_row_with_its_reason() -> None:
    failed = {**COMMON, "tool": "C", "seed": 0, "failure": "no kernel"}
    assert "| C | W8A8 | fails: no kernel |  |  |  |  | 1.0 | defaults |" in peers([FLOAT, row("A", 0.1), failed])
