"""Evidence for a report: what a site's values look like, and how each metric judges its candidates.

Everything is measured on a sample, so that it costs little next to the search itself.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from ptq4vit_onnx.calibration.channel_scales import with_channels
from ptq4vit_onnx.calibration.grids import (
    Grid,
    factors,
    form_grid,
    group_reduce,
    uniform_grid,
)
from ptq4vit_onnx.calibration.objective import Objective, Sums, objective_of
from ptq4vit_onnx.calibration.sampling import sample_rows
from ptq4vit_onnx.network.planned_product import quantized_product
from ptq4vit_onnx.network.recording import Recording
from ptq4vit_onnx.plan.evidence import Histogram, SearchCurve, SiteEvidence
from ptq4vit_onnx.plan.options import Metric, Options
from ptq4vit_onnx.plan.outlier_split import COLUMNS, ROWS, only_channels, without_channels
from ptq4vit_onnx.plan.quantizers import Quantizer, Uniform
from ptq4vit_onnx.plan.saturation_safe_weights import shipped
from ptq4vit_onnx.plan.scale_plan import SitePlan
from ptq4vit_onnx.threads.side_by_side import side_by_side

SAMPLE_ELEMENTS = 60_000  # elements of a side or of the output that the evidence is measured on
CURVE_POINTS = 40  # candidates of a search curve: enough for a smooth line
BINS = 96  # fewer than a byte holds
FINE_BINS = 40  # of a twin: the fine range's share of BINS

__all__ = ["Histogram", "SearchCurve", "SiteEvidence", "collect"]


@dataclass(frozen=True)
class _Sample:
    """weighted: elements count by their gradient; plain: all alike. harmed: what the damage is measured on;
    mean_square: its weights, of mean 1, times this are squared gradients again."""

    weighted: Objective
    plain: Objective
    harmed: Objective
    mean_square: float


def collect(recording: Recording, plan: SitePlan, options: Options) -> SiteEvidence:
    """What the report shows of one recorded site under its plan. Costs about one of its products."""
    with torch.no_grad():
        recording = with_channels(recording, plan.channels)
        sample = _draw(recording, options.seed)
        inputs = _main_inputs(recording.lhs, plan)
        return SiteEvidence(
            tuple(_histogram(part, bins) for part, bins in _ranges(inputs, plan.lhs)),
            _clipped_share(inputs, plan.lhs),
            _sqnr(sample.plain, plan),
            _damage(sample, plan),
            None
            if plan.lhs.searched == "nothing"
            else search_curve(recording, sample.weighted, sample.plain, plan, options),
        )


def _draw(recording: Recording, seed: int) -> _Sample:
    whole = objective_of(recording, "hessian")
    mean_square = _squared_norm(recording.grad) / whole.size
    plain = _random_part(recording, seed)
    if recording.site.rhs_is_weight:
        rows = SAMPLE_ELEMENTS // max(whole.lhs.shape[-1], whole.rhs.shape[-1])
        weighted, _ = sample_rows(whole, seed, rows)  # weighted up, so that it stands for all rows
        return _Sample(weighted, plain, weighted, mean_square)
    # A few images may carry most of a matmul's gradient. The damage is measured on all (matmuls are small).
    return _Sample(_heaviest_part(whole), plain, whole, mean_square)


def _squared_norm(grad: Tensor) -> float:
    """sum g^2; divided before squaring, because squares of small gradients leave float32's range."""
    largest = float(grad.abs().max()) or 1.0
    return float((grad / largest).square_().sum()) * largest**2


def _heaviest_part(objective: Objective) -> Objective:
    """Those entries of a matmul's leading axis whose gradients are largest."""
    assert objective.h is not None
    index = objective.h.flatten(1).sum(1).argsort(descending=True)[: _entries(objective.lhs, objective.out)]
    return Objective(objective.lhs[index], objective.rhs[index], objective.h[index], objective.metric)


def _entries(lhs: Tensor, out: Tensor) -> int:
    """How many entries of the leading axis a sample holds."""
    return max(1, SAMPLE_ELEMENTS // max(1, out[0].numel(), lhs[0].numel()))


def _random_part(recording: Recording, seed: int) -> Objective:
    """Random entries of the leading axis, chosen before anything is multiplied."""
    lhs, rhs, grad = recording.lhs, recording.rhs, recording.grad
    order = torch.randperm(len(lhs), generator=torch.Generator().manual_seed(seed))
    index = order[: _entries(lhs, grad)]
    return Objective(lhs[index], rhs if rhs.dim() == 2 else rhs[index], None, "pearson")


def _main_inputs(lhs: Tensor, plan: SitePlan) -> Tensor:
    """The values the plan's left quantizer sees: without channels that have a quantizer of their own."""
    if plan.outliers is None:
        return lhs
    others = set(range(lhs.shape[-1])) - set(plan.outliers.channels)
    return only_channels(lhs, sorted(others), COLUMNS)


def _ranges(x: Tensor, lhs: Quantizer) -> list[tuple[Tensor, int]]:
    """The values of each range and the bins they get: one range, or the fine and the coarse one of a twin."""
    if lhs.border is None:
        return [(x, BINS)]
    is_fine = x < lhs.border
    return [(x[is_fine], FINE_BINS), (x[~is_fine], BINS - FINE_BINS)]


def _histogram(x: Tensor, bins: int) -> Histogram:
    if x.numel() == 0:
        return Histogram(0.0, 0.0, (0,) * bins)
    low, high = float(x.min()), float(x.max())
    width = (high - low) / bins or 1.0  # one value alone: all of it in the first bin
    index = ((x - low) / width).clamp_(max=bins - 1).to(torch.uint8)
    return Histogram(low, high, tuple(np.bincount(index.flatten().numpy(), minlength=bins).tolist()))


def _clipped_share(x: Tensor, lhs: Quantizer) -> float:
    """Share of values more than half a step beyond the last points: what rounding does not explain."""
    low, high = lhs.beyond(x)
    return int((x < low).count_nonzero() + (x > high).count_nonzero()) / max(1, x.numel())


def _error(objective: Objective, plan: SitePlan, part: slice = slice(None)) -> Tensor:
    rhs = objective.rhs if objective.rhs.dim() == 2 else objective.rhs[part]
    error = quantized_product(objective.lhs[part], rhs, plan) - objective.out[part]
    return error if plan.bias_correction is None else error + error.new_tensor(plan.bias_correction)


def _sqnr(objective: Objective, plan: SitePlan) -> float | None:
    noise = float(_error(objective, plan).double().square().sum())
    signal = float(objective.out.double().square().sum())
    return 10 * math.log10(signal / noise) if noise > 0 and signal > 0 else None


def _damage(sample: _Sample, plan: SitePlan) -> float:
    """1/2 sum g^2 d^2, the second-order change of a loss whose Hessian is the Fisher matrix's diagonal."""
    objective = sample.harmed
    assert objective.h is not None
    total = 0.0
    for part in objective.chunks():
        total += float((objective.h[part] * _error(objective, plan, part).square()).sum(dtype=torch.float64))
    return 0.5 * sample.mean_square * total


def search_curve(
    recording: Recording, weighted: Objective, plain: Objective, plan: SitePlan, options: Options
) -> SearchCurve:
    """Every metric over the left candidates, measured on two samples of the recording."""
    some = replace(options, candidates=min(options.candidates, CURVE_POINTS))
    grid = _grid(_main_inputs(recording.lhs, plan), plan.lhs, some)
    judged: list[tuple[Objective, tuple[Metric, ...]]] = [
        (_without_outliers(weighted, plan), ("hessian",)),
        (_without_outliers(plain, plan), ("mse", "cosine", "pearson")),
    ]
    losses: dict[str, tuple[float | None, ...]] = {
        metric: _over_the_best(values)
        for objective, metrics in judged
        for metric, values in _losses(objective, metrics, grid, plan).items()
    }
    if plan.lhs.searched == "shift":
        shifts = tuple(grid.single(candidate, 0).coordinates[0] for candidate in range(grid.count))
        return SearchCurve("shift", shifts, losses, plan.lhs.coordinates)
    scales = tuple(round(float(factor), 4) for factor in factors(some))
    return SearchCurve("scale", scales, losses, _chosen(grid, plan.lhs, some))


def _without_outliers(objective: Objective, plan: SitePlan) -> Objective:
    if plan.outliers is None:
        return objective
    channels = plan.outliers.channels
    lhs, rhs = without_channels(objective.lhs, channels, COLUMNS), without_channels(objective.rhs, channels, ROWS)
    return Objective(lhs, rhs, objective.h, objective.metric)


def _grid(x: Tensor, lhs: Quantizer, options: Options) -> Grid:
    """The candidates of the same form as the plan's left quantizer."""
    if type(lhs) is Uniform:  # the one form whose groups are searched each by itself
        return uniform_grid(x, lhs.bits, lhs.groups, -3, options)
    return form_grid(type(lhs), x, lhs.bits, options)


def _chosen(grid: Grid, lhs: Quantizer, options: Options) -> tuple[float, ...]:
    """The plan's scales over the covering ones."""
    last, reach = grid.count - 1, float(factors(options)[-1])
    ratios = []
    for group, scale in enumerate(lhs.coordinates):
        covering = grid.single(last, group).coordinates[0] / reach
        ratios.append(round(scale / covering, 4))
    return tuple(ratios)


def _losses(objective: Objective, metrics: tuple[Metric, ...], grid: Grid, plan: SitePlan) -> dict[Metric, list[float]]:
    """Each metric for every candidate, with the plan's right side; heads are added up."""
    if plan.kind == "matmul":
        rhs = plan.rhs.fake_quantize(objective.rhs)
    else:
        rhs = shipped(objective.rhs.contiguous(), plan.lhs, plan.rhs)
    _ = objective.out  # computed before the threads start, or each of them would

    @torch.no_grad()  # a setting of each thread by itself
    def values(candidate: int) -> list[float]:
        lhs = grid.pick([candidate] * grid.groups).fake_quantize(objective.lhs)
        sums = _sums(objective, lhs @ rhs - objective.out, grid)
        return [float(sums.value(metric).sum()) for metric in metrics]

    return dict(zip(metrics, map(list, zip(*side_by_side(values, range(grid.count)), strict=True)), strict=True))


def _sums(objective: Objective, error: Tensor, grid: Grid) -> Sums:
    out = objective.out
    weighted = error * error if objective.h is None else objective.h * error * error
    quad, dot, total, o_squared, o_total = (
        group_reduce(x, grid.groups, grid.axis, "sum").double() for x in (weighted, error * out, error, out * out, out)
    )
    return Sums(quad, dot, total, o_squared, o_total, torch.full_like(quad, out.numel() / grid.groups))


def _over_the_best(values: list[float]) -> tuple[float | None, ...]:
    """Values over the smallest, to four digits; what is not positive is rounding noise."""
    usable = [value for value in values if value > 0 and math.isfinite(value)]
    if not usable:
        return (None,) * len(values)
    best = min(usable)
    return tuple(float(f"{value / best:.4g}") if value in usable else None for value in values)
