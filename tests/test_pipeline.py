"""The spine: what an export leaves behind, what it refuses, and that a plan applied again gives the same file."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from ptq4vit_onnx import api, pipeline
from ptq4vit_onnx.cli import main as cli
from ptq4vit_onnx.errors import ParityError, UserError
from ptq4vit_onnx.files.outputs import EXPORT_FILES, claimed
from ptq4vit_onnx.graph import model_proto
from ptq4vit_onnx.graph.model_file import read_model_file
from ptq4vit_onnx.model_loading.timm_compat import import_timm
from ptq4vit_onnx.network import channel_folding as folding
from ptq4vit_onnx.network.plan_fit import options_of, require_channels_fold, require_plan_fits, size_of
from ptq4vit_onnx.pipeline import export
from ptq4vit_onnx.plan.channel_fold import Channels
from ptq4vit_onnx.plan.options import Options
from ptq4vit_onnx.plan.plan_json import read_plan, write_plan
from ptq4vit_onnx.plan.quantizers import Pixels, Uniform
from ptq4vit_onnx.plan.scale_plan import ScalePlan, SitePlan
from ptq4vit_onnx.proof import prove
from ptq4vit_onnx.proof.float_parity import FloatParity
from ptq4vit_onnx.report.data import Bits
from ptq4vit_onnx.report.terminal import rows
from ptq4vit_onnx.request import ExportRequest

QUICK = Options(images=4, candidates=8, rounds=1, weights="per-tensor", metric="mse", weight_bits=7)


@pytest.mark.usefixtures("quick_spine")
def test_an_export_is_whole_and_its_plan_applied_again_gives_the_same_model(tmp_path: Path) -> None:
    report = export(ExportRequest(options=QUICK, output=tmp_path / "out"))
    made = {file.name for file in (tmp_path / "out").iterdir()}
    assert {"model.onnx", "float.onnx", "plan.json", "report.json"} <= made
    assert [file.name for file in tmp_path.iterdir()] == ["out"], "no journal and no staging folder is left"
    written = json.loads((tmp_path / "out" / "report.json").read_text())
    assert written["sites"] == 38
    assert written == json.loads(json.dumps(report.to_data()))
    assert ("sites found", "38") in rows(report)
    plan = read_plan(tmp_path / "out" / "plan.json")
    assert options_of(plan) == QUICK
    again = export(ExportRequest(plan=tmp_path / "out" / "plan.json", output=tmp_path / "again"))
    assert again.inputs.bits == Bits(weights=7, activations=8), "the plan's, not the defaults'"
    first, second = ((tmp_path / name / "model.onnx").read_bytes() for name in ("out", "again"))
    assert first == second
    export(ExportRequest(plan=tmp_path / "out" / "plan.json", output=tmp_path / "out", force=True))
    assert (tmp_path / "out" / "model.onnx").read_bytes() == first, "a plan is read before its folder is replaced"
    assert {file.name for file in (tmp_path / "out").iterdir()} == made <= set(EXPORT_FILES)


@pytest.mark.usefixtures("quick_spine")
def test_a_model_too_large_for_one_message_is_exported_with_its_weights_beside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    export(ExportRequest(options=QUICK, output=tmp_path / "small"))
    monkeypatch.setattr(model_proto, "PROTOBUF_LIMIT", 10_000)
    plan = tmp_path / "small" / "plan.json"
    report = export(ExportRequest(plan=plan, output=tmp_path / "large"))
    assert {"float.onnx.data", "model.onnx.data"} <= {file.name for file in (tmp_path / "large").iterdir()}
    assert report.sizes.model > 1.5 * (tmp_path / "large" / "model.onnx").stat().st_size
    weights = [
        {item.name: item.raw_data for item in onnx.load(tmp_path / name / "model.onnx").graph.initializer}
        for name in ("small", "large")
    ]
    assert weights[0] == weights[1]
    assert api.check_parity(
        tmp_path / "large" / "model.onnx", tmp_path / "large" / "float.onnx", images=20, min_agreement=0.9
    ).passed


@pytest.mark.parametrize("option", ["data", "checkpoint"])
def test_force_never_replaces_the_folder_that_an_input_lies_in(option: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "model.onnx").write_text("mine")
    (tmp_path / "link").symlink_to(out)
    for given in (out, out / "model.onnx", tmp_path / "link"):
        with pytest.raises(UserError, match=f"--{option} .* lies in the output folder") as caught:
            export(ExportRequest(output=out, force=True, **{option: given}))  # type: ignore[arg-type]
        assert "give another --output" in str(caught.value)
    assert (out / "model.onnx").read_text() == "mine"


def test_an_export_next_to_another_into_the_same_folder_is_one_line_and_exit_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "out")
    with claimed(tmp_path / "out", False):
        for name in ("out", "link"):
            assert cli.main(["export", "--output", str(tmp_path / name), "--force"]) == 2
            line = f"ptq4vit-onnx: another export is writing to {tmp_path / name}; wait until it has ended, or give"
            assert capsys.readouterr().err == f"{line} another --output\n"
    assert [entry.name for entry in tmp_path.iterdir()] == ["link"]


@pytest.mark.usefixtures("quick_spine")
def test_a_parity_failure_leaves_no_folder_and_keeps_the_searched_sites(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise ParityError("fc differs")

    monkeypatch.setattr(prove, "prove", fail)
    with pytest.raises(ParityError, match="fc differs"):
        export(ExportRequest("swin_digits", replace(QUICK, images=1), output=tmp_path / "out"))
    assert [file.name for file in tmp_path.iterdir()] == [".out.resume.jsonl"]
    assert len((tmp_path / ".out.resume.jsonl").read_text().splitlines()) == 1 + 27


@pytest.mark.parametrize(
    ("request_", "name"),
    [
        (ExportRequest(), "vit_digits_w8a8"),
        (ExportRequest("deit_b", Options(weight_bits=4, activation_bits=6)), "deit_b_w4a6"),
        (ExportRequest("deit_b", random_weights=True), "deit_b_random_w8a8"),
        (ExportRequest("deit_b", img_size=(384, 384)), "deit_b_384px_w8a8"),
        (ExportRequest("deit_b", img_size=(256, 384), random_weights=True), "deit_b_256x384px_random_w8a8"),
        (ExportRequest("hf-hub:some/one"), "hf-hub_some_one_w8a8"),
        (ExportRequest(output=Path("mine")), "mine"),
    ],
)
def test_the_folder_says_model_bits_and_random_weights(request_: ExportRequest, name: str) -> None:
    assert request_.folder == Path(name)


REFUSED_EARLY: dict[str, tuple[dict[str, Any], str]] = {
    "an occupied folder": ({"output": Path("occupied")}, "output folder occupied exists"),
    "no data": ({"data": Path("absent")}, "no images at absent: it does not exist"),
    "data without images": ({"data": Path("occupied")}, "holds no image files"),
    "too few files": ({"data": Path("few")}, "few has 3 images, 32 are needed; give more images or lower --images"),
    "too few arrays": ({"data": Path("few.npy")}, "few.npy has 3 images, 32 are needed"),
}


@pytest.mark.parametrize("case", REFUSED_EARLY)
def test_what_can_be_refused_is_refused_before_anything_is_fetched(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(pipeline, "load_for", lambda *_: pytest.fail("weights were asked for"))
    for folder in ("occupied", "few"):
        (tmp_path / folder).mkdir()
    (tmp_path / "occupied" / "model.onnx").write_text("mine")
    for number in range(3):
        (tmp_path / "few" / f"{number}.png").write_text("looked at later")
    np.save("few.npy", np.zeros((3, 3, 224, 224), np.float32))
    given, said = REFUSED_EARLY[case]
    with pytest.raises(UserError, match=said):
        export(ExportRequest("deit_b", **given))


def test_a_model_of_other_channels_without_data_is_refused_before_it_is_fetched_if_timm_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = "no images for deit_b: it takes 12 channels and the built-in photos have 3; give --data"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(pipeline, "channels_of", lambda _: 12)
    monkeypatch.setattr(pipeline, "load_for", lambda *_: pytest.fail("weights were asked for"))
    for random_weights in (False, True):
        with pytest.raises(UserError, match=said):
            export(ExportRequest("deit_b", random_weights=random_weights))


@pytest.mark.usefixtures("quick_spine")
def test_black_images_are_refused_and_where_forced_warned_of_in_every_report(tmp_path: Path) -> None:
    black = np.full((4, 1, 32, 32), -1, np.float32)
    np.save(tmp_path / "black.npy", black)
    request = ExportRequest(options=QUICK, data=tmp_path / "black.npy", output=tmp_path / "out")
    with pytest.raises(UserError, match=r"all 4 calibration images are of one colour .*, or --force-data"):
        export(request)
    assert [file.name for file in tmp_path.iterdir()] == ["black.npy"]
    report = export(replace(request, force_data=True))
    (warning,) = report.inputs.calibration_images.warnings
    written = json.loads((tmp_path / "out" / "report.json").read_text())
    assert written["calibration_images"]["warnings"] == [warning]
    assert ("WARNING", warning) in rows(report)
    assert warning[1:] in (tmp_path / "out" / "report.html").read_text()
    again = replace(request, plan=tmp_path / "out" / "plan.json", output=tmp_path / "again")
    assert export(again).inputs.calibration_images.warnings == (warning,), "a plan's scales do not come from images"


@pytest.mark.usefixtures("quick_spine")
def test_black_images_that_are_forced_cost_what_the_figure_says_since_others_are_measured_on(tmp_path: Path) -> None:
    np.save(tmp_path / "black.npy", np.full((2, 1, 32, 32), -1, np.float32))
    options = Options(images=2, candidates=20, pixels="searched")  # a scale for pixels, too, measured on black
    report = export(
        ExportRequest(options=options, data=tmp_path / "black.npy", output=tmp_path / "out", force_data=True)
    )
    assert str(report.proof.measured_on) == "20 images of embedded digits (test), not calibrated on"
    assert report.against_float.agreement < 90
    flattering = api.evaluate(
        tmp_path / "out" / "model.onnx", tmp_path / "black.npy", reference=tmp_path / "out" / "float.onnx"
    )
    assert flattering.models[0].agreement == 100, "on the images that were calibrated on nothing would show"


def test_an_export_for_another_image_size_takes_such_images_and_its_plan_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    timm = import_timm()
    monkeypatch.setattr(timm, "create_model", partial(timm.create_model, depth=1, embed_dim=48))
    request = ExportRequest(
        "vit_tiny_patch16_224", replace(QUICK, images=1), tmp_path / "out", random_weights=True, img_size=(32, 48)
    )
    export(request)
    plan = tmp_path / "out" / "plan.json"
    assert read_plan(plan).options["img_size"] == "32x48"
    for name in ("float.onnx", "model.onnx"):
        assert read_model_file(tmp_path / "out" / name).preprocessing.size == (3, 32, 48)
    again = export(replace(request, img_size=None, plan=plan, output=tmp_path / "again"))
    assert again.plan.options["img_size"] == "32x48"
    first, second = ((tmp_path / name / "model.onnx").read_bytes() for name in ("out", "again"))
    assert first == second


def test_a_plan_knows_its_image_size() -> None:
    small = ScalePlan("deit_t", "", "", {"img_size": "160x256"}, {}, {})
    own = replace(small, options={})
    assert size_of(small, None) == size_of(small, (160, 256)) == (160, 256)
    assert size_of(own, None) is None
    with pytest.raises(UserError, match="made for --img-size 160x256, not for 256; leave --img-size out"):
        size_of(small, (256, 256))
    with pytest.raises(UserError, match="made for the model's own image size, not for 256"):
        size_of(own, (256, 256))
    with pytest.raises(UserError, match="img-size is 'large'; expected pixels"):
        size_of(replace(small, options={"img_size": "large"}), None)


def plan_for(exported: Any) -> ScalePlan:
    side = Uniform(8, (0.5,))
    sites = {site.name: SitePlan(site.kind, site.lhs_source, side, side) for site in exported.sites}
    return ScalePlan("vit_digits", exported.model.fingerprint, "", {}, {}, sites)


def test_a_plan_that_does_not_fit_the_model_is_refused(float_export: Callable[..., Any]) -> None:
    exported = float_export("vit_digits")
    plan = plan_for(exported)

    def refusal(changed: ScalePlan) -> str:
        with pytest.raises(UserError) as caught:
            require_plan_fits(changed, exported.model, exported.sites)
        return str(caught.value)

    def with_site(name: str, **changes: Any) -> ScalePlan:
        return replace(plan, sites={**plan.sites, name: replace(plan.sites[name], **changes)})

    require_plan_fits(plan, exported.model, exported.sites)
    assert "made for other weights" in refusal(replace(plan, weights="0" * 64))
    rest = {name: site for name, site in plan.sites.items() if name != "head"}
    assert "head is in only one of them" in refusal(replace(plan, sites=rest))
    assert "head is a linear fed by other, the plan says a conv" in refusal(with_site("head", kind="conv"))
    wrong = Channels("blocks.1.norm1", (1.0,) * 64, (0.0,) * 64)
    assert "blocks.0.attn.qkv reads blocks.0.norm1, the plan folds its channels into blocks.1.norm1" in refusal(
        with_site("blocks.0.attn.qkv", channels=wrong)
    )
    assert "blocks.0.mlp.fc2 reads no LayerNorm" in refusal(with_site("blocks.0.mlp.fc2", channels=wrong))
    three = Uniform(8, (0.5,) * 3, -3)
    assert "has 4 heads, the plan 3 scales" in refusal(with_site("blocks.0.attn.qk", rhs=three))
    coloured = Pixels(8, (0.5,) * 3, (127.5,) * 3)
    assert "reads images of 3 colours, the model's have 1" in refusal(with_site("patch_embed.proj", lhs=coloured))


def test_a_plan_that_shifts_channels_of_a_layer_without_a_bias_is_refused(float_export: Callable[..., Any]) -> None:
    exported, name = float_export("swin_digits"), "layers.1.downsample.reduction"
    plan = plan_for(exported)
    width = exported.model.module.get_submodule(name).in_features
    channels = Channels("layers.1.downsample.norm", (1.0,) * width, (0.5,) * width)
    wrong = replace(plan, sites={**plan.sites, name: replace(plan.sites[name], channels=channels)})
    with pytest.raises(UserError, match=f"{name} has no bias, the plan shifts its channels"):
        require_plan_fits(wrong, exported.model, exported.sites)


def test_a_plan_whose_channels_cannot_be_folded_is_refused(
    float_export: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    exported, name = float_export("vit_digits"), "blocks.0.attn.qkv"
    plan = plan_for(exported)
    channels = Channels("blocks.0.norm1", (1.0,) * 64, (0.0,) * 64)
    planned = replace(plan, sites={**plan.sites, name: replace(plan.sites[name], channels=channels)})
    image = np.zeros((1, *exported.model.preprocessing.size), np.float32)
    require_channels_fold(planned, exported.model, exported.sites, image)
    monkeypatch.setattr(folding, "foldable", lambda *_: set())
    require_channels_fold(plan, exported.model, exported.sites, image)
    with pytest.raises(UserError, match=f"the channels of {name} cannot be folded into blocks.0.norm1"):
        require_channels_fold(planned, exported.model, exported.sites, image)


def test_a_plan_of_another_model_is_refused_before_any_work(tmp_path: Path) -> None:
    write_plan(ScalePlan("deit_b", "", "", {}, {}, {}), tmp_path / "plan.json")
    with pytest.raises(UserError, match="is for deit_b, not for vit_digits; give --model deit_b"):
        export(ExportRequest(plan=tmp_path / "plan.json", output=tmp_path / "out"))


@pytest.mark.parametrize("options", [{"weight_bits": 9}, {"weight_bits": "8"}, {"metric": "l1"}, {"seed": None}])
def test_options_in_a_plan_are_checked_as_typed_ones_are(options: dict[str, Any]) -> None:
    with pytest.raises(UserError):
        options_of(ScalePlan("vit_digits", "", "", options, {}, {}))


def test_parity_is_relative_to_the_largest_logit() -> None:
    assert FloatParity(1, 1e-4).passed
    assert not FloatParity(1, float(np.nextafter(1e-4, 1))).passed
    assert not FloatParity(1, float("nan")).passed


def test_exports_in_two_threads_run_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    inside = threading.Semaphore(1)

    def alone(_request: ExportRequest, _progress: Any) -> bool:
        entered = inside.acquire(blocking=False)
        time.sleep(0.1)
        if entered:
            inside.release()
        return entered

    monkeypatch.setattr(pipeline, "_export", alone)
    before = dict(os.environ)
    with ThreadPoolExecutor(3) as pool:
        assert all(pool.map(export, [ExportRequest()] * 3))
    assert dict(os.environ) == before
