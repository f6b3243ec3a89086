"""Pixels as bytes through the spine: exact whatever the activations' width, kept out of the paper's form, proven."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ptq4vit_onnx.cli import main as cli
from ptq4vit_onnx.errors import ParityError, UserError
from ptq4vit_onnx.images.embedded import embedded_digits
from ptq4vit_onnx.passes import quantize_pixels
from ptq4vit_onnx.pipeline import export
from ptq4vit_onnx.plan.options import Options
from ptq4vit_onnx.plan.plan_json import read_plan
from ptq4vit_onnx.plan.quantizers import Pixels
from ptq4vit_onnx.plan.saturation_safe_weights import unit_bias
from ptq4vit_onnx.report.terminal import rows
from ptq4vit_onnx.request import ExportRequest
from ptq4vit_onnx.runtime.session import run

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


@pytest.mark.parametrize(("model", "batch"), [("vit_digits", None), ("swin_digits", 3)])
def test_a_file_that_takes_bytes_has_the_logits_of_the_file_that_takes_floats(
    model: str, batch: int | None, tmp_path: Path, load_model: Any
) -> None:
    options = Options(activation_bits=6, **QUICK)
    export(ExportRequest(model, options, tmp_path / "floats", batch=batch))
    plan = tmp_path / "floats" / "plan.json"
    report = export(ExportRequest(model, plan=plan, output=tmp_path / "bytes", batch=batch, input="uint8"))
    assert report.end_to_end.identical == 100 and all(item.exact for item in report.proof.sites)
    images = embedded_digits(load_model(model).preprocessing, "test").images[:50]
    of_floats, of_bytes = (run(tmp_path / kind / "model.onnx", images) for kind in ("floats", "bytes"))
    assert np.array_equal(of_floats, of_bytes)
    first, second = ((tmp_path / kind / "float.onnx").read_bytes() for kind in ("floats", "bytes"))
    assert first == second, "the float file is as torch exports it"


def test_commands_feed_bytes_rightly(tmp_path: Path, capsys: pytest.CaptureFixture[str], digit_files: Path) -> None:
    export(ExportRequest("vit_digits", Options(**QUICK), tmp_path / "out", input="uint8"))
    model, reference = tmp_path / "out" / "model.onnx", tmp_path / "out" / "float.onnx"
    assert cli.main(["parity", str(model), "--reference", str(reference), "--images", "100"]) == 0
    assert "38 of 38 products equal integer arithmetic" in capsys.readouterr().out
    assert cli.main(["eval", str(model), "--reference", str(reference), "--data", str(digit_files)]) == 0
    assert cli.main(["bench", str(reference), str(model), "--runs", "1"]) == 0


@pytest.mark.parametrize("options", [Options.paper(), Options.base(), Options(pixels="searched")])
def test_an_input_of_bytes_without_pixels_as_bytes_is_refused_before_anything_is_done(options: Options) -> None:
    with pytest.raises(UserError, match="--input uint8 needs --pixels bytes"):
        ExportRequest("vit_digits", options, input="uint8")
