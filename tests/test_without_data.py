"""`eval` and `parity` of a model that takes RGB photographs, and the example that feeds it bytes, without any data."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import onnx
import pytest
from PIL import Image

from ptq4vit_onnx import api
from ptq4vit_onnx.cli import main as cli
from ptq4vit_onnx.errors import UserError
from ptq4vit_onnx.graph.model_file import read_model_file
from ptq4vit_onnx.images.builtin import built_in_photos, photos_of
from ptq4vit_onnx.images.loading import load_images
from ptq4vit_onnx.model_loading.timm_compat import import_timm
from ptq4vit_onnx.models.specs import PHOTOS_FOLDER
from ptq4vit_onnx.output_kinds.metrics import agreement, mean_kl
from ptq4vit_onnx.runtime.session import run

SEED = 1
EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "feed_bytes.py"
QUICK: dict[str, Any] = {"images": 4, "candidates": 8, "rounds": 1, "channels": "none", "input": "uint8"}


@dataclass(frozen=True)
class Exported:
    folder: Path
    agreement: float
    kl: float

    @property
    def paths(self) -> tuple[Path, Path]:
        return self.folder / "model.onnx", self.folder / "float.onnx"


@pytest.fixture(scope="module")
def photo_model(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """A tiny ViT for photographs, exported without data by a seed that is not the default."""
    timm, folder = import_timm(), tmp_path_factory.mktemp("photo") / "out"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timm, "create_model", partial(timm.create_model, depth=1, embed_dim=48))
        report = api.export(
            "vit_tiny_patch16_224", img_size=(32, 48), random_weights=True, output=folder, seed=SEED, **QUICK
        )
    return Exported(folder, report.against_float.agreement, report.against_float.kl)


def copied(source: Exported, folder: Path, **changes: Any) -> Exported:
    """The export in another folder, its plan's fields or options changed."""
    shutil.copytree(source.folder, folder)
    plan = json.loads((folder / "plan.json").read_text())
    for name, value in changes.items():
        (plan if name in plan else plan["options"])[name] = value
    (folder / "plan.json").write_text(json.dumps(plan))
    return Exported(folder, source.agreement, source.kl)


def test_eval_measures_on_the_photos_that_the_export_left_out_and_says_so(
    photo_model: Exported, capsys: pytest.CaptureFixture[str]
) -> None:
    model, reference = photo_model.paths
    found = api.evaluate(model, reference=reference, threads=1)
    (only,) = found.models
    assert (only.images, only.agreement, only.top1, only.drop) == (64, photo_model.agreement, None, None)
    assert only.kl == pytest.approx(photo_model.kl, rel=1e-6)
    names = ", ".join(photos_of("held out", SEED))
    assert found.measured_on == (
        f"64 images of the built-in photos ({names}), cropped at random, not calibrated on; they have no labels, so "
        "there is no accuracy"
    )
    assert photos_of("held out", SEED) != photos_of("held out", 0), "what this test stands on"
    assert cli.main(["eval", str(reference), str(model)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"measured on {found.measured_on}"
    assert cli.main(["eval", str(reference), str(model), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["measured_on"] == found.measured_on


def test_a_count_takes_the_first_crops_and_has_a_limit(photo_model: Exported) -> None:
    model, reference = photo_model.paths
    crops = built_in_photos(read_model_file(model).preprocessing, "held out", 5, SEED).images
    (only,) = api.evaluate(model, reference=reference, images=5).models
    logits, wanted = run(model, crops), run(reference, crops)
    assert (only.images, only.agreement) == (5, agreement(logits, wanted))
    assert only.kl == pytest.approx(mean_kl(wanted, logits), rel=1e-5)
    with pytest.raises(UserError, match="images is 1025; expected a whole number from 1 to 1024"):
        api.evaluate(model, reference=reference, images=1025)


def test_parity_says_what_it_measured_on_in_text_json_and_junit(
    photo_model: Exported, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, reference = map(str, photo_model.paths)
    results = ["--json", str(tmp_path / "parity.json"), "--junit", str(tmp_path / "parity.xml")]
    assert cli.main(["parity", model, "--reference", reference, "--min-agreement", "0", *results]) == 0
    line = capsys.readouterr().out.splitlines()[-1]
    assert line.startswith("measured on 64 images of the built-in photos") and "no labels" in line
    data = json.loads((tmp_path / "parity.json").read_text())
    (said,) = ElementTree.parse(tmp_path / "parity.xml").getroot().iter("property")
    assert (said.get("name"), said.get("value")) == ("measured_on", data["measured_on"])
    assert line == f"measured on {data['measured_on']}"
    by_name = {check["name"]: check for check in data["checks"]}
    assert by_name["drop"]["status"] == "skipped"
    assert by_name["agreement"]["value"] == pytest.approx(photo_model.agreement / 100)


def test_what_needs_labels_is_refused_in_one_line(photo_model: Exported, refused: Callable[..., str]) -> None:
    model, reference = photo_model.paths
    said = refused("parity", model, "--reference", reference, "--max-drop", "1")
    assert "--max-drop needs labels, the set of built-in images has none; leave it out, or give --data" in said
    assert "the set of built-in images has no labels, and nothing to compare" in refused("eval", model)
    assert "--where needs a labels.csv, the set of built-in images has none" in refused("eval", model, "--where", "a=1")


@pytest.mark.parametrize("changes", [{"images": "0" * 64}, {"images_from": None}, {"weights": "0" * 64}, None], ids=str)
def test_photos_that_a_file_may_have_seen_are_not_called_unseen(
    changes: dict[str, Any] | None, photo_model: Exported, tmp_path: Path
) -> None:
    other = copied(photo_model, tmp_path / "other", **(changes or {}))
    plan = other.folder / "plan.json"
    if changes is None:
        plan.unlink()
    elif "images_from" in changes:
        data = json.loads(plan.read_text())
        del data["options"]["images_from"]
        plan.write_text(json.dumps(data))
    said = api.evaluate(other.paths[0], reference=other.paths[1], images=2).measured_on
    assert said is not None and "perhaps also calibrated on" in said


def test_a_plan_of_the_users_images_has_seen_no_built_in_photo(photo_model: Exported, tmp_path: Path) -> None:
    other = copied(photo_model, tmp_path / "other", images_from="4 images", seed=2)
    said = api.evaluate(other.paths[0], reference=other.paths[1], images=2).measured_on
    assert said is not None and ", not calibrated on" in said and photos_of("held out", 2)[0] in said
    together = api.evaluate([photo_model.paths[0], other.paths[0]], images=2).measured_on
    assert together is not None and photos_of("held out", SEED)[0] in together, "the other was calibrated on photos"


def test_files_of_several_seeds_are_referred_to_data(
    photo_model: Exported, tmp_path: Path, refused: Callable[..., str]
) -> None:
    other = copied(photo_model, tmp_path / "other", seed=2)
    said = refused("eval", photo_model.paths[0], other.paths[0])
    assert "built-in photos by the seeds 1, 2" in said and "give --data" in said


def test_a_model_of_other_channels_is_referred_to_data(
    exported: Path, tmp_path: Path, refused: Callable[..., str]
) -> None:
    for name in ("model.onnx", "float.onnx"):
        grey = onnx.load(exported / name)
        next(entry for entry in grey.metadata_props if entry.key == "ptq4vit_onnx.model").value = "grey_vit"
        onnx.save(grey, tmp_path / name)
    for command in ("eval", "parity"):
        said = refused(command, tmp_path / "model.onnx", "--reference", tmp_path / "float.onnx")
        assert "no images for grey_vit: it takes 1 channels and the built-in photos have 3; give --data" in said


def fed(model: Path, *files: Path) -> list[list[str]]:
    """What the example prints, line by line: a file, and class:probability from the likeliest on."""
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), str(model), *map(str, files)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return [line.split() for line in done.stdout.splitlines()]


def require_fed_alike(model: Path, folder: Path, files: list[Path]) -> None:
    """The example's classes and probabilities are those of the images as this package prepares them."""
    wanted = run(model, load_images(folder, read_model_file(model).preprocessing).images)
    powers = np.exp(wanted - wanted.max(-1, keepdims=True))
    for line, file, row in zip(fed(model, *files), files, powers / powers.sum(-1, keepdims=True), strict=True):
        assert line[0] == str(file) and len(line) == 6
        assert line[1:] == [f"{index}:{row[index]:.4f}" for index in np.argsort(-row, kind="stable")[:5]]


def test_the_example_feeds_photographs_as_the_package_does(photo_model: Exported, tmp_path: Path) -> None:
    for number, name in enumerate(("chelsea", "hopper", "rocket")):
        shutil.copy(PHOTOS_FOLDER / f"{name}.jpg", tmp_path / f"{number}.jpg")
    require_fed_alike(photo_model.paths[0], tmp_path, sorted(tmp_path.iterdir()))


@pytest.mark.usefixtures("quick_spine")
def test_the_example_feeds_grey_digits_in_a_fixed_batch(tmp_path: Path, digit_files: Path) -> None:
    api.export("vit_digits", output=tmp_path / "out", batch=5, **QUICK)
    files = [file for file in sorted(digit_files.iterdir()) if file.suffix == ".png"]
    require_fed_alike(tmp_path / "out" / "model.onnx", digit_files, files)


def test_the_example_knows_how_every_shape_of_image_is_resized(tmp_path: Path) -> None:
    from ptq4vit_onnx.images.preprocessing import Preprocessing

    names: dict[str, Any] = {"__name__": "example"}
    exec(compile(EXAMPLE.read_text(encoding="utf-8"), EXAMPLE, "exec"), names)
    noise = np.random.default_rng(0).integers(0, 256, (61, 83, 3), np.uint8)
    Image.fromarray(noise).save(tmp_path / "wide.png")
    Image.fromarray(noise.transpose(1, 0, 2)).save(tmp_path / "tall.png")
    for mode in ("center", "squash"):
        for size in ((3, 32, 32), (3, 24, 40), (1, 40, 24)):
            rule = Preprocessing(size, 0.9, mode, "bicubic", (0.0,), (1 / 255,))
            for file in ("wide.png", "tall.png"):
                read = names["read"](str(tmp_path / file), json.loads(rule.to_json()))
                with Image.open(tmp_path / file) as image:
                    wanted = rule.apply(image)
                assert np.array_equal(read.transpose(2, 0, 1), wanted.round()), (mode, size, file)


def test_the_example_imports_nothing_of_this_package_and_names_its_mistakes(exported: Path) -> None:
    assert "import ptq4vit_onnx" not in EXAMPLE.read_text() and "from ptq4vit_onnx" not in EXAMPLE.read_text()
    call = [sys.executable, str(EXAMPLE), str(exported / "model.onnx"), "absent.png"]
    done = subprocess.run(call, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.endswith("takes tensor(float); export it with --input uint8\n")
