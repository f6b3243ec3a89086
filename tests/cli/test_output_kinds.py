"""`eval` and `parity` on embeddings and features: tables, JSON and JUnit of their kind, and limits that do not fit."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import onnx
import pytest

from ptq4vit_onnx import check_parity, evaluate
from ptq4vit_onnx.cli import main as cli
from ptq4vit_onnx.errors import UserError
from ptq4vit_onnx.graph.model_file import read_model_file
from ptq4vit_onnx.images.loading import load_images
from ptq4vit_onnx.output_kinds.kinds import KINDS
from ptq4vit_onnx.runtime.session import run, run_all

OTHERS = ["embedding", "features"]


def printed(capsys: pytest.CaptureFixture[str], code: int, *arguments: Any) -> str:
    assert cli.main([*map(str, arguments), "--threads", "1"]) == code
    return capsys.readouterr().out


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_says_its_kind_and_names_its_outputs(kind: str, small_export: Callable[[str], Any]) -> None:
    made = small_export(kind)
    for path in made.files:
        assert read_model_file(path).kind is KINDS[kind]
        assert tuple(output.name for output in onnx.load(path).graph.output) == made.model.outputs
        keys = {entry.key for entry in onnx.load(path).metadata_props}
        assert ("ptq4vit_onnx.output_kind" in keys) == (kind != "logits"), "files of classifiers stay as they were"


def test_the_figures_of_embeddings_are_those_of_their_vectors(
    small_export: Callable[[str], Any], capsys: pytest.CaptureFixture[str]
) -> None:
    made = small_export("embedding")
    data = json.loads(printed(capsys, 0, "eval", *made.files, "--data", made.images, "--json"))
    first, second = data["models"]
    images = load_images(made.images, made.model.preprocessing).images
    wanted, found = (run(path, images).astype(np.float64) for path in made.files)
    cosine = (wanted * found).sum(1) / np.linalg.norm(wanted, axis=1) / np.linalg.norm(found, axis=1)
    assert data["kind"] == "embedding"
    assert (second["cosine"], second["worst_cosine"]) == pytest.approx((cosine.mean(), cosine.min()))
    assert first["knn"] - second["knn"] == pytest.approx(second["drop"])
    assert first["cosine"] is None
    table = printed(capsys, 0, "eval", *made.files, "--data", made.images).splitlines()
    assert "k-NN %" in table[0] and "reference" in table[1] and len(table) == 3


def test_features_have_a_row_and_figures_for_every_output(
    small_export: Callable[[str], Any], capsys: pytest.CaptureFixture[str]
) -> None:
    made = small_export("features")
    (only,) = evaluate(made.files[1], made.images, reference=made.files[0], threads=1).models
    assert only.worst_cosine == min(part["worst_cosine"] for part in only.outputs.values())
    assert list(only.outputs) == ["tokens", "map"]
    images = load_images(made.images, made.model.preprocessing).images
    (wanted, _), (found, _) = (run_all(path, images) for path in made.files)
    error = np.linalg.norm(found - wanted, axis=-1) / np.linalg.norm(wanted, axis=-1)
    assert only.outputs["tokens"]["relative_error"] == pytest.approx(error.mean(), rel=1e-4)
    table = printed(capsys, 0, "eval", *made.files, "--data", made.images).splitlines()
    assert [line.split()[0] for line in table[3:]] == ["tokens", "map"]


def test_a_gallery_tells_the_labels_of_the_images(small_export: Callable[[str], Any], tmp_path: Path) -> None:
    made = small_export("embedding")
    names = sorted(path.name for path in made.images.glob("*.png"))
    labels = dict(line.split(",") for line in (made.images / "labels.csv").read_text().split()[1:])
    for folder, wrong in (("right", False), ("wrong", True)):
        (tmp_path / folder).mkdir()
        rows = [f"{name},{(int(labels[name]) + wrong) % 3}" for name in names]
        (tmp_path / folder / "labels.csv").write_text("\n".join(["file,index", *rows]))
        for name in names:
            shutil.copy(made.images / name, tmp_path / folder)
    right, wrong = (
        evaluate(made.files, made.images, gallery=tmp_path / folder, threads=1).models[1].knn
        for folder in ("right", "wrong")
    )
    assert right > 50 > wrong, "each image finds itself, and its class, in the gallery"


def test_a_gallery_is_refused_where_it_says_nothing(
    small_export: Callable[[str], Any], tmp_path: Path, refused: Callable[..., str]
) -> None:
    made, logits = small_export("embedding"), small_export("logits")
    model = ("eval", made.files[1], "--data", made.images)
    assert "--gallery is for embeddings, the models return logits" in refused(
        "eval", logits.files[1], "--data", made.images, "--gallery", made.images
    )
    assert "--gallery needs --data" in refused("eval", made.files[1], "--gallery", made.images)
    shutil.copy(made.images / "00.png", tmp_path)
    assert f"k-NN needs labels, {tmp_path} has none" in refused(*model, "--gallery", tmp_path)
    trees = [tmp_path / name for name in ("a", "b")]
    for tree, classes in zip(trees, ("xy", "xz"), strict=True):
        for name in classes:
            (tree / name).mkdir(parents=True)
            shutil.copy(made.images / "00.png", tree / name)
    assert "have different classes, y is in one of them only" in refused(
        "eval", made.files[1], "--data", trees[0], "--gallery", trees[1]
    )


@pytest.mark.parametrize("kind", OTHERS)
def test_parity_has_the_checks_of_the_kind(
    kind: str, small_export: Callable[[str], Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made, (json_path, junit) = small_export(kind), (tmp_path / "p.json", tmp_path / "p.xml")
    call = ("parity", made.files[1], "--reference", made.files[0], "--data", made.images)
    printed(capsys, 0, *call, "--json", json_path, "--junit", junit)
    data = json.loads(json_path.read_text())
    names = [limit.removeprefix("min_").removeprefix("max_") for limit in KINDS[kind].limits]
    assert data["kind"] == kind and [check["name"] for check in data["checks"]][5:] == names
    assert data["checks"][5]["limit"] == 0.99
    assert [case.get("name") for case in ElementTree.parse(junit).getroot().iter("testcase")][5:] == names
    out = printed(capsys, 1, *call, "--min-worst-cosine", "1")
    assert [line.split()[1] for line in out.splitlines() if line.startswith("failed")] == ["worst_cosine"]


@pytest.mark.parametrize(
    ("kind", "option", "said"),
    [
        (
            "embedding",
            "--max-kl",
            "--max-kl does not fit a model that returns embeddings; its limits are --min-cos",
        ),
        ("features", "--min-agreement", "--min-agreement does not fit a model that returns features"),
        ("logits", "--min-cosine", "--min-cosine does not fit a model that returns logits; its limits are --min-agree"),
    ],
)
def test_a_limit_of_another_kind_is_refused(
    kind: str, option: str, said: str, small_export: Callable[[str], Any], refused: Callable[..., str]
) -> None:
    made = small_export(kind)
    assert said in refused("parity", made.files[1], "--reference", made.files[0], option, "0.5")
    limit: dict[str, Any] = {option[2:].replace("-", "_"): 0.5}
    with pytest.raises(UserError, match=f"returns {KINDS[kind].plural}"):
        check_parity(made.files[1], made.files[0], made.images, **limit)


def test_a_limit_that_the_images_cannot_be_held_against_is_refused(small_export: Callable[[str], Any]) -> None:
    made = small_export("embedding")
    with pytest.raises(UserError, match=r"--min-agreement cannot be held: a single image .*; leave it out, or give"):
        check_parity(made.files[1], made.files[0], made.images, images=1, min_agreement=0.5)
    assert check_parity(made.files[1], made.files[0], made.images, images=1, min_cosine=0.1).images == 1


def test_features_alone_have_nothing_to_be_measured_by(
    small_export: Callable[[str], Any], refused: Callable[..., str]
) -> None:
    made = small_export("features")
    said = refused("eval", made.files[1], "--data", made.images)
    assert "features are measured next to others; give --reference FLOAT.onnx" in said


def test_models_of_two_kinds_are_not_compared(small_export: Callable[[str], Any], refused: Callable[..., str]) -> None:
    first, second = (small_export(kind) for kind in OTHERS)
    said = refused("eval", first.files[1], second.files[1], "--data", first.images)
    assert "features, " in said and "embeddings; compare models of the same output kind" in said
    said = refused("parity", first.files[1], "--reference", second.files[0], "--data", first.images)
    assert "compare models of the same output kind" in said


@pytest.mark.parametrize("kind", OTHERS)
def test_outputs_that_are_not_finite_are_said_so(
    kind: str, small_export: Callable[[str], Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = small_export(kind)
    model = onnx.load(made.files[1])
    bias = next(node for node in model.graph.node if node.name == "head/Add").input[1]
    held = next(tensor for tensor in model.graph.initializer if tensor.name == bias)
    held.CopyFrom(onnx.numpy_helper.from_array(np.nan * onnx.numpy_helper.to_array(held), bias))
    wrong = tmp_path / "wrong.onnx"
    onnx.save(model, wrong)
    out = printed(capsys, 1, "parity", wrong, "--reference", made.files[0], "--data", made.images)
    assert f"{KINDS[kind].plural} of {wrong} are not finite on 24 of 24 images" in out
    assert f"not all {KINDS[kind].plural} are finite" in out


def test_a_kind_of_another_version_is_refused(
    small_export: Callable[[str], Any], tmp_path: Path, refused: Callable[..., str]
) -> None:
    made = small_export("embedding")
    model = onnx.load(made.files[1])
    next(entry for entry in model.metadata_props if entry.key == "ptq4vit_onnx.output_kind").value = "boxes"
    onnx.save(model, tmp_path / "odd.onnx")
    said = refused("eval", tmp_path / "odd.onnx", "--data", made.images)
    assert "returns 'boxes', which this version does not know; expected one of logits, embedding, features" in said
