"""The scale plan: everything that calibration decided, as values. `plan_json` writes and reads them.

Code that makes a plan uses torch and no ONNX; code that applies one uses ONNX and no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ptq4vit_onnx.plan.channel_fold import Channels
from ptq4vit_onnx.plan.quantizers import Affine, Compensated, Diffused, Quantizer, Uniform
from ptq4vit_onnx.plan.sites import Kind, Source

FORMAT = 5


@dataclass(frozen=True)
class Outliers:
    """Input channels with scales of their own: a second, narrow product `lhs[..., channels] @ rhs[channels]`.

    In the main product the weights of these channels are zero, so the two products add up.
    """

    channels: tuple[int, ...]
    lhs: Uniform | Affine
    rhs: Uniform


@dataclass(frozen=True)
class SitePlan:
    """How one product is quantised. For a linear, rhs is the weight as [inputs, outputs].

    bias_correction: one value per output channel, added to the output: minus the mean error on the calibration images,
    or 0. losses: the loss of this choice by each metric. forms: where the search compared several types of quantizer
    for lhs, the expected damage of each per image (Hessian metric; in nats for logits), or its loss.
    channels: a shift and a scale for each input channel, folded into the LayerNorm before and into the weight. lhs, rhs
    and outliers describe the product after folding.
    """

    kind: Kind
    lhs_source: Source
    lhs: Quantizer
    rhs: Uniform | Diffused | Compensated  # all are Uniform; they are named because the file tells them apart
    outliers: Outliers | None = None
    bias_correction: tuple[float, ...] | None = None
    losses: Mapping[str, float] = field(default_factory=dict)
    forms: Mapping[str, float] = field(default_factory=dict)
    channels: Channels | None = None


@dataclass(frozen=True)
class ScalePlan:
    """A whole model's plan. `weights` and `images` are SHA-256 fingerprints of what it was calibrated on.

    floats: products that stay in float by --allow-float, by name, each with the reason. The file has the field where
    there are any.
    """

    model: str
    weights: str
    images: str
    options: Mapping[str, Any]
    versions: Mapping[str, str]
    sites: Mapping[str, SitePlan]
    format: int = FORMAT
    floats: Mapping[str, str] = field(default_factory=dict)
