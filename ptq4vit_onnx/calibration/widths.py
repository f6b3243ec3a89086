"""One site's plans at several widths of its weight, from one recording."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ptq4vit_onnx.calibration.calibrate import corrected_plan, plan_pixels, plan_site, reads_pixels, search_site
from ptq4vit_onnx.calibration.channel_scales import with_channels
from ptq4vit_onnx.calibration.grids import ListGrid
from ptq4vit_onnx.network.recording import Recording
from ptq4vit_onnx.plan.options import Options
from ptq4vit_onnx.plan.quantizers import MAX_BITS, Pixels
from ptq4vit_onnx.plan.scale_plan import SitePlan

# All widths that are rounded with compensation quantise the inputs alike, so that they share one sum of moments; the
# inputs' scales, and those of their channels, are chosen next to weights of this width.
SHARED_WIDTH = 4


def plans_at(
    recording: Recording, options: Options, widths: Sequence[int], pixels: Pixels | None = None
) -> dict[int, SitePlan]:
    """By width. A product of two activations has no weight, and one plan, at eight bits.

    Eight bits have a plan of their own, the one that an export at eight bits has.
    """
    site = recording.site
    if not site.rhs_is_weight:
        return {MAX_BITS: plan_site(recording, options, pixels)}
    found: dict[int, SitePlan] = {}
    narrow = [bits for bits in widths if options.compensates(bits)]
    if narrow:
        shared = plan_site(recording, replace(options, weight_bits=SHARED_WIDTH), pixels)
        found = {bits: _next_to(recording, shared, replace(options, weight_bits=bits), pixels) for bits in narrow}
    for bits in set(widths) - set(narrow):
        found[bits] = plan_site(recording, replace(options, weight_bits=bits), pixels)
    return found


def _next_to(recording: Recording, shared: SitePlan, options: Options, pixels: Pixels | None) -> SitePlan:
    """The weight at another width, next to the inputs as `shared` quantises them."""
    if options.weight_bits == shared.rhs.bits:
        return shared
    if pixels is not None and reads_pixels(recording, options, pixels):
        return plan_pixels(recording, options, pixels)
    scaled, left = with_channels(recording, shared.channels), ListGrid((shared.lhs,))
    choices = [options]
    if recording.site.kind == "conv" and options.diffuses:
        choices.append(replace(options, rounding="nearest"))
    plans = [search_site(scaled, choice, [left]) for choice in choices]
    best = min(plans, key=lambda plan: plan.losses[options.metric])
    return corrected_plan(recording, replace(best, channels=shared.channels, forms=shared.forms), options)
