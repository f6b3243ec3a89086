"""Which scales and shifts the channels behind a LayerNorm get, and a recording that has them.

Dividing a channel of the input by more lets it use less of the shared range, and multiplies a row of the weight, which
then takes more of its range. With reach r, scale s, weight W, squared gradients h and steps as wide as the largest
value demands, the expected loss of rounding both sides is

    (max r/s)^2 / 4^bits  sum s^2 (W^2 h)  +  (max s|W|)^2 / 4^bits  sum (x^2 h) / s^2

where the second part counts more than once: see IN_STEP. Its value does not change if all s are multiplied by one
number, so let max r/s be 1. Then for each value that max s|W| may take, the best s of every channel by itself is known,
and one line of such values holds the optimum.
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

# Rows that matter, below which a channel's largest value is not known: the head of a DeiT-T reads 32 class tokens of 32
# images, and on others its channels reach 2.8 times as far (KL 0.02 from this one layer, 0.0001 without).
LEAST_ROWS = 500
# Of the median reach of channels that move: one that hardly does is not blown up to the others' size.
NARROWEST = 0.05
# Powers of the scales that are on offer. Next to one scale per output the first is the best nearly everywhere. A weight
# with one scale is searched for a step that clips, which the sum above does not know of, and so less of the scales is
# often better, or centres alone: of ViT-T's layers at eight bits these two take a seventh off the loss.
STRENGTHS: dict[Weights, tuple[float, ...]] = {"per-channel": (1.0,), "per-tensor": (1.0, 0.5, 0.0)}
LIMITS, REACHES = 24, 4.0  # values tried for max s|W|, up to so many times the largest reach
# Errors of a weight are the same for all tokens and images; they add up where those of the inputs average out, and
# squared gradients by themselves do not say so. Next to weights with one scale (W6A6, KL on training photos, counted
# once and four times): ViT-T 0.186, 0.165; DeiT-T 0.072, 0.072. Next to one scale per output it makes no difference.
IN_STEP = 4.0
TINY = 1e-30


def channel_choices(recording: Recording, options: Options) -> list[Channels]:
    """What is worth trying next to leaving the channels as they are; empty where nothing can be folded.

    A shift takes a constant off the outputs: their errors stay what they are, their angles do not and cannot choose.
    """
    if options.channels == "none" or not recording.site.norm or not options.sums_squares:
        return []
    if int((recording.grad != 0).any(-1).sum()) < LEAST_ROWS:
        return []
    low, high = recording.lhs.aminmax(dim=0)
    shift = (low + high) / 2 if recording.site.has_bias else torch.zeros_like(low)
    reach = torch.maximum(high - shift, shift - low)
    if not reach.any() or not recording.rhs.any():  # nothing moves, or nobody reads it: as in a pruned layer
        return []
    reach = reach.clamp(min=NARROWEST * float(reach[reach > 0].median()))
    groups = recording.site.weight_groups if options.weights == "per-tensor" else recording.rhs.shape[1]
    scale = best_scales(objective_of(recording, options.metric), shift, reach, groups, options)
    if not bool((scale.isfinite() & (scale > 0)).all()):  # squares of such weights leave float32's range
        return []
    powers = [scale.pow(strength) for strength in STRENGTHS[options.weights] if strength > 0 or shift.any()]
    return [Channels(recording.site.norm, tuple(power.tolist()), tuple(shift.tolist())) for power in powers]


def best_scales(objective: Objective, shift: Tensor, reach: Tensor, groups: int, options: Options) -> Tensor:
    """One scale per channel [channels], their geometric mean 1; `groups` of the weight's columns share a step."""
    weight, squares = objective.rhs, (objective.lhs - shift).square_()
    h = torch.ones(len(squares), weight.shape[1]) if objective.h is None else objective.h
    through_weight = weight.square() @ h.sum(0) / 4**options.activation_bits

    def largest(scale: Tensor) -> Tensor:
        """Of each column of the scaled weight [columns], or of the group that shares its step."""
        found = group_reduce((weight * scale[:, None]).abs(), groups, -1, "amax")
        columns: Tensor = found.repeat_interleave(weight.shape[1] // groups)
        return columns

    def through_inputs(steps: Tensor) -> Tensor:
        """What rounding the weight in such steps [choices, columns] costs through each channel whose scale is 1."""
        cost: Tensor = (h @ steps.square().T).T @ squares * (IN_STEP / 4**options.weight_bits)
        return cost

    def losses(scales: Tensor) -> Tensor:
        """Of each of the choices of scales [choices, channels]."""
        inputs = (reach / scales).amax(1).square() * (scales.square() @ through_weight)
        steps = torch.stack([largest(scale) for scale in scales])
        total: Tensor = inputs + (through_inputs(steps) / scales.square()).sum(1)
        return total

    unscaled = largest(torch.ones_like(reach)).clamp(min=TINY)
    demand = (weight.abs() / unscaled).amax(1).clamp(min=TINY)  # how much of its range a row takes
    balance = (through_inputs(unscaled[None])[0] / through_weight.clamp(min=TINY)).pow(0.25) * (through_weight > 0)
    tightest = (reach * demand).max()
    widest = REACHES * float(torch.maximum(reach.max(), tightest) / tightest)
    limits = tightest * torch.logspace(0, math.log2(widest), LIMITS, base=2)
    choices = [(balance * limit.sqrt()).minimum(limit / demand).maximum(reach) for limit in limits]
    best: Tensor = choices[int(losses(torch.stack(choices)).argmin())]
    return best.div(best.log().mean().exp())


def with_channels(recording: Recording, channels: Channels | None) -> Recording:
    """The product after its channels are moved and scaled: the same output, but for a constant, and its gradient."""
    if channels is None:
        return recording
    scale, shift = recording.lhs.new_tensor(channels.scale), recording.lhs.new_tensor(channels.shift)
    return replace(recording, lhs=(recording.lhs - shift).div_(scale), rhs=recording.rhs * scale[:, None])


def thinned(recording: Recording, rows: int, seed: int) -> Recording:
    """A linear's recording on `rows` of its rows, drawn by what they weigh, with gradients that stand for all of it,
    over the largest of them."""
    grad = recording.grad / recording.grad.abs().max().clamp(min=TINY)
    if len(grad) <= rows:
        return replace(recording, grad=grad)
    energy = recording.lhs.square().sum(-1)
    index, factors = draw(grad.square().sum(-1) * (energy + energy.mean()), rows, seed)
    return replace(recording, lhs=recording.lhs[index], grad=grad[index] * factors.sqrt()[:, None])
