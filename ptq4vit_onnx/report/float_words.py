"""Words about the products that stay in float."""

from __future__ import annotations

from collections.abc import Mapping

SHOWN = 3  # names of one reason


def by_reason(floats: Mapping[str, str]) -> list[str]:
    """A sentence for each reason, with the first names: "2 products (stem.0, stem.3): a convolution in 32 groups"."""
    names: dict[str, list[str]] = {}
    for name, reason in floats.items():
        names.setdefault(reason, []).append(name)
    return [f"{_count(found)} ({_few(found)}): {reason}" for reason, found in names.items()]


def _count(names: list[str]) -> str:
    return "1 product" if len(names) == 1 else f"{len(names)} products"


def _few(names: list[str]) -> str:
    rest = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {rest} more" if rest > 0 else "")
