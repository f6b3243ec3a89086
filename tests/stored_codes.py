"""A plan that carries codes, made by hand: nearest codes, some of them changed by one, as compensation would."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from ptq4vit_onnx.plan.plan_json import read_plan
from ptq4vit_onnx.plan.quantizers import Compensated, Uniform, WeightCodes
from ptq4vit_onnx.plan.saturation_safe_weights import make_pairs_safe, pair_limit
from ptq4vit_onnx.plan.scale_plan import Outliers, ScalePlan, SitePlan

Array = np.ndarray[Any, Any]
# Bits by site: an image's bytes, a fused qkv in units of its heads, folded channels, GELU, outliers.
WIDTHS = {
    "patch_embed.proj": 8, "blocks.0.attn.qkv": 4, "blocks.0.mlp.fc1": 8, "blocks.1.mlp.fc1": 4, "blocks.1.mlp.fc2": 5,
    "head": 8,
}  # fmt: skip
OUTLIER = 3  # a channel of the head
CHANGED = 0.05  # of the codes


def plan_with_codes(exported: Path) -> ScalePlan:
    """The plan of an export of vit_digits at 8 bits, some of its weights with codes of their own."""
    plan, weights = read_plan(exported / "plan.json"), _codes_by_site(exported / "model.onnx")
    head = plan.sites["head"]
    apart = Outliers((OUTLIER,), Uniform(8, (0.125,)), Uniform(8, (2.0**-7,)))
    weights["head"][OUTLIER] = 0
    sites = {**plan.sites, "head": replace(head, outliers=apart)}
    draw = np.random.default_rng(0)
    for name, bits in WIDTHS.items():
        sites[name] = _with_codes(sites[name], weights[name], bits, draw)
    return replace(plan, sites=sites)


def with_codes(plan: ScalePlan, site: str, values: Array) -> ScalePlan:
    """The plan with other codes of a site, under their own digest."""
    rhs = plan.sites[site].rhs
    assert isinstance(rhs, Compensated)
    changed = replace(plan.sites[site], rhs=replace(rhs, stored=WeightCodes.of(values)))
    return replace(plan, sites={**plan.sites, site: changed})


def _codes_by_site(model: Path) -> dict[str, Array]:
    """The int8 weights [inputs, outputs] that shipped."""
    held = {item.name: item for item in onnx.load(model).graph.initializer}
    return {name: numpy_helper.to_array(held[f"{name}/weight"]).copy() for name in WIDTHS}


def _with_codes(site: SitePlan, codes: Array, bits: int, draw: np.random.Generator) -> SitePlan:
    """codes: of 8 bits; rounded to fewer, which makes the scale larger by a power of two."""
    steps = 2 ** (8 - bits)
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    changes = draw.choice([-1, 0, 1], codes.shape, p=[CHANGED / 2, 1 - CHANGED, CHANGED / 2]) * (codes != 0)
    moved = np.clip(np.rint(codes / steps) + changes, low, high).astype(np.float32)
    values = make_pairs_safe(moved, pair_limit(site.lhs)).astype(np.int8)
    scale = tuple(value * steps for value in site.rhs.scale)
    return replace(site, rhs=Compensated(bits, scale, site.rhs.axis, stored=WeightCodes.of(values)))
