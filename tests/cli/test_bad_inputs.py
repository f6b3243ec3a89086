"""Inputs that hang, contradict themselves or promise too much: one line and exit code 2, before any work."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from ptq4vit_onnx.api import check_parity
from ptq4vit_onnx.cli import main as cli

Refused = Callable[..., str]


@pytest.fixture
def pipe(tmp_path: Path) -> Callable[[str], Path]:
    """A pipe of this name that nobody writes to: whoever opens it waits for ever."""

    def make(name: str) -> Path:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        os.mkfifo(path)
        return path

    return make


def test_pipes_are_refused_as_plan_model_images_arrays_and_checkpoint(
    pipe: Callable[[str], Path], refused: Refused, exported: Path, tmp_path: Path
) -> None:
    output = ("--output", tmp_path / "out")
    assert "it is a pipe" in refused("export", "--plan", pipe("plan.json"), *output)
    assert "it is a pipe" in refused("export", "--data", pipe("a.npy"), *output)
    assert "it is a pipe" in refused("export", "--data", pipe("a.npz"), *output)
    assert "it is a pipe" in refused("export", "--checkpoint", pipe("a.pth"), *output)
    assert "it is a pipe" in refused("eval", exported / "model.onnx", "--data", pipe("images/a.png").parent)
    model = pipe("model.onnx")
    assert "it is a pipe" in refused("eval", model)
    assert "it is a pipe" in refused("parity", model, "--reference", exported / "float.onnx")
    assert "it is a pipe" in refused("bench", model)


def test_an_output_that_is_not_utf_8_or_a_loop_is_refused_at_once(refused: Refused, tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    assert "is not UTF-8" in refused("export", "--output", os.fsdecode(b"\xff"))
    assert "Too many levels of symbolic links" in refused("export", "--output", tmp_path / "loop")


def with_metadata(exported: Path, folder: Path, **changed: Any) -> Path:
    """The exported model, with fields of its preprocessing changed; `text` stands for all of it."""
    model = onnx.load(str(exported / "model.onnx"))
    for entry in model.metadata_props:
        if entry.key == "ptq4vit_onnx.preprocessing":
            entry.value = changed.get("text") or json.dumps({**json.loads(entry.value), **changed})
    onnx.save(model, folder / "changed.onnx")
    return folder / "changed.onnx"


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"text": "[" * 100_000}, "it is nested too deeply"),
        ({"text": '{"size": 1, "size": 2}'}, "it has the key 'size' twice"),
        ({"text": "null"}, "is no rule for images"),
        ({"size": [1, 8000, 8000]}, r"it prepares images [1, 8000, 8000], the model takes [1, 32, 32]"),
        ({"size": [3, 32, 32]}, r"it prepares images [3, 32, 32], the model takes [1, 32, 32]"),
        ({"size": [16000, 16000, 16000]}, "is not usable"),
        ({"std": [1e-45]}, "expected numbers near 1"),
    ],
)
def test_metadata_that_nobody_can_follow_is_refused_before_images_are_made(
    refused: Refused, exported: Path, tmp_path: Path, changed: dict[str, Any], said: str
) -> None:
    path = with_metadata(exported, tmp_path, **changed)
    assert said in refused("eval", path)
    assert said in refused("parity", path, "--reference", exported / "float.onnx")


def test_parity_reads_models_whose_weights_lie_in_other_files(exported: Path, tmp_path: Path) -> None:
    for name in ("model", "float"):
        onnx.save(
            onnx.load(str(exported / f"{name}.onnx")), tmp_path / f"{name}.onnx", save_as_external_data=True,
            location=f"{name}.bin",
        )  # fmt: skip
    found = check_parity(tmp_path / "model.onnx", tmp_path / "float.onnx", plan=exported / "plan.json", images=8)
    assert found.passed


@pytest.mark.parametrize("location", ["absent.bin", "../float.bin", "/dev/zero", ""])
def test_weights_that_do_not_lie_beside_their_model_are_refused(
    refused: Refused, exported: Path, tmp_path: Path, location: str
) -> None:
    model = onnx.load(str(exported / "model.onnx"))
    tensor = max(model.graph.initializer, key=lambda item: len(item.raw_data))
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    refused("parity", tmp_path / "model.onnx", "--reference", exported / "float.onnx", "--images", 8)


def test_a_negative_scale_fails_parity_in_words(
    exported: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = onnx.load(str(exported / "model.onnx"))
    scale = next(item for item in model.graph.initializer if item.name == "blocks.0.mlp.fc1/weight/scale")
    scale.raw_data = (-np.frombuffer(scale.raw_data, np.float32)).tobytes()
    onnx.save(model, tmp_path / "model.onnx")
    command = ["parity", str(tmp_path / "model.onnx"), "--reference", str(exported / "float.onnx"), "--images", "8"]
    assert cli.main([*command, "--plan", str(exported / "plan.json")]) == 1
    assert cli.main(command) == 1
    assert capsys.readouterr().err == ""


def test_an_image_of_too_many_pixels_is_named(refused: Refused, exported: Path, tmp_path: Path) -> None:
    from PIL import Image

    (tmp_path / "images").mkdir()
    Image.new("1", (9000, 9000)).save(tmp_path / "images" / "a.png")
    said = refused("eval", exported / "model.onnx", "--data", tmp_path / "images")
    assert "it has 9000 x 9000 pixels, expected at most 67108864" in said
