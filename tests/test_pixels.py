"""Pixels as bytes through the spine: exact whatever the activations' width, kept out of the paper's form, proven."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ptq4vit_onnx.errors import ParityError
from ptq4vit_onnx.images.embedded import embedded_digits
from ptq4vit_onnx.passes import quantize_pixels
from ptq4vit_onnx.pipeline import export
from ptq4vit_onnx.plan.options import Options
from ptq4vit_onnx.plan.plan_json import read_plan
from ptq4vit_onnx.plan.quantizers import Pixels
from ptq4vit_onnx.plan.saturation_safe_weights import unit_bias
from ptq4vit_onnx.report.terminal import rows
from ptq4vit_onnx.request import ExportRequest

SITE = "patch_embed.proj"
QUICK: dict[str, Any] = {"images": 4, "candidates": 8, "channels": "none"}
pytestmark = pytest.mark.usefixtures("quick_spine")


@pytest.mark.parametrize(
    ("model", "changes"),
    [
        ("vit_digits", {"activation_bits": 3}),
        ("swin_digits", {"weight_bits": 4, "weights": "per-tensor"}),  # corrects biases, too
        ("vit_digits", {"metric": "cosine", "rounds": 1, "search": "exhaustive", "rounding": "nearest"}),
    ],
)
def test_the_patch_embedding_reads_bytes_and_its_plan_applies_again(
    model: str, changes: dict[str, Any], tmp_path: Path, load_model: Any
) -> None:
    report = export(ExportRequest(model, Options(**QUICK, **changes), tmp_path / "out"))
    site = read_plan(tmp_path / "out" / "plan.json").sites[SITE]
    assert site.lhs == load_model(model).pixel_grid and site.lhs.bits == 8
    assert ("pixels", f"bytes, read by {SITE}") in rows(report)
    assert report.end_to_end.identical == 100, "file and exact simulator, bit for bit"
    checked = next(item.checked for item in report.proof.sites if item.site == SITE)
    assert {"left range", "left colours", "left codes", "weight", "site output"} <= set(checked)
    assert "pixel bytes, 8 bits" in (tmp_path / "out" / "report.html").read_text()
    export(ExportRequest(model, plan=tmp_path / "out" / "plan.json", output=tmp_path / "again"))
    assert (tmp_path / "out" / "model.onnx").read_bytes() == (tmp_path / "again" / "model.onnx").read_bytes()


@pytest.mark.parametrize(
    "options", [Options.paper(**QUICK), Options.base(**QUICK), Options(pixels="searched", **QUICK)]
)
def test_the_published_forms_and_who_asks_for_it_search_a_scale(options: Options, tmp_path: Path) -> None:
    report = export(ExportRequest("vit_digits", options, tmp_path / "out"))
    assert not isinstance(report.plan.sites[SITE].lhs, Pixels)
    assert ("pixels", "rounded as any other input") in rows(report)


def test_images_between_the_bytes_are_searched_and_the_report_says_why(tmp_path: Path, load_model: Any) -> None:
    images = embedded_digits(load_model("vit_digits").preprocessing, "calibration", 4).images
    np.save(tmp_path / "images.npy", images * np.float32(0.99))
    request = ExportRequest("vit_digits", Options(**QUICK), tmp_path / "out", data=tmp_path / "images.npy")
    report = export(request)
    assert not report.plan.sites[SITE].lhs.colours
    said = json.loads((tmp_path / "out" / "report.json").read_text())["options"]["pixels_as"]
    assert said == "rounded as any other input: no patch embedding reads values on the grid of 8-bit images"
    assert ("pixels", said) in rows(report)


@pytest.mark.parametrize(
    ("what", "wrong", "problem"),
    [("offset", 1e-3, "the colours' offsets"), ("step", 1e-4, "the colours' scales"), ("zero_point", 1, "zero points")],
)
def test_the_proof_sees_a_pass_that_reads_other_bytes(
    what: str, wrong: float, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    per_colour = quantize_pixels._per_colour
    monkeypatch.setattr(
        quantize_pixels, "_per_colour",
        lambda colours, name, kind: per_colour(colours, name, kind) + kind(wrong if name == what else 0),
    )  # fmt: skip
    with pytest.raises(ParityError, match=f"{SITE}/MatMul.*{problem}"):
        export(ExportRequest("vit_digits", Options(**QUICK), tmp_path / "out"))


def test_the_proof_sees_a_pass_that_forgets_the_constant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantize_pixels, "unit_bias", lambda *sides: 0.999 * np.asarray(unit_bias(*sides)))
    with pytest.raises(ParityError, match=f"{SITE}/MatMul.*site output"):
        export(ExportRequest("vit_digits", Options(**QUICK), tmp_path / "out"))
