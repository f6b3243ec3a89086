"""Every site's plan at every width of its weight, from one recording, and what each is expected to cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ptq4vit_onnx.calibration.rounding.moments import MomentSums
from ptq4vit_onnx.calibration.rounding.second_pass import compensated_plan
from ptq4vit_onnx.calibration.rounding.sensitivity import Sensitivity
from ptq4vit_onnx.calibration.shared_search import search_shared
from ptq4vit_onnx.calibration.widths import plans_at
from ptq4vit_onnx.model_loading.load import LoadedModel
from ptq4vit_onnx.network.recording import Recording
from ptq4vit_onnx.network.tape import observe, record
from ptq4vit_onnx.plan.options import Options
from ptq4vit_onnx.plan.quantizers import MAX_BITS, Pixels
from ptq4vit_onnx.plan.scale_plan import SitePlan
from ptq4vit_onnx.progress import Progress, Sized, silent
from ptq4vit_onnx.tasks.ambient import helpers
from ptq4vit_onnx.threads.side_by_side import on_one_thread

Array = np.ndarray[Any, Any]
ByWidth = Mapping[int, SitePlan]
WIDTHS = (2, 3, 4, 5, 6, 7, 8)
DRAWS = 2  # of signs per image: fewer images are needed than with one


@dataclass(frozen=True)
class WidthPlans:
    """plans: by site and width; a product of two activations has one, at eight bits. weights: how many values each
    weight has, by site. damage: by site and width, the expected damage of rounding the weight, per image."""

    plans: Mapping[str, ByWidth]
    weights: Mapping[str, int]
    damage: Mapping[str, Mapping[int, float]]

    def sites_at(self, widths: Mapping[str, int]) -> dict[str, SitePlan]:
        """The plans of a choice of bits by site."""
        return {name: plans[widths.get(name, MAX_BITS)] for name, plans in self.plans.items()}

    def uniform(self, bits: int) -> dict[str, int]:
        """One width for all weights."""
        return dict.fromkeys(self.weights, bits)

    def average(self, widths: Mapping[str, int]) -> float:
        """Bits per weight."""
        return sum(widths[name] * count for name, count in self.weights.items()) / sum(self.weights.values())


def plan_widths(
    model: LoadedModel,
    images: Array,
    options: Options,
    *,
    rounded_on: Array,
    unseen: Array,
    known: Mapping[str, SitePlan] | None = None,
    on_search: Callable[[str, SitePlan], None] = lambda name, plan: None,
    count: int = 0,
    progress: Progress = silent,
) -> WidthPlans:
    """images: [n, C, H, W], to search on. rounded_on: the same and more, to round on. unseen: others, which tell what
    an error costs.

    known: what an interrupted search has found already, by `SITE@BITS`; on_search hears of each such plan. count: of
    sites, for the progress bars.
    """
    plans, weights = _search(model, images, options, known or {}, on_search, count, progress)
    crossed = options.activation_bits < MAX_BITS
    sums = {name: MomentSums(narrow, crossed) for name, narrow in _narrow(plans, options).items()}
    observed = observe(model.module, rounded_on, sums, len(images), None, options.seed, options.labels, model.kind)
    with on_one_thread():
        for recording in progress(Sized(observed, count), "rounding"):
            if recording.site.name in sums:
                _round(recording, sums[recording.site.name], plans[recording.site.name], options)
            del recording
    damage = _damage(model, plans, weights, unseen, options, count, progress)
    return WidthPlans(plans, {name: weights[name].numel() for name in sorted(weights)}, damage)


def _search(
    model: LoadedModel, images: Array, options: Options, known: Mapping[str, SitePlan],
    on_search: Callable[[str, SitePlan], None], count: int, progress: Progress,
) -> tuple[dict[str, dict[int, SitePlan]], dict[str, Any]]:  # fmt: skip
    """(by site, its plans by width; its weight, if it has one). The sites are shared out where there are helpers."""
    weights: dict[str, Any] = {}
    finished = _by_site(known)

    def keep(recording: Recording, plans: dict[int, SitePlan]) -> None:
        name = recording.site.name
        if recording.site.rhs_is_weight:
            weights[name] = recording.rhs
        if name not in finished:
            for bits, plan in plans.items():
                on_search(f"{name}@{bits}", plan)

    tape = progress(Sized(record(model.module, images, options.seed, options.labels, kind=model.kind), count),
                    "calibrating")  # fmt: skip
    tasks = helpers()
    if tasks is not None:
        return search_shared(tasks, all_widths, tape, options, finished, keep, model.pixel_grid), weights
    found: dict[str, dict[int, SitePlan]] = {}
    with on_one_thread():
        for recording in tape:
            name = recording.site.name
            found[name] = finished.get(name) or all_widths(recording, options, model.pixel_grid)
            keep(recording, found[name])
            del recording
    return found, weights


def all_widths(recording: Recording, options: Options, pixels: Pixels | None) -> dict[int, SitePlan]:
    return plans_at(recording, options, WIDTHS, pixels)


def _by_site(known: Mapping[str, SitePlan]) -> dict[str, dict[int, SitePlan]]:
    """Of an interrupted run's plans, by `SITE@BITS`, those of sites that it had finished."""
    found: dict[str, dict[int, SitePlan]] = {}
    for key, plan in known.items():
        name, _, bits = key.rpartition("@")
        found.setdefault(name, {})[int(bits)] = plan
    whole = {name: (set(WIDTHS) if MAX_BITS in plans and plans[MAX_BITS].kind != "matmul" else {MAX_BITS})
             for name, plans in found.items()}  # fmt: skip
    return {name: plans for name, plans in found.items() if set(plans) == whole[name]}


def _narrow(plans: Mapping[str, ByWidth], options: Options) -> dict[str, SitePlan]:
    """Of every weight with widths that are compensated, the plan of one of these: they quantise the inputs alike."""
    found = {name: [plan for bits, plan in item.items() if options.compensates(bits)] for name, item in plans.items()}
    return {name: item[0] for name, item in found.items() if item and item[0].kind != "matmul"}


def _round(recording: Recording, sums: MomentSums, plans: dict[int, SitePlan], options: Options) -> None:
    moments = sums.take()
    for bits in [bits for bits in plans if options.compensates(bits)]:
        plans[bits] = compensated_plan(recording, moments, plans[bits], replace(options, weight_bits=bits))


def _damage(
    model: LoadedModel, plans: Mapping[str, ByWidth], weights: Mapping[str, Any], unseen: Array, options: Options,
    count: int, progress: Progress,
) -> dict[str, dict[int, float]]:  # fmt: skip
    """One image at a time, so that every call is of one image, however the model arranges its rows."""
    listeners = {name: Sensitivity(weight, plans[name]) for name, weight in weights.items()}
    images = np.concatenate([unseen] * DRAWS)
    observed = observe(model.module, images, listeners, 1, 1, options.seed, "signs", model.kind)
    for recording in progress(Sized(observed, count), "sensitivities"):
        if recording.site.name in listeners:
            listeners[recording.site.name].forget_errors()
        del recording
    return {name: listener.damage for name, listener in listeners.items()}
