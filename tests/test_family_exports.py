"""One tiny model of every family goes through `export`: products in integers, exact, logits bit for bit."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ptq4vit_onnx import api
from ptq4vit_onnx.model_loading.timm_compat import import_timm
from ptq4vit_onnx.plan.plan_json import read_plan


def sized(pixels: int) -> dict[str, Any]:
    return {"img_size": pixels, "num_classes": 10, "pretrained_cfg_overlay": {"input_size": (3, pixels, pixels)}}


VIT = {"embed_dim": 32, "depth": 2, "num_heads": 2}
SWIN = {"embed_dim": 16, "depths": (2, 2), "num_heads": (2, 2), "window_size": 4}
CROSS = {"embed_dim": (16, 32), "depth": ((1, 1, 0),), "num_heads": (2, 2), "img_scale": (1.0, 32 / 48)}
# timm's name of a member of each family, which brings the family's own settings, and what makes it tiny.
FAMILIES: dict[str, dict[str, Any]] = {
    "vit_tiny_patch16_224": VIT | sized(64),
    "deit_tiny_distilled_patch16_224": VIT | sized(64),
    "deit3_small_patch16_224": VIT | sized(64),
    "beit_base_patch16_224": VIT | sized(64),
    "eva02_base_patch14_448": VIT | sized(56) | {"ref_feat_shape": (4, 4)},
    "swin_tiny_patch4_window7_224": SWIN | sized(32),
    "swinv2_tiny_window8_256": SWIN | sized(32),
    "swinv2_cr_tiny_224": SWIN | sized(32),
    "vit_relpos_small_patch16_224": VIT | sized(64),
    "flexivit_small": VIT | sized(64),
    "vit_base_patch32_clip_224": VIT | sized(128),
    "crossvit_tiny_240": CROSS | sized(48),
}
# What tells the family from a plain ViT: a part of the name of one of its parameters.
MARKS = {
    "deit_tiny_distilled_patch16_224": "head_dist",
    "deit3_small_patch16_224": "ls1.gamma",
    "beit_base_patch16_224": "relative_position_bias_table",
    "eva02_base_patch14_448": "mlp.fc1_g",
    "swin_tiny_patch4_window7_224": "relative_position_bias_table",
    "swinv2_tiny_window8_256": "logit_scale",
    "swinv2_cr_tiny_224": "meta_mlp",
    "vit_relpos_small_patch16_224": "rel_pos.mlp",
    "vit_base_patch32_clip_224": "norm_pre",
    "crossvit_tiny_240": "fusion",
}
Made = list[torch.nn.Module]


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Made]:
    """name -> timm makes the tiny member under this name; the list fills with the modules it made."""
    timm = import_timm()
    create = timm.create_model

    def start(name: str) -> Made:
        made: Made = []

        def create_tiny(wanted: str, **options: Any) -> torch.nn.Module:
            made.append(moved(create(wanted, **{**options, **FAMILIES[name]})))
            return made[-1]

        monkeypatch.setattr(timm, "create_model", create_tiny)
        return made

    return start


def moved(module: torch.nn.Module) -> torch.nn.Module:
    """Every parameter is moved a little: biases and tables that begin as zeros would be left out or prove nothing."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return module


@pytest.mark.parametrize("name", FAMILIES)
def test_a_tiny_member_of_the_family_is_exported_in_integers_and_proven(
    name: str, tiny: Callable[[str], Made], tmp_path: Path
) -> None:
    made = tiny(name)
    folder = tmp_path / "out"
    api.export(name, random_weights=True, output=folder, images=8, candidates=8)
    assert made and any(MARKS.get(name, "") in parameter for parameter, _ in made[0].named_parameters())
    report = json.loads((folder / "report.json").read_text())
    sites = set(read_plan(folder / "plan.json").sites)
    products, parity = report["kernels"]["products"], report["site_parity"]
    assert {item["site"] for item in products} == {item["site"] for item in parity} == sites
    assert all(item["integer"] and item["unsafe"] is None for item in products)
    assert all(item["exact"] for item in parity)
    assert report["end_to_end"]["images"] == report["measured_images"]["count"] == 64
    assert report["end_to_end"]["identical"] == 100
