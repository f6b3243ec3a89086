"""Every site's plan: one pass records and searches scales, a second one rounds weights together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ptq4vit_onnx.calibration.calibrate import calibrate
from ptq4vit_onnx.calibration.rounding.second_pass import compensate, listeners_of
from ptq4vit_onnx.model_loading.load import LoadedModel
from ptq4vit_onnx.network.recording import Recording
from ptq4vit_onnx.network.tape import observe, record
from ptq4vit_onnx.plan.options import Options
from ptq4vit_onnx.plan.scale_plan import SitePlan
from ptq4vit_onnx.progress import Progress, Sized, silent

Array = np.ndarray[Any, Any]
OnSite = Callable[[Recording, SitePlan], None]
# Rounding a DeiT-S looks at 128 images, a DeiT-B at 32: weights times pixels times images is at most so much.
ROUNDING_WORK, MOST_ROUNDING_IMAGES = 128 * 22_500_000 * 224 * 224, 128


def plan_sites(
    model: LoadedModel,
    images: Array,
    options: Options,
    *,
    rounded_on: Array | None = None,
    known: dict[str, SitePlan] | None = None,
    on_search: OnSite = lambda recording, plan: None,
    on_site: OnSite = lambda recording, plan: None,
    count: int = 0,
    progress: Progress = silent,
) -> dict[str, SitePlan]:
    """images: [n, C, H, W], to search on. rounded_on: the same and perhaps more, to round weights on.

    known: what an interrupted search has found already. on_search, on_site: hear of each site when its scales are
    found, and when its plan is finished. count: of sites, for the progress bar.
    """
    again = options.compensates(options.weight_bits)

    def searched(recording: Recording, plan: SitePlan) -> None:
        on_search(recording, plan)
        if not again:
            on_site(recording, plan)

    tape = record(model.module, images, options.seed, options.labels, kind=model.kind)
    found = calibrate(progress(Sized(tape, count), "calibrating"), options, known, searched, model.pixel_grid)
    if not again:
        return found
    sums = listeners_of(found, options)
    seen = images if rounded_on is None else rounded_on
    observed = observe(model.module, seen, sums, len(images), None, options.seed, options.labels, model.kind)
    return compensate(progress(Sized(observed, count), "rounding"), sums, found, options, on_site)


def rounding_images(model: LoadedModel, options: Options) -> int:
    """How many images weights are rounded on, if they are rounded together: more of a small model's.

    Four times as many as the search sees do better than as many; where models are large they take too long.
    """
    if not options.compensates(options.weight_bits):
        return 0
    _, height, width = model.preprocessing.size
    weights = sum(parameter.numel() for parameter in model.module.parameters())
    allowed = int(ROUNDING_WORK / (weights * height * width))
    return options.rounding_images or min(MOST_ROUNDING_IMAGES, max(options.images, allowed))
