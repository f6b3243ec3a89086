"""The second pass of a calibration: weights whose scales are known are rounded together, next to quantised inputs.

It sees more images than the search did, because only their moments are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from ptq4vit_onnx.calibration.calibrate import corrected_plan
from ptq4vit_onnx.calibration.channel_scales import with_channels
from ptq4vit_onnx.calibration.objective import Product, objective_of
from ptq4vit_onnx.calibration.rounding.moments import Moments, MomentSums
from ptq4vit_onnx.calibration.rounding.nearest_plane import compensated, cost
from ptq4vit_onnx.network.recording import Recording
from ptq4vit_onnx.plan.options import Options
from ptq4vit_onnx.plan.outlier_split import COLUMNS, ROWS, without_channels
from ptq4vit_onnx.plan.quantizers import MAX_BITS
from ptq4vit_onnx.plan.saturation_safe_weights import shipped
from ptq4vit_onnx.plan.scale_plan import SitePlan
from ptq4vit_onnx.threads.side_by_side import on_one_thread

LOSS_ROWS = 1024  # that a finished weight's loss is measured on, for the plan and the report; nothing is chosen by it


def listeners_of(plans: Mapping[str, SitePlan], options: Options) -> dict[str, MomentSums]:
    """For every weight that is to be rounded with compensation. Errors of eight-bit inputs are too small to matter."""
    crossed = options.activation_bits < MAX_BITS
    return {
        name: MomentSums(plan, crossed)
        for name, plan in plans.items()
        if plan.kind != "matmul" and options.compensates(plan.rhs.bits)
    }


def compensate(
    observed: Iterable[Recording],
    sums: Mapping[str, MomentSums],
    plans: Mapping[str, SitePlan],
    options: Options,
    on_site: Callable[[Recording, SitePlan], None] = lambda recording, plan: None,
) -> dict[str, SitePlan]:
    """The plans with compensated weights, wherever a site has moments and loses less by it.

    observed: the recordings of `observe` with `sums` as its listeners.
    """
    found = dict(plans)
    with on_one_thread():
        for recording in observed:
            name = recording.site.name
            if name in sums:
                found[name] = compensated_plan(recording, sums[name].take(), plans[name], options)
            on_site(recording, found[name])
            del recording
    assert not any(item.hears for item in sums.values()), "a site with moments was not recorded"
    return found


def compensated_plan(recording: Recording, moments: Moments, plan: SitePlan, options: Options) -> SitePlan:
    """The plan of one site with the better weight: of compensated codes, or of those that it has."""
    main = product_of(recording, plan)
    weight, ridge = main.rhs.contiguous(), options.activation_bits < MAX_BITS
    rhs = compensated(weight, moments, plan.lhs.in_steps, plan.rhs, ridge)
    before, after = (cost(weight, shipped(weight, plan.lhs.in_steps, form), moments) for form in (plan.rhs, rhs))
    if before <= after:
        return plan
    better = replace(plan, rhs=rhs)
    better = replace(better, losses={**plan.losses, options.metric: _loss(main, better, options)})
    return better if plan.bias_correction is None else corrected_plan(recording, better, options)


def product_of(recording: Recording, plan: SitePlan) -> Recording:
    """The product that a plan's two quantizers are of: channels folded in, in steps of the inputs, without outliers."""
    found = with_channels(recording, plan.channels)
    if plan.outliers is not None:
        channels = plan.outliers.channels
        found = replace(
            found, lhs=without_channels(found.lhs, channels, COLUMNS), rhs=without_channels(found.rhs, channels, ROWS)
        )
    steps = plan.lhs.row_steps(len(found.rhs))
    if steps is None:
        return found
    rows = found.lhs.new_tensor(steps)
    return replace(found, lhs=found.lhs / rows, rhs=found.rhs * rows[:, None])


def _loss(main: Recording, plan: SitePlan, options: Options) -> float:
    """By the search's metric, on LOSS_ROWS of the recorded rows; of outliers' own product it knows nothing."""
    step = max(1, len(main.lhs) // LOSS_ROWS)
    objective = objective_of(replace(main, lhs=main.lhs[::step], grad=main.grad[::step]), options.metric)
    loss = float(Product(objective, weight=True).loss(plan.lhs.in_steps, plan.rhs))
    return loss / objective.size if options.sums_squares else loss
