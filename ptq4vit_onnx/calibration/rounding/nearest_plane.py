"""Rounding that compensates: every weight takes up what rounding the weights before it has changed (OBQ, GPTQ).

Of a weight W [inputs, outputs] that ships as Q, the error of a row x of inputs is x (W - Q), and what it costs, with
the rows weighed as in `Moments`, is

    sum_rows d |x E|^2  =  tr(E^T H E)  =  |L E|^2        E = W - Q,   H = sum d x x^T + damping  =  L^T L

with L lower triangular. Row i of L E is L[i,i] E[i] and what the errors of earlier rows have left, so the rows of Q are
chosen one after the other, each as near as it can be to what makes its own row of L E zero: Babai's nearest plane.
It is GPTQ without the inverse of H. Inputs with the largest moments go first, while all others can still answer.

* Scales are chosen with it in mind: all factors of `SCALES` are tried for every output, and the cheapest is kept.
* Codes are pair-safe while they are chosen: of a pair, the later one is held to what the earlier one leaves it.
* With crossed moments the errors of the inputs are compensated as well (ERQ's ridge regression): what is rounded is
  then the W' that is nearest to X W for quantised inputs, held near W by `RIDGE`.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ptq4vit_onnx.calibration.rounding.moments import Moments
from ptq4vit_onnx.plan.quantizers import Compensated, Quantizer, Uniform, WeightCodes
from ptq4vit_onnx.plan.saturation_safe_weights import pair_limit
from ptq4vit_onnx.threads.side_by_side import on_one_thread, side_by_side

# Of the mean diagonal of H. With 0.01 it fits the calibration images more than others: W4A8 of DeiT-T has a KL of 0.066
# on other training photos, with 0.1 of 0.060.
DAMPING = 0.1
# Of the scales that the search of the weight by itself has found; without them the KL is 0.074 instead of 0.060.
SCALES = tuple(0.7 + 0.05 * step for step in range(11))
RIDGE = 1.0  # of the mean diagonal of H; less fits the calibration images more than others
BLOCK = 64  # rows between which errors are handed on one by one; to the rows behind them, all at once
COLUMNS = 4096  # outputs that are rounded at once, each candidate of a scale being one


def compensated(weight: Tensor, moments: Moments, lhs: Quantizer, rhs: Uniform, ridge: bool = False) -> Compensated:
    """The codes of `weight` [inputs, outputs] in steps of `rhs`, next to inputs quantised by `lhs`.

    The weight and the moments are of the same inputs: with channels folded in, in steps where `lhs` has row steps, and
    zero where outliers have a product of their own.
    """
    with on_one_thread(), torch.no_grad():
        used = (weight != 0).any(1)  # rows of zeros, as of outliers, stay zeros
        hessian = _hessian(moments, used)
        target = _ridge(weight, moments, hessian, used) if ridge else weight
        order = hessian.diagonal().argsort(descending=True, stable=True)
        lower = _lower(hessian[order][:, order])
        partners = _partners(order) if _pairs_may_saturate(lhs, rhs) else None
        rounding = Rounding(lower, rhs, partners, pair_limit(lhs))
        scale = weight.new_tensor(rhs.scale).repeat_interleave(weight.shape[1] // len(rhs.scale))
        scale, codes = _best_scales(target[order] * used[order, None], scale, rhs.groups, rounding)
        codes[order] = codes.clone()
    steps = scale.reshape(rhs.groups, -1)[:, 0]
    return Compensated(rhs.bits, tuple(steps.tolist()), rhs.axis, stored=WeightCodes.of(codes.to(torch.int8).numpy()))


def cost(weight: Tensor, rounded: Tensor, moments: Moments) -> float:
    """sum_rows d |q Q - x W|^2 of weights [inputs, outputs], but for what is the same for all Q; without crossed
    moments x is q."""
    rounded, wanted = rounded.double(), moments.crossed.double() @ weight.double()
    return float((rounded * (moments.quantised.double() @ rounded - 2 * wanted)).sum())


class Rounding:
    """Rounds the rows of a weight one after the other. lower: L, in the order of the rows.

    partners: of every row, the row that it makes a pair with, -1 for none; None where no pair can saturate.
    """

    def __init__(self, lower: Tensor, rhs: Uniform, partners: list[int] | None, limit: int) -> None:
        self.lower, self.rhs, self.partners, self.limit = lower, rhs, partners, limit
        self.diagonal = lower.diagonal().tolist()

    def __call__(self, weight: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        """Codes of `weight` [inputs, outputs] with a scale for each output, and |L E|^2 of each output."""
        codes, error, left = torch.empty_like(weight), torch.empty_like(weight), torch.empty_like(weight)
        for start in range(0, len(weight), BLOCK):
            block = slice(start, start + BLOCK)
            torch.mm(self.lower[block, :start], error[:start], out=left[block])
            for row in range(start, min(start + BLOCK, len(weight))):
                left[row].addmv_(error[start:row].T, self.lower[row, start:row])
                wanted = torch.add(weight[row], left[row], alpha=1 / self.diagonal[row]).div_(scale).round_()
                torch.clamp(wanted, *self._bounds(row, codes), out=codes[row])
                torch.addcmul(weight[row], codes[row], scale, value=-1, out=error[row])
                left[row].add_(error[row], alpha=self.diagonal[row])
        return codes, left.square_().sum(0, dtype=torch.float64)

    def _bounds(self, row: int, codes: Tensor) -> tuple[Tensor, Tensor]:
        """How small and how large the codes of a row may be, beside those that are chosen already."""
        low, high = codes.new_tensor(self.rhs.low), codes.new_tensor(self.rhs.high)
        partner = -1 if self.partners is None else self.partners[row]
        if not 0 <= partner < row:
            return low, high
        return torch.maximum(low, -self.limit - codes[partner]), torch.minimum(high, self.limit - codes[partner])


def _best_scales(weight: Tensor, scale: Tensor, groups: int, rounding: Rounding) -> tuple[Tensor, Tensor]:
    """(a scale for each output, the codes [inputs, outputs]): of all factors the cheapest for each group of outputs."""
    outputs = weight.shape[1]
    factors = torch.tensor(SCALES).repeat_interleave(outputs)
    scales = scale.repeat(len(SCALES)) * factors
    columns = torch.arange(outputs).repeat(len(SCALES))
    parts = torch.split(torch.arange(len(columns)), COLUMNS)
    found = side_by_side(lambda part: _rounded(weight, columns[part], scales[part], rounding), parts)
    costs = torch.cat([item[1] for item in found]).reshape(len(SCALES), outputs)
    codes = torch.cat([item[0] for item in found], 1).reshape(len(weight), len(SCALES), outputs)
    best = costs.reshape(len(SCALES), groups, -1).sum(-1).argmin(0).repeat_interleave(outputs // groups)
    place = torch.arange(outputs)
    return scales.reshape(len(SCALES), outputs)[best, place], codes[:, best, place].float()


@torch.no_grad()  # a setting of each thread by itself
def _rounded(weight: Tensor, columns: Tensor, scale: Tensor, rounding: Rounding) -> tuple[Tensor, Tensor]:
    codes, costs = rounding(weight[:, columns], scale)
    return codes.to(torch.int8), costs


def _hessian(moments: Moments, used: Tensor) -> Tensor:
    """H in float64, damped; inputs without weights apart from all others."""
    hessian = moments.quantised.double() * (used[:, None] & used)
    mean = float(hessian.diagonal().mean())
    hessian.diagonal().add_(DAMPING * mean if mean > 0 else 1.0)
    return hessian


def _lower(hessian: Tensor) -> Tensor:
    """L with L^T L = H: the Cholesky factor of H from its last row up."""
    upper: Tensor = torch.linalg.cholesky(hessian.flip(0, 1)).flip(0, 1)
    return upper.T.contiguous().float()


def _ridge(weight: Tensor, moments: Moments, hessian: Tensor, used: Tensor) -> Tensor:
    """W' = argmin sum d |q W' - x W|^2 + r |W' - W|^2, q the quantised inputs of x."""
    mean = float(moments.quantised.double().diagonal().mean())
    ridge = RIDGE * mean if mean > 0 else 1.0  # without any inputs, W' is W
    kept = used[:, None] & used
    gram = moments.quantised.double() * kept
    gram.diagonal().add_(ridge)
    wanted = (moments.crossed.double() * kept) @ weight.double() + ridge * weight.double()
    solved: Tensor = torch.cholesky_solve(wanted, torch.linalg.cholesky(gram))
    return solved.float()


def _pairs_may_saturate(lhs: Quantizer, rhs: Uniform) -> bool:
    return bool(rhs.high - rhs.low + 1 > pair_limit(lhs))


def _partners(order: Tensor) -> list[int]:
    """By place in `order`, the place of the input that makes a pair with it: 2k and 2k + 1; -1 for an odd last one."""
    places = np.empty(len(order), np.int64)
    places[order.numpy()] = np.arange(len(order))
    paired = order.numpy() ^ 1
    return [int(places[other]) if other < len(order) else -1 for other in paired]
