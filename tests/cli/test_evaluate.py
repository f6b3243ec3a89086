"""`eval`: what it counts, what it prints, and what it refuses in one line."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from ptq4vit_onnx.cli import main as cli
from ptq4vit_onnx.evaluation import predict as evaluation
from ptq4vit_onnx.graph.model_file import read_model_file
from ptq4vit_onnx.images.loading import load_images, pick
from ptq4vit_onnx.images.stream import AT_ONCE, ImageSource, open_images
from ptq4vit_onnx.output_kinds import metrics
from ptq4vit_onnx.runtime.session import run

FIELDS = {"path", "images", "top1", "top5", "agreement", "kl", "drop", "drop_error", "skipped"}


def evaluated(capsys: pytest.CaptureFixture[str], *arguments: Any) -> list[dict[str, Any]]:
    """The models of `eval --json`; nothing else may be printed on standard output."""
    assert cli.main(["eval", "--json", "--threads", "1", *map(str, arguments)]) == 0
    data = json.loads(capsys.readouterr().out)
    assert list(data) == ["models", "measured_on", "kind", "engine"] and data["measured_on"] is None
    assert all(set(model) == FIELDS for model in data["models"])
    return list(data["models"])


def without_metadata(path: Path, out: Path, key: str = "", value: str | None = None) -> Path:
    """A copy of a model whose metadata entry `key` is changed, or gone; all of them without a key."""
    model = onnx.load(path)
    kept = [(entry.key, entry.value) for entry in model.metadata_props if key and entry.key != key]
    del model.metadata_props[:]
    for name, text in [*kept, *([(key, value)] if value is not None else [])]:
        model.metadata_props.add(key=name, value=text)
    onnx.save(model, out)
    return out


def test_the_figures_are_those_of_the_logits(
    exported: Path, digit_files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [exported / "float.onnx", exported / "model.onnx"]
    first, second = evaluated(capsys, *paths, "--data", digit_files)
    images = load_images(digit_files, read_model_file(paths[0]).preprocessing)
    wanted, logits = (run(path, images.images) for path in paths)
    assert images.labels is not None
    assert [first["path"], second["path"]] == [str(path) for path in paths]
    assert first["images"] == second["images"] == 24
    assert first["top1"] == metrics.top1(wanted, images.labels) > 90
    assert second["top1"] == metrics.top1(logits, images.labels)
    assert second["top5"] == metrics.top5(logits, images.labels)
    assert second["drop"] == first["top1"] - second["top1"]
    assert second["agreement"] == metrics.agreement(logits, wanted)
    assert second["kl"] == pytest.approx(metrics.mean_kl(wanted, logits), rel=1e-5)
    assert [first[name] for name in ("agreement", "kl", "drop")] == [None, None, None]


def test_a_reference_that_is_not_a_model_is_compared_with_and_not_listed(
    exported: Path, digit_files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = (exported / "model.onnx", "--reference", exported / "float.onnx", "--data", digit_files)
    (only,) = evaluated(capsys, *arguments)
    assert only["path"] == str(exported / "model.onnx")
    assert only["kl"] > 0
    assert cli.main(["eval", *map(str, arguments)]) == 0
    table = capsys.readouterr().out.splitlines()
    assert len(table) == 3
    assert "float.onnx" in table[1]
    assert "reference" in table[1]


def test_without_labels_there_is_agreement_only(
    exported: Path, digit_files: Path, tmp_path: Path, refused: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(digit_files / "00.png", tmp_path)
    arguments = (exported / "model.onnx", "--data", tmp_path)
    (only,) = evaluated(capsys, *arguments, "--reference", exported / "float.onnx")
    assert only["agreement"] == 100.0
    assert [only[name] for name in ("top1", "top5", "drop")] == [None, None, None]
    assert "has no labels, and nothing to compare" in refused("eval", *arguments)


def test_the_embedded_model_brings_its_own_images(exported: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (only,) = evaluated(capsys, exported / "model.onnx", "--images", 40)
    assert only["images"] == 40
    assert only["top1"] > 90


def test_where_keeps_the_rows_asked_for(
    exported: Path, digit_files: Path, refused: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    model = exported / "model.onnx"
    assert evaluated(capsys, model, "--data", digit_files, "--where", "fold=2")[0]["images"] == 8
    for where, said in {
        "fold=9": "none of its 24 rows is asked for",
        "year=1": "no column 'year' for --where; its columns are file, index, fold",
        "fold": "expected COLUMN=VALUE",
    }.items():
        assert said in refused("eval", model, "--data", digit_files, "--where", where)
    assert "--where needs a labels.csv" in refused("eval", model, "--where", "fold=2")


@pytest.fixture
def damaged(digit_files: Path, tmp_path: Path) -> Path:
    """The digits, one of them corrupt and one gone."""
    folder = tmp_path / "digits"
    shutil.copytree(digit_files, folder)
    (folder / "02.png").write_bytes(b"\x89PNG but not really")
    (folder / "07.png").unlink()
    return folder


@pytest.mark.parametrize("command", ["eval", "parity"])
def test_corrupt_and_missing_images_are_refused_before_a_figure_is_made_of_the_others(
    command: str, exported: Path, damaged: Path, refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ptq4vit_onnx.images.stream.AT_ONCE", 5)
    run_on: list[Any] = []
    monkeypatch.setattr(evaluation, "run_all", lambda *given: run_on.append(given))
    model = [exported / "model.onnx", "--reference", exported / "float.onnx"]
    message = refused(command, *model, "--data", damaged)
    assert f"cannot read 2 images, the first is {damaged / '02.png'}: " in message
    assert message.endswith("mend them, or give --skip-unreadable to do without them\n")
    assert run_on == [], "nothing is computed once it is known to be in vain"


def test_a_pick_that_meets_no_damaged_image_is_measured(
    exported: Path, damaged: Path, capsys: pytest.CaptureFixture[str], refused: Callable[..., str]
) -> None:
    model = exported / "model.onnx"
    assert not {2, 7} & set(pick(24, 24, 0)[:4]), "what this test stands on"
    assert evaluated(capsys, model, "--data", damaged, "--images", 4)[0]["images"] == 4
    assert "cannot read 2 images" in refused("eval", model, "--data", damaged, "--images", 24)


def test_corrupt_images_are_skipped_where_asked_for_and_counted_out(
    exported: Path, damaged: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    data = ["--data", damaged, "--skip-unreadable"]
    (only,) = evaluated(capsys, exported / "model.onnx", *data)
    assert (only["images"], only["skipped"]) == (22, 2)
    assert len(caplog.records) == 1
    assert "skipped 2 unreadable images, the first is" in caplog.text


def test_a_folder_of_corrupt_images_is_refused_in_one_line(
    exported: Path, tmp_path: Path, refused: Callable[..., str], caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(3):
        (tmp_path / f"{number}.png").write_bytes(b"nothing")
    message = refused("eval", exported / "model.onnx", "--data", tmp_path, "--skip-unreadable")
    assert "0 readable images" in message
    assert "3 could not be read" in message
    assert not caplog.records


def test_an_empty_or_absent_folder_is_refused(exported: Path, tmp_path: Path, refused: Callable[..., str]) -> None:
    model = exported / "model.onnx"
    assert "holds no image files" in refused("eval", model, "--data", tmp_path)
    assert "does not exist" in refused("eval", model, "--data", tmp_path / "absent")


@pytest.mark.parametrize("label", [10, -1])
def test_labels_beyond_the_models_classes_are_refused(
    label: int, exported: Path, digit_files: Path, tmp_path: Path, refused: Callable[..., str]
) -> None:
    folder = tmp_path / "digits"
    shutil.copytree(digit_files, folder)
    text = (folder / "labels.csv").read_text().splitlines()
    text[-1] = f"23.png,{label},2"
    (folder / "labels.csv").write_text("\n".join(text))
    message = refused("eval", exported / "model.onnx", "--data", folder)
    assert f"has the label {label}" in message
    assert "classes 0..9" in message


def test_a_model_whose_logits_are_not_finite_is_refused(
    exported: Path, digit_files: Path, tmp_path: Path, refused: Callable[..., str]
) -> None:
    model = onnx.load(exported / "model.onnx")
    bias = next(node for node in model.graph.node if node.name == "head/Add").input[1]
    held = next(tensor for tensor in model.graph.initializer if tensor.name == bias)
    held.CopyFrom(onnx.numpy_helper.from_array(np.nan * onnx.numpy_helper.to_array(held), bias))
    wrong = tmp_path / "wrong.onnx"
    onnx.save(model, wrong)
    for models in ([wrong], [exported / "float.onnx", wrong], [wrong, exported / "float.onnx"]):
        message = refused("eval", *models, "--data", digit_files)
        assert f"logits of {wrong} are not finite on 24 of 24 images" in message


def test_a_model_without_metadata_is_refused(
    exported: Path, digit_files: Path, tmp_path: Path, refused: Callable[..., str]
) -> None:
    path = without_metadata(exported / "model.onnx", tmp_path / "bare.onnx")
    message = refused("eval", path, "--data", digit_files)
    assert "does not say how its images are prepared" in message
    assert "give a file that ptq4vit-onnx export has written" in message


def test_unusable_metadata_is_refused(exported: Path, tmp_path: Path, refused: Callable[..., str]) -> None:
    key = "ptq4vit_onnx.preprocessing"
    rule = json.loads(
        next(entry.value for entry in onnx.load(exported / "model.onnx").metadata_props if entry.key == key)
    )
    odd = [{**rule, "crop_pct": 0}, {**rule, "std": [0]}, {**rule, "size": [1, float("inf"), 32]}]
    for value in ("{}", "not JSON", '{"size": 3}', *map(json.dumps, odd)):
        path = without_metadata(exported / "model.onnx", tmp_path / "odd.onnx", key, value)
        assert "unusable metadata ptq4vit_onnx.preprocessing" in refused("eval", path)


def test_files_that_are_no_models_are_refused(tmp_path: Path, refused: Callable[..., str]) -> None:
    (tmp_path / "text.onnx").write_text("hello")
    assert "is not an ONNX file" in refused("eval", tmp_path / "text.onnx")
    assert "No such file" in refused("eval", tmp_path / "absent.onnx")


def test_a_reference_of_another_model_is_refused(exported: Path, tmp_path: Path, refused: Callable[..., str]) -> None:
    path = without_metadata(exported / "float.onnx", tmp_path / "float.onnx", "ptq4vit_onnx.model", "deit_t")
    message = refused("eval", exported / "model.onnx", "--reference", path)
    assert "is deit_t, but" in message
    assert "give the float.onnx of the same export" in message


def test_images_come_in_chunks_and_lose_nothing(exported: Path, digit_files: Path, tmp_path: Path) -> None:
    model = read_model_file(exported / "model.onnx")
    rows = ["file,index"]
    for number in range(AT_ONCE + 6):
        shutil.copy(digit_files / f"{number % 24:02}.png", tmp_path / f"{number}.png")
        rows.append(f"{number}.png,{number % 10}")
    (tmp_path / "labels.csv").write_text("\n".join(rows))
    stream = open_images(ImageSource(tmp_path), model.model, model.preprocessing, lambda items, _title: items)
    chunks = list(stream.chunks)
    whole = load_images(tmp_path, model.preprocessing)
    assert [len(chunk) for chunk in chunks] == [AT_ONCE, 6]
    assert whole.labels is not None
    assert np.array_equal(np.concatenate([chunk.images for chunk in chunks]), whole.images)
    labels = [chunk.labels for chunk in chunks if chunk.labels is not None]
    assert np.array_equal(np.concatenate(labels), whole.labels)


def test_eval_and_parity_never_import_torch(exported: Path, answer_of: Callable[..., Any]) -> None:
    arguments = (exported / "model.onnx", "--reference", exported / "float.onnx", "--images", 4, "--threads", 1)
    for command in ("eval", "parity"):
        answer = answer_of(command, *arguments)
        assert (answer.code, {"torch", "timm"} & answer.modules) == (0, set()), answer.error
