"""Exports of a tiny model for every output kind, made by hand once per session: quick, and proved as any export is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

OUTPUTS = {"logits": ("logits",), "embedding": ("embedding",), "features": ("tokens", "map")}
CLASSES, IMAGES = 3, 24


@dataclass(frozen=True)
class SmallExport:
    """folder: holds float.onnx, model.onnx and plan.json. images: a folder of images with labels.csv."""

    model: Any
    plan: Any
    chosen: Any
    folder: Path
    images: Path

    @property
    def files(self) -> list[Path]:
        return [self.folder / "float.onnx", self.folder / "model.onnx"]


@pytest.fixture(scope="session")
def small_export(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], SmallExport]:
    """The name of an output kind -> the tiny model that returns it, exported."""
    images = tmp_path_factory.mktemp("grey")
    _write_images(images)
    return cache(lambda kind: _export(kind, tmp_path_factory.mktemp(kind), images))


def _write_images(folder: Path) -> None:
    """Stripes of three directions with noise, and their direction as a label."""
    from PIL import Image

    draw, rows = np.random.default_rng(0), ["file,index"]
    places = np.arange(16)
    stripes = [np.add.outer(a * places, b * places) for a, b in ((0, 1), (1, 0), (1, 1))]
    for number in range(IMAGES):
        wave = np.sin(stripes[number % CLASSES] + draw.uniform(0, 6)) * 60 + 128 + draw.normal(0, 20, (16, 16))
        Image.fromarray(wave.clip(0, 255).astype(np.uint8)).save(folder / f"{number:02}.png")
        rows.append(f"{number:02}.png,{number % CLASSES}")
    (folder / "labels.csv").write_text("\n".join(rows) + "\n")


def tiny_model(kind: str) -> Any:
    """A patch embedding, a class token, an MLP with a residual, a norm, and what the kind returns of it."""
    import torch
    from torch import nn

    from ptq4vit_onnx.images.preprocessing import Preprocessing
    from ptq4vit_onnx.model_loading.load import LoadedModel
    from ptq4vit_onnx.output_kinds.kinds import KINDS

    class Tiny(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.patch, self.token = nn.Conv2d(1, 16, 4, 4), nn.Parameter(torch.randn(1, 1, 16))
            self.before, self.after = nn.LayerNorm(16), nn.LayerNorm(16)
            self.fc1, self.act, self.fc2 = nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)
            self.head = nn.Linear(16, CLASSES if kind == "logits" else 8)

        def forward(self, x: Any) -> Any:
            tokens = self.patch(x).flatten(2).transpose(1, 2)
            tokens = torch.cat([self.token.expand(x.shape[0], -1, -1), tokens], 1)
            tokens = self.after(tokens + self.fc2(self.act(self.fc1(self.before(tokens)))))
            if kind == "features":  # a norm that is returned, and read by a product as well
                return tokens, self.head(tokens[:, 1:]).transpose(1, 2).reshape(x.shape[0], 8, 4, 4)
            return self.head(tokens.mean(1))

    torch.manual_seed(0)
    rule = Preprocessing((1, 16, 16), 1.0, "squash", "bilinear", (0.5,), (0.25,))
    module = Tiny().eval().requires_grad_(False)
    return LoadedModel("tiny", module, rule, "checkpoint", "0" * 64, CLASSES, kind=KINDS[kind], outputs=OUTPUTS[kind])


def _export(kind: str, folder: Path, images: Path) -> SmallExport:
    from ptq4vit_onnx.calibration.calibrate import calibrate
    from ptq4vit_onnx.float_export.exporter import export_float
    from ptq4vit_onnx.graph.model_proto import save_model
    from ptq4vit_onnx.images.choice import ChosenImages
    from ptq4vit_onnx.images.loading import load_images
    from ptq4vit_onnx.network.discovery import discover
    from ptq4vit_onnx.network.tape import record
    from ptq4vit_onnx.plan.options import Options
    from ptq4vit_onnx.plan.plan_json import write_plan
    from ptq4vit_onnx.plan.scale_plan import ScalePlan
    from ptq4vit_onnx.proof.prove import quantize_model

    model = tiny_model(kind)
    read = load_images(images, model.preprocessing)
    sites = discover(model.module, read.images[:1])
    options = Options(candidates=10, rounds=1, images=8)
    found = calibrate(record(model.module, read.images[:8], kind=model.kind), options)
    plan = ScalePlan("tiny", model.fingerprint, "", {}, {}, {site.name: found[site.name] for site in sites})
    write_plan(plan, folder / "plan.json")
    float_model = export_float(model, sites)
    quantize_model(float_model, plan, folder / "model.onnx")
    save_model(float_model, folder / "float.onnx")
    return SmallExport(model, plan, ChosenImages(read.part(slice(8)), read.part(slice(8, None)), True), folder, images)
