"""Which scales and shifts the input channels behind a LayerNorm get, and the recording after that.

This is channel equalisation, as in SmoothQuant: dividing an input channel by s and multiplying its row of the weight by
s changes no output. The channel then takes less of the inputs' range, and the row takes more of the weight's. With
reach r (the largest |x| of a channel), scale s, weight W, Fisher diagonal h and steps as wide as the largest value
demands, the expected loss of rounding both sides is

    (max r/s)^2 / 4^bits  sum s^2 (W^2 h)  +  (max s|W|)^2 / 4^bits  sum (x^2 h) / s^2

where the second part is multiplied by CORRELATION. Multiplying all s by one number changes nothing, so let max r/s be
1. Once max s|W| is given, the best s of every channel follows by itself. So a line search over max s|W|, on a geometric
grid of LIMITS values, finds the optimum.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from ptq4vit_onnx.calibration.grids import group_reduce
from ptq4vit_onnx.calibration.objective import Objective, objective_of
from ptq4vit_onnx.calibration.sampling import draw
from ptq4vit_onnx.network.recording import Recording
from ptq4vit_onnx.plan.channel_fold import Channels
from ptq4vit_onnx.plan.options import Options, Weights

# Rows with a gradient that a channel's reach must be seen on. The head of a DeiT-T reads the 32 class tokens of 32
# images, and on other images its channels reach 2.8 times as far (KL 0.02 from this one layer, 0.0001 without).
LEAST_ROWS = 500
# The least reach, as part of the median one of channels that are not constant: a nearly constant channel is not blown
# up to the size of the others.
NARROWEST = 0.05
# Powers of the scales that are on offer; 0 is the shifts alone. Where each output has a scale, power 1 is the best
# nearly everywhere. The search of a single scale per weight finds one that clips, which the formula above ignores, so
# smaller powers are often better: over ViT-T's layers at eight bits, powers 0.5 and 0 take a seventh off the loss.
STRENGTHS: dict[Weights, tuple[float, ...]] = {"per-channel": (1.0,), "per-tensor": (1.0, 0.5, 0.0)}
LIMITS, REACHES = 24, 4.0  # values of max s|W| in the line search, up to so many times the largest reach
# How many times the loss of rounding the weight counts. A weight has the same error for all tokens and images: such
# correlated errors add up, where those of the inputs average out, and the Fisher diagonal does not say so. Weights with
# one scale (W6A6, KL on training photos, factors 1 and 4): ViT-T 0.186, 0.165; DeiT-T 0.072, 0.072. Where each output
# has a scale it makes no difference.
CORRELATION = 4.0
TINY = 1e-30


def channel_choices(recording: Recording, options: Options) -> list[Channels]:
    """The shifts and scales that are worth trying; none where no LayerNorm can take them.

    A shift takes a constant off each output. Their errors stay the same, but not their cosine and Pearson distances, so
    these metrics cannot choose.
    """
    if options.channels == "none" or not recording.site.norm or not options.sums_squares:
        return []
    if int((recording.grad != 0).any(-1).sum()) < LEAST_ROWS:
        return []
    low, high = recording.lhs.aminmax(dim=0)
    shift = (low + high) / 2 if recording.site.has_bias else torch.zeros_like(low)
    reach = torch.maximum(high - shift, shift - low)
    if not reach.any() or not recording.rhs.any():  # all inputs or all weights are zero, as in a pruned layer
        return []
    reach = reach.clamp(min=NARROWEST * float(reach[reach > 0].median()))
    groups = recording.site.weight_groups if options.weights == "per-tensor" else recording.rhs.shape[1]
    scale = best_scales(objective_of(recording, options.metric), shift, reach, groups, options)
    if not bool((scale.isfinite() & (scale > 0)).all()):  # squares of such weights leave float32's range
        return []
    powers = [scale.pow(strength) for strength in STRENGTHS[options.weights] if strength > 0 or shift.any()]
    return [Channels(recording.site.norm, tuple(power.tolist()), tuple(shift.tolist())) for power in powers]


def best_scales(objective: Objective, shift: Tensor, reach: Tensor, groups: int, options: Options) -> Tensor:
    """One scale per channel [channels], of geometric mean 1. groups: of the weight's columns, each sharing a step."""
    weight, squares = objective.rhs, (objective.lhs - shift).square_()
    h = torch.ones(len(squares), weight.shape[1]) if objective.h is None else objective.h
    through_weight = weight.square() @ h.sum(0) / 4**options.activation_bits

    def largest(scale: Tensor) -> Tensor:
        """The largest |weight| of the group of each column [columns], after scaling."""
        found = group_reduce((weight * scale[:, None]).abs(), groups, -1, "amax")
        columns: Tensor = found.repeat_interleave(weight.shape[1] // groups)
        return columns

    def through_inputs(steps: Tensor) -> Tensor:
        """The loss of rounding the weight in `steps` [choices, columns], by input channel at scale 1."""
        cost: Tensor = (h @ steps.square().T).T @ squares * (CORRELATION / 4**options.weight_bits)
        return cost

    def losses(scales: Tensor) -> Tensor:
        """The expected loss of each choice of scales [choices, channels]."""
        inputs = (reach / scales).amax(1).square() * (scales.square() @ through_weight)
        steps = torch.stack([largest(scale) for scale in scales])
        total: Tensor = inputs + (through_inputs(steps) / scales.square()).sum(1)
        return total

    unscaled = largest(torch.ones_like(reach)).clamp(min=TINY)
    demand = (weight.abs() / unscaled).amax(1).clamp(min=TINY)  # the part of the range that a row takes
    balance = (through_inputs(unscaled[None])[0] / through_weight.clamp(min=TINY)).pow(0.25) * (through_weight > 0)
    tightest = (reach * demand).max()
    widest = REACHES * float(torch.maximum(reach.max(), tightest) / tightest)
    limits = tightest * torch.logspace(0, math.log2(widest), LIMITS, base=2)
    choices = [(balance * limit.sqrt()).minimum(limit / demand).maximum(reach) for limit in limits]
    best: Tensor = choices[int(losses(torch.stack(choices)).argmin())]
    return best.div(best.log().mean().exp())


def with_channels(recording: Recording, channels: Channels | None) -> Recording:
    """The recording after its channels are shifted and scaled: the outputs differ by a constant, the gradient stays."""
    if channels is None:
        return recording
    scale, shift = recording.lhs.new_tensor(channels.scale), recording.lhs.new_tensor(channels.shift)
    return replace(recording, lhs=(recording.lhs - shift).div_(scale), rhs=recording.rhs * scale[:, None])


def sample_recording(recording: Recording, rows: int, seed: int) -> Recording:
    """A linear's recording on `rows` of its rows, drawn by importance sampling (see `draw`).

    Gradients are divided by the largest, and multiplied by the roots of the Horvitz-Thompson weights: their squares
    stand for all rows.
    """
    grad = recording.grad / recording.grad.abs().max().clamp(min=TINY)
    if len(grad) <= rows:
        return replace(recording, grad=grad)
    energy = recording.lhs.square().sum(-1)
    index, factors = draw(grad.square().sum(-1) * (energy + energy.mean()), rows, seed)
    return replace(recording, lhs=recording.lhs[index], grad=grad[index] * factors.sqrt()[:, None])
