"""Bias correction: the mean error of each output is subtracted from its bias, where that lowers the loss."""

from __future__ import annotations

import torch

from ptq4vit_onnx.calibration.objective import CHUNK_ELEMENTS
from ptq4vit_onnx.network.planned_product import shipped_sides, with_weight
from ptq4vit_onnx.network.recording import Recording
from ptq4vit_onnx.plan.options import Metric
from ptq4vit_onnx.plan.scale_plan import SitePlan

TINY = 1e-30


def bias_correction(recording: Recording, plan: SitePlan, metric: Metric) -> tuple[float, ...]:
    """Minus the mean error of each output of a linear or conv on the calibration images; 0 where it is left alone.

    The mean weighs all tokens alike. Weighed by the Fisher diagonal it would be a mean over a few tokens, which does
    not carry over to other images. An output is left alone in two cases:

    * The loss, whose errors are weighed by the Fisher diagonal, would rise. The largest errors may be those of tokens
      that nobody reads (GELU far below zero; in ViT-T a mean of 1.2 that would cost 43 times the layer's loss).
    * The mean is below its standard error, as in a head that saw a few images.

    Sums are in float64, over a part of the rows at a time.
    """
    count = len(recording.lhs)
    total, squares, h_error, h_total = torch.zeros(4, recording.rhs.shape[1], dtype=torch.float64)
    largest = recording.grad.abs().max().clamp(min=TINY)  # squares of small gradients leave float32's range
    sides = shipped_sides(recording.rhs, plan)
    for part in torch.split(torch.arange(count), max(1, CHUNK_ELEMENTS // max(recording.rhs.shape))):
        lhs = recording.lhs[part]
        error = with_weight(lhs, plan, *sides).sub_(lhs @ recording.rhs).double()
        h = (recording.grad[part] / largest).square_() if metric == "hessian" else torch.ones_like(error)
        total += error.sum(0)
        squares += error.square().sum(0)
        h_error += (h * error).sum(0)
        h_total += h.sum(0, dtype=torch.float64)
    mean = total / count
    significant = mean.square() * count * (count - 1) > squares - total * mean  # above its standard error
    rises = mean.square() * h_total > 2 * mean * h_error
    return tuple(torch.where(significant & ~rises, -mean, 0.0).to(torch.float32).tolist())
