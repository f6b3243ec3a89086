"""Plans as an export makes them, for benchmarks that need no more of an export than its plan."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks import real_data
from ptq4vit_onnx.files.provenance import versions
from ptq4vit_onnx.images.loading import ImageSet
from ptq4vit_onnx.model_loading.load import LoadedModel
from ptq4vit_onnx.network.discovery import discover
from ptq4vit_onnx.plan.options import Options
from ptq4vit_onnx.plan.scale_plan import ScalePlan
from ptq4vit_onnx.planning.sites import plan_sites, rounding_images


def plan_on_photos(model: LoadedModel, options: Options) -> ScalePlan:
    """On training photos: as many as the options say, and those that weights below eight bits are rounded on."""
    count = max(options.images, rounding_images(model, options))
    return plan_on(real_data.calibration_images(model, count, options.seed), model, options)


def plan_on(images: ImageSet, model: LoadedModel, options: Options) -> ScalePlan:
    """Scales are searched on the first of the images, as many as the options say; weights are rounded on all."""
    searched = images.part(slice(options.images))
    found = plan_sites(model, searched.images, options, rounded_on=images.images)
    order = [site.name for site in discover(model.module, torch.from_numpy(images.images[:1]))]
    sites = {name: found[name] for name in order}
    return ScalePlan(model.name, model.fingerprint, searched.fingerprint, options.to_data(), versions(), sites)
