"""Choices about a quantised file that change no plan: its input, its target, and three that change float rounding."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

# float: normalised images [batch, colours, height, width]; uint8: bytes [batch, height, width, colours]
InputType = Literal["float", "uint8"]
# The engine whose speed decides the form of attention. Every engine computes either file, with the same codes.
# onnxruntime: q, k and v are quantised where they are computed, and move as bytes. openvino: they are quantised right
# in front of their product, as signed codes, which is what OpenVINO computes in integers.
Target = Literal["onnxruntime", "openvino"]
# What codes of q, k and v are counted in where a fused qkv is folded. OpenVINO leaves a product in float whose
# QuantizeLinear has the scale 1; another power of two changes no bit of the result.
HEAD_UNIT: Mapping[Target, float] = {"onnxruntime": 1.0, "openvino": 2.0**-6}


@dataclass(frozen=True)
class FileLayout:
    """folded: fused qkv linears that compute in units of their heads' scales -> the attention scale they include.
    merged: twin sites whose two branches are one product. requantised: sites whose kernel returns the codes that the
    next one reads -> the scale of these codes."""

    folded: Mapping[str, float]
    merged: frozenset[str]
    requantised: Mapping[str, float] = field(default_factory=dict)
