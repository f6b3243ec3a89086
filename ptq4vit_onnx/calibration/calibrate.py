"""From recordings to a plan: which forms each site may take, and the search that decides."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import torch

from ptq4vit_onnx.calibration.channel_scales import channel_choices, sample_recording, with_channels
from ptq4vit_onnx.calibration.grids import (
    Grid,
    ListGrid,
    channel_grid,
    covering,
    form_grid,
    uniform_grid,
)
from ptq4vit_onnx.calibration.objective import objective_of
from ptq4vit_onnx.calibration.rounding.bias_correction import bias_correction
from ptq4vit_onnx.calibration.search import ProductSearch
from ptq4vit_onnx.calibration.shared_search import search_shared
from ptq4vit_onnx.errors import UserError
from ptq4vit_onnx.network.recording import Recording
from ptq4vit_onnx.plan.channel_fold import Channels
from ptq4vit_onnx.plan.options import Options, Rounding
from ptq4vit_onnx.plan.outlier_split import COLUMNS, ROWS, only_channels, without_channels
from ptq4vit_onnx.plan.quantizers import Affine, Diffused, Pixels, Uniform, forms_for
from ptq4vit_onnx.plan.scale_plan import Outliers, SitePlan
from ptq4vit_onnx.tasks.ambient import helpers
from ptq4vit_onnx.threads.side_by_side import on_one_thread

HEADS_AXIS, COLUMNS_AXIS = -3, -1
# A channel is an outlier if its largest value exceeds this many times the 99 % quantile of all channels' largest.
OUTLIER_RATIO = 4.0
MINIMUM_CHANNELS = 32  # below this a 99 % quantile says nothing
# A preview of each choice of channel scales: on so many rows, with so many candidates. Choices are searched in full if
# their loss is within a factor of PREVIEW_NEAR of the smallest.
PREVIEW_ROWS, PREVIEW_CANDIDATES, PREVIEW_NEAR = 192, 12, 1.15


def calibrate(
    tape: Iterable[Recording],
    options: Options,
    known: dict[str, SitePlan] | None = None,
    on_site: Callable[[Recording, SitePlan], None] = lambda recording, plan: None,
    pixels: Pixels | None = None,
) -> dict[str, SitePlan]:
    """A plan for every recorded site, the same on any number of threads; sites in `known` (of an interrupted run) are
    taken as they are.

    pixels: the images' own grid, where preprocessing has one; taken by the site that reads the image if options say so.
    Where there are helpers, the sites are theirs to search, and `on_site` is called in the order in which they end.
    """
    tasks = helpers()
    if tasks is not None:
        return search_shared(tasks, plan_site, tape, options, known or {}, on_site, pixels)
    plans: dict[str, SitePlan] = {}
    with on_one_thread():  # or the number of threads would decide between candidates that are nearly alike
        for recording in tape:
            name = recording.site.name
            plans[name] = known[name] if known and name in known else plan_site(recording, options, pixels)
            on_site(recording, plans[name])
            del recording
    return plans


def plan_site(recording: Recording, options: Options, pixels: Pixels | None = None) -> SitePlan:
    """The best quantizers of one site.

    Behind a LayerNorm the shifts and scales of the input channels are chosen, too; in a patch embedding, whether error
    diffusion of the weights lowers the loss.
    """
    require_finite(recording)
    if pixels is not None and reads_pixels(recording, options, pixels):
        return plan_pixels(recording, options, pixels)
    choices = preselect_channels(recording, [None, *channel_choices(recording, options)], options)
    plans = [replace(search_site(with_channels(recording, choice), options), channels=choice) for choice in choices]
    if recording.site.kind == "conv" and options.diffuses:  # a kernel of 1 x 1 has no pixels side by side
        plans.append(search_site(recording, replace(options, rounding="nearest")))
    return corrected_plan(recording, min(plans, key=lambda plan: plan.losses[options.metric]), options)


def reads_pixels(recording: Recording, options: Options, pixels: Pixels) -> bool:
    """Whether this is the site that reads the image, and every value of it is a byte."""
    return options.pixels == "bytes" and recording.site.kind == "conv" and pixels.is_grid_of(recording.lhs)


def plan_pixels(recording: Recording, options: Options, pixels: Pixels) -> SitePlan:
    """Of the product of an image's bytes, which are exact: the weight's scales alone are searched.

    The weight is the one that ships: its rows have taken up the colours' scales, and the inputs are in steps.
    """
    steps = recording.lhs.new_tensor(pixels.row_steps(recording.lhs.shape[1]))
    in_steps = replace(recording, lhs=recording.lhs / steps, rhs=recording.rhs * steps[:, None])
    roundings: tuple[Rounding, ...] = ("diffused", "nearest") if options.diffuses else ("nearest",)
    choices = [replace(options, rounding=rounding) for rounding in roundings]
    plans = [search_site(in_steps, choice, [ListGrid((pixels.in_steps,))]) for choice in choices]
    best = min(plans, key=lambda plan: plan.losses[options.metric])
    return corrected_plan(recording, replace(best, lhs=pixels), options)


def corrected_plan(recording: Recording, best: SitePlan, options: Options) -> SitePlan:
    """The plan with mean errors taken off its outputs, where options say so."""
    if not (options.corrects_biases and recording.site.rhs_is_weight):
        return best
    return replace(best, bias_correction=bias_correction(with_channels(recording, best.channels), best, options.metric))


def preselect_channels(recording: Recording, choices: list[Channels | None], options: Options) -> list[Channels | None]:
    """The choices that are worth a whole search: the best in a preview on few rows with few candidates, and those near.

    The preview has the Hessian metric; for other metrics with gradients of one, so that all outputs weigh alike.
    """
    if len(choices) == 1 or options.search == "exhaustive":
        return choices
    if options.metric != "hessian":
        recording = replace(recording, grad=torch.ones_like(recording.grad))
    sample = sample_recording(recording, PREVIEW_ROWS, options.seed)
    few = replace(options, metric="hessian", candidates=min(PREVIEW_CANDIDATES, options.candidates))
    losses = [search_site(with_channels(sample, choice), few).losses["hessian"] for choice in choices]
    near = PREVIEW_NEAR * min(losses)
    return [choice for choice, loss in zip(choices, losses, strict=True) if not loss > near]  # `not >` keeps NaN losses


def search_site(recording: Recording, options: Options, left: list[Grid] | None = None) -> SitePlan:
    """The best quantizers of one product whose channels are scaled already. left: the forms the left side may take."""
    main, outliers, lost = split_outliers(recording, options)
    site = main.site
    search = ProductSearch(objective_of(main, options.metric), options, site.rhs_is_weight)
    rhs_grid, start = rhs_search_space(main, options)
    found = search.run(left or lhs_grids(main, options), rhs_grid, start)
    return SitePlan(
        site.kind, site.lhs_source, found.lhs, found.rhs, outliers,
        losses={options.metric: found.loss / search.whole.size + lost if options.sums_squares else found.loss},
        forms=found.forms,
    )  # fmt: skip


def require_finite(recording: Recording) -> None:
    for what, values in (("input", recording.lhs), ("right side", recording.rhs), ("gradient", recording.grad)):
        if not all(bool(end.isfinite()) for end in values.aminmax()):
            raise UserError(
                f"{recording.site.name}: its {what} is not finite on the calibration images, expected numbers; "
                "check the images' values and the weights"
            )


def lhs_grids(recording: Recording, options: Options) -> list[Grid]:
    """The forms the left side may take: symmetric, with a zero point if allowed, and twins where they belong."""
    site, bits, x = recording.site, options.activation_bits, recording.lhs
    has_twin = site.lhs_source != "other" and options.twin in (site.lhs_source, "both", "auto")
    twin: list[Grid] = []
    if has_twin:
        twin = [form_grid(form, x, bits, options) for form in forms_for(site.lhs_source)]
        if options.twin != "auto":
            return twin
    symmetric = uniform_grid(x, bits, site.heads, HEADS_AXIS, options)
    if options.activations == "symmetric" or (site.kind == "matmul" and site.lhs_source == "other"):
        return [symmetric, *twin]
    affine = form_grid(Affine, x, bits, options)
    # Values that hardly go below zero: a symmetric range would waste half its codes.
    return [affine, *twin] if site.lhs_source != "other" else [affine.and_also(symmetric)]


def rhs_search_space(recording: Recording, options: Options) -> tuple[Grid, Uniform]:
    """The right side's candidates, and the scale that just covers it, where the search starts."""
    site, rhs = recording.site, recording.rhs
    if not site.rhs_is_weight:
        groups, axis, bits = site.heads, HEADS_AXIS, options.activation_bits
        grid = uniform_grid(rhs, bits, groups, axis, options)
    elif options.weights == "per-tensor":
        groups, axis, bits = site.weight_groups, COLUMNS_AXIS, options.weight_bits
        grid = uniform_grid(rhs, bits, groups, axis, options)
    else:
        groups, axis, bits = rhs.shape[1], COLUMNS_AXIS, options.weight_bits
        grid = channel_grid(rhs, bits, options)
    form = Diffused if site.kind == "conv" and options.diffuses else Uniform
    return replace(grid, form=form), covering(rhs, bits, groups, axis)


def split_outliers(recording: Recording, options: Options) -> tuple[Recording, Outliers | None, float]:
    """The product without its outlier channels, the quantizers of those channels by themselves, and their loss."""
    channels = outlier_channels(recording) if options.outliers == "auto" else []
    if not channels:
        return recording, None, 0.0
    alone = replace(
        recording, site=replace(recording.site, lhs_source="other"),
        lhs=only_channels(recording.lhs, channels, COLUMNS), rhs=only_channels(recording.rhs, channels, ROWS),
    )  # fmt: skip
    # Of one input, all scales point in the same direction: a metric that ignores lengths cannot choose.
    metric = options.metric if options.sums_squares else "mse"
    plan = search_site(alone, replace(options, metric=metric, outliers="none"))
    rest = replace(
        recording, lhs=without_channels(recording.lhs, channels, COLUMNS),
        rhs=without_channels(recording.rhs, channels, ROWS),
    )  # fmt: skip
    return rest, Outliers(tuple(channels), plan.lhs, plan.rhs), plan.losses[metric]  # type: ignore[arg-type]


def outlier_channels(recording: Recording) -> list[int]:
    """Input channels of a linear that dwarf all others (massive activations)."""
    if recording.site.kind != "linear" or recording.lhs.shape[1] < MINIMUM_CHANNELS:
        return []
    largest = recording.lhs.abs().amax(0)
    limit = OUTLIER_RATIO * torch.quantile(largest, 0.99, interpolation="lower")
    return [int(channel) for channel in (largest > limit).nonzero().flatten()]
