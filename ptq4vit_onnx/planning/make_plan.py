"""The plan of an export: calibrated at the widths that were asked for, or at those that a budget allows."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ptq4vit_onnx import __version__
from ptq4vit_onnx.calibration.calibrate import calibrate
from ptq4vit_onnx.calibration.journal import Journal
from ptq4vit_onnx.calibration.measure_evidence import collect
from ptq4vit_onnx.calibration.widths import SHARED_WIDTH
from ptq4vit_onnx.errors import UserError
from ptq4vit_onnx.files.leftovers import journal_of, real_place
from ptq4vit_onnx.files.provenance import versions
from ptq4vit_onnx.images.builtin import BUILT_IN, IMAGES_FROM
from ptq4vit_onnx.images.choice import ChosenImages
from ptq4vit_onnx.images.loading import ImageSet
from ptq4vit_onnx.model_loading.load import LoadedModel
from ptq4vit_onnx.network.recording import Recording
from ptq4vit_onnx.network.tape import record
from ptq4vit_onnx.plan.budget import BUDGET, Allocation, Budget
from ptq4vit_onnx.plan.evidence import SiteEvidence
from ptq4vit_onnx.plan.options import Options
from ptq4vit_onnx.plan.plan_json import plain
from ptq4vit_onnx.plan.scale_plan import ScalePlan, SitePlan
from ptq4vit_onnx.planning.sites import plan_sites, rounding_images
from ptq4vit_onnx.planning.trial_files import TrialFiles
from ptq4vit_onnx.planning.widths import WidthPlans, plan_widths
from ptq4vit_onnx.planning.within_budget import Workshop, spend
from ptq4vit_onnx.progress import Progress, Sized
from ptq4vit_onnx.request import IMG_SIZE, NUM_CLASSES, OUTPUT_KIND, ExportRequest, size_text

logger = logging.getLogger(__name__)
CHOOSING, CHOOSING_BY_DROP = 256, 1024  # images; top-1 of few says little
SENSITIVITY_IMAGES = 64  # of those that a budget's choice is made on


@dataclass(frozen=True)
class Made:
    """evidence: for the report, by site. allocation: how a budget was spent."""

    plan: ScalePlan
    evidence: dict[str, SiteEvidence] = field(default_factory=dict)
    allocation: Allocation | None = None


def more_images(request: ExportRequest, model: LoadedModel) -> tuple[int, int]:
    """How many images weights are rounded on, and how many a budget's choice is made on."""
    if request.budget is None:
        return rounding_images(model, request.options), 0
    choosing = CHOOSING_BY_DROP if request.budget.limited == "max_drop" else CHOOSING
    return rounding_images(model, replace(request.options, weight_bits=SHARED_WIDTH)), choosing


def make_plan(
    request: ExportRequest, model: LoadedModel, chosen: ChosenImages, order: list[str], floats: Mapping[str, str],
    progress: Progress,
) -> Made:  # fmt: skip
    """Record all sites, search their scales, round weights, and collect the evidence that the report shows.

    order: of the sites in the plan. floats: products that stay in float, with reasons.

    Sites that the journal of an interrupted run with the same inputs holds are not searched again.
    """
    options, evidence = request.options, dict[str, SiteEvidence]()
    journal, known = opened_journal(request, model, chosen.calibration)

    def keep(recording: Recording, plan: SitePlan) -> None:
        if recording.site.name not in known:
            journal.add(recording.site.name, plan)

    def show(recording: Recording, plan: SitePlan) -> None:
        evidence[recording.site.name] = collect(recording, plan, options)

    found = plan_sites(
        model, chosen.calibration.images, options, rounded_on=chosen.rounded_on.images, known=known, on_search=keep,
        on_site=show, count=len(order), progress=progress,
    )  # fmt: skip
    sites = {name: found[name] for name in order}
    return Made(plan_of(request, model, chosen.calibration, sites, floats), evidence)


def make_plan_within(
    budget: Budget, request: ExportRequest, model: LoadedModel, chosen: ChosenImages, order: list[str],
    floats: Mapping[str, str], float_path: Path, folder: Path, progress: Progress,
) -> Made:  # fmt: skip
    """The same with the bits of every weight chosen by the budget. folder: for files that are tried."""
    _require_measurable(budget, model, chosen)
    plans = calibrate_widths(request, model, chosen, len(order), progress)

    def complete(sites: Mapping[str, SitePlan]) -> ScalePlan:
        in_order = {name: sites[name] for name in order}
        return plan_of(request, model, chosen.calibration, in_order, floats)

    trial = TrialFiles(float_path, complete, model.kind, chosen.chosen_on, folder, request.input, request.target)
    shop = Workshop(plans, trial.make, progress)
    allocation = spend(budget, shop, len(chosen.chosen_on), model.kind.measured_by)
    sites = plans.sites_at(allocation.choice.bits)
    return Made(complete(sites), _evidence(model, chosen.calibration, sites, request.options, progress), allocation)


def _require_measurable(budget: Budget, model: LoadedModel, chosen: ChosenImages) -> None:
    """Refuse a limit of what cannot be measured, before anything is; warn where few images make it coarse."""
    name = f"--{budget.limited.replace('_', '-')}"
    if budget.by_measurement and budget.limited not in model.kind.limits:
        raise UserError(f"{name} is not measured of {model.kind.plural}, which {model.name} returns; give --max-size")
    if budget.limited != "max_drop":
        return
    count = len(chosen.chosen_on)
    if chosen.chosen_on.labels is None:
        raise UserError(f"{name} needs labelled images besides those calibrated on; give more of them by --data")
    if 100 / count > budget.limit:
        logger.warning(f"{name} {budget.limit:g}: one of {count} images is {100 / count:.1f} points; give more images")


def calibrate_widths(
    request: ExportRequest, model: LoadedModel, chosen: ChosenImages, count: int, progress: Progress
) -> WidthPlans:
    """Every site at every width; an interrupted run's searches are not made again."""
    journal, known = opened_journal(request, model, chosen.calibration)

    def keep(key: str, plan: SitePlan) -> None:
        if key not in known:
            journal.add(key, plan)

    return plan_widths(
        model, chosen.calibration.images, request.options, rounded_on=chosen.rounded_on.images,
        unseen=chosen.chosen_on.images[:SENSITIVITY_IMAGES], known=known, on_search=keep, count=count,
        progress=progress,
    )  # fmt: skip


def _evidence(
    model: LoadedModel, images: ImageSet, sites: Mapping[str, SitePlan], options: Options, progress: Progress
) -> dict[str, SiteEvidence]:
    """The sites are recorded once more, for the report of what was chosen."""
    found: dict[str, SiteEvidence] = {}

    def show(recording: Recording, plan: SitePlan) -> None:
        found[recording.site.name] = collect(recording, plan, options)

    tape = record(model.module, images.images, options.seed, options.labels, kind=model.kind)
    calibrate(progress(Sized(tape, len(sites)), "evidence"), options, dict(sites), show)
    return found


def opened_journal(request: ExportRequest, model: LoadedModel, images: ImageSet) -> tuple[Journal, dict[str, SitePlan]]:
    """The journal of this request, and what it holds already."""
    identity: dict[str, Any] = {
        "weights": model.fingerprint,
        "images": images.fingerprint,
        "options": request.options.to_data(),
        "pixels": plain(model.pixel_grid),
        OUTPUT_KIND: model.kind.name,
        "v": __version__,
    }
    if request.budget is not None:
        identity["widths"] = "all"
    journal = Journal(journal_of(real_place(request.folder)), identity)
    known = journal.read()
    journal.start(known)
    return journal, known


def plan_of(
    request: ExportRequest, model: LoadedModel, images: ImageSet, sites: Mapping[str, SitePlan],
    floats: Mapping[str, str],
) -> ScalePlan:  # fmt: skip
    """The plan with all that it must say of where it comes from."""
    settings = {**request.options.to_data(), "weights_from": model.origin}
    settings[IMAGES_FROM] = BUILT_IN if images.built_in else f"{len(images)} images"
    settings[OUTPUT_KIND] = model.kind.name
    if request.img_size is not None:
        settings[IMG_SIZE] = size_text(request.img_size)
    if request.num_classes is not None:
        settings[NUM_CLASSES] = request.num_classes
    if request.budget is not None:
        del settings["weight_bits"]
        settings[BUDGET] = request.budget.to_data()
    settings["pixels_as"] = pixels_as(request.options, model, sites)
    return ScalePlan(model.name, model.fingerprint, images.fingerprint, settings, versions(), sites, floats=floats)


def pixels_as(options: Options, model: LoadedModel, sites: Mapping[str, SitePlan]) -> str:
    """Whether the image's bytes are what the first product reads; if they might have been, why they are not."""
    readers = [name for name, site in sites.items() if site.lhs.colours]
    if readers or options.pixels == "searched":
        return f"bytes, read by {', '.join(readers)}" if readers else "rounded as any other input"
    if model.pixel_grid is None:
        return "rounded as any other input: its preprocessing is not that of 8-bit images by mean and std"
    return "rounded as any other input: no patch embedding reads values on the grid of 8-bit images"
