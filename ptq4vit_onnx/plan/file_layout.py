"""Choices about a quantised file that change no plan: its input, and three that change float rounding alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

# float: normalised images [batch, colours, height, width]; uint8: bytes [batch, height, width, colours]
InputType = Literal["float", "uint8"]


@dataclass(frozen=True)
class FileLayout:
    """folded: fused qkv linears that compute in units of their heads' scales -> the attention scale they include.
    merged: twin sites whose two branches are one product. requantised: sites whose kernel returns the codes that the
    next one reads -> the scale of these codes."""

    folded: Mapping[str, float]
    merged: frozenset[str]
    requantised: Mapping[str, float] = field(default_factory=dict)
