"""Whether a plan that the user brings fits the model, and which options it was made with."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, get_args

import numpy as np

from ptq4vit_onnx.errors import UserError
from ptq4vit_onnx.model_loading.load import LoadedModel
from ptq4vit_onnx.models.specs import ModelSpec
from ptq4vit_onnx.plan.budget import BUDGET, Budget
from ptq4vit_onnx.plan.options import Options
from ptq4vit_onnx.plan.plan_json import read_plan
from ptq4vit_onnx.plan.scale_plan import ScalePlan, SitePlan
from ptq4vit_onnx.plan.sites import Site
from ptq4vit_onnx.request import (
    IMG_SIZE,
    NUM_CLASSES,
    OUTPUT_KIND,
    AskedKind,
    ExportRequest,
    ImageSize,
    parse_size,
    size_text,
)


def load_plan(path: Path, spec: ModelSpec) -> ScalePlan:
    plan = read_plan(path)
    if plan.model != spec.name:
        raise UserError(
            f"plan {path} is for {plan.model}, not for {spec.name}; give --model {plan.model} or "
            "calibrate again without --plan"
        )
    return plan


def options_of(plan: ScalePlan) -> Options:
    """The options a plan was made with; the output folder and the report are named after them."""
    known = {item.name for item in fields(Options)}
    try:
        return Options(**{name: value for name, value in plan.options.items() if name in known})
    except (TypeError, ValueError) as error:
        raise UserError(f"the plan's options are not usable: {error}; calibrate again") from error


def request_of(plan: ScalePlan, request: ExportRequest) -> ExportRequest:
    """The request with all that a plan decides; refuses what contradicts it."""
    return replace(
        request,
        options=options_of(plan),
        img_size=size_of(plan, request.img_size),
        num_classes=_classes_of(plan, request.num_classes),
        output_kind=_kind_of(plan, request.output_kind),
        budget=Budget.from_data(plan.options[BUDGET]) if BUDGET in plan.options else None,
    )


def _kind_of(plan: ScalePlan, asked: AskedKind) -> AskedKind:
    """The kind of output that a plan was made for; a plan that does not say leaves it to the user."""
    planned: Any = plan.options.get(OUTPUT_KIND, asked)
    if planned not in get_args(AskedKind):
        raise UserError(
            f"the plan's {OUTPUT_KIND} is {planned!r:.40}; expected one of {', '.join(get_args(AskedKind))}"
        )
    if asked not in ("auto", planned):
        raise UserError(f"the plan was made for --output-kind {planned}, not for {asked}; leave --output-kind out")
    return planned  # type: ignore[no-any-return]


def _classes_of(plan: ScalePlan, asked: int | None) -> int | None:
    planned: Any = plan.options.get(NUM_CLASSES)
    if asked is not None and asked != planned:
        made_for = "the model's own head" if planned is None else f"--num-classes {planned}"
        raise UserError(f"the plan was made for {made_for}, not for {asked} classes; leave --num-classes out")
    return planned  # type: ignore[no-any-return]


def size_of(plan: ScalePlan, asked: ImageSize | None) -> ImageSize | None:
    """The size of images that a plan was made for, None for the model's own; refuses to apply it to another."""
    text = plan.options.get(IMG_SIZE)
    planned = None if text is None else parse_size(text)
    if asked is not None and asked != planned:
        made_for = "the model's own image size" if planned is None else f"--img-size {size_text(planned)}"
        raise UserError(f"the plan was made for {made_for}, not for {size_text(asked)}; leave --img-size out")
    return planned


def require_plan_fits(plan: ScalePlan, model: LoadedModel, sites: list[Site], floats: Collection[str] = ()) -> None:
    """floats: the names of the model's products that cannot be integer."""
    if plan.weights != model.fingerprint:
        raise UserError(
            f"the plan was made for other weights of {plan.model} ({plan.weights[:12]}, these are "
            f"{model.fingerprint[:12]}); calibrate again without --plan"
        )
    odd = sorted((set(plan.sites) ^ {site.name for site in sites}) | (set(plan.floats) ^ set(floats)))
    if odd:
        raise UserError(f"the plan does not fit {plan.model}: {odd[0]} is in only one of them; calibrate again")
    for site in sites:
        planned = plan.sites[site.name]
        if (planned.kind, planned.lhs_source) != (site.kind, site.lhs_source):
            raise UserError(
                f"the plan does not fit {plan.model}: {site.name} is a {site.kind} fed by {site.lhs_source}, the plan "
                f"says a {planned.kind} fed by {planned.lhs_source}; calibrate again"
            )
        _require_channels(plan.model, site, planned)
        _require_codes(plan.model, site, planned)
        colours, own = len(planned.lhs.colours), model.preprocessing.size[0]
        if colours not in (0, own):
            raise UserError(
                f"the plan does not fit {plan.model}: {site.name} reads images of {colours} colours, the model's have "
                f"{own}; calibrate again"
            )
        for side in (planned.lhs, planned.rhs) if site.kind == "matmul" else ():
            if side.groups not in (1, site.heads):
                raise UserError(
                    f"the plan does not fit {plan.model}: {site.name} has {site.heads} heads, the plan "
                    f"{side.groups} scales; expected 1 or {site.heads}"
                )


def require_channels_fold(plan: ScalePlan, model: LoadedModel, sites: list[Site], image: np.ndarray[Any, Any]) -> None:
    """Refuse a plan whose channels, folded into the model, would change its logits; `image` [1, C, H, W]."""
    import torch

    from ptq4vit_onnx.network.channel_folding import foldable

    planned = {name: item.channels for name, item in plan.sites.items() if item.channels is not None}
    odd = sorted(set(planned) - foldable(model.module, sites, torch.from_numpy(image))) if planned else []
    if odd:
        raise UserError(
            f"the plan does not fit {plan.model}: the channels of {odd[0]} cannot be folded into "
            f"{planned[odd[0]].norm}, because the two then compute something else; calibrate again"
        )


def _require_codes(model: str, site: Site, planned: SitePlan) -> None:
    codes = planned.rhs.carried
    if codes is not None and codes.shape != site.weight_shape:
        raise UserError(
            f"the plan does not fit {model}: {site.name} has a weight {list(site.weight_shape or ())}, the plan "
            f"codes of {list(codes.shape or ())}; calibrate again"
        )


def _require_channels(model: str, site: Site, planned: SitePlan) -> None:
    channels = planned.channels
    if channels is None:
        return
    if channels.norm != site.norm:
        raise UserError(
            f"the plan does not fit {model}: {site.name} reads {site.norm or 'no LayerNorm'}, the plan folds its "
            f"channels into {channels.norm}; calibrate again"
        )
    if any(channels.shift) and not site.has_bias:
        raise UserError(
            f"the plan does not fit {model}: {site.name} has no bias, the plan shifts its channels; calibrate again"
        )
