"""Two layout choices of a quantised file that change how floats are rounded, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class FileLayout:
    """folded: fused qkv linears that compute in units of their heads' scales -> the attention scale they include.
    merged: twin sites whose two branches are one product."""

    folded: Mapping[str, float]
    merged: frozenset[str]
