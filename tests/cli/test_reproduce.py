"""`reproduce`: what it refuses in one line, and what it answers without torch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image


@pytest.fixture
def corners(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of things that are not what is asked for."""
    monkeypatch.chdir(tmp_path)
    for name in ("unlabelled", "empty", "foreign", "beyond"):
        (tmp_path / name).mkdir()
    Image.new("L", (8, 8)).save(tmp_path / "unlabelled" / "a.png")
    Image.new("L", (8, 8)).save(tmp_path / "beyond" / "a.png")
    (tmp_path / "beyond" / "labels.csv").write_text("file,index\na.png,10\n")
    (tmp_path / "foreign" / "table1.csv").write_text("a,b\n1,2\n")
    (tmp_path / "file").write_text("mine")
    np.savez(tmp_path / "unlabelled.npz", images=np.zeros((4, 1, 32, 32), np.float32))
    np.save(tmp_path / "unlabelled.npy", np.zeros((4, 1, 32, 32), np.float32))
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["table2", "--data", "DIGITS"], "invalid choice: 'table2'"),
        (["table1"], "the following arguments are required: --data"),
        (["table1", "--data", "absent"], "no images at absent: it does not exist"),
        (["table1", "--data", "empty"], "empty holds no image files"),
        (["table1", "--data", "unlabelled"], "unlabelled has no labels to count hits by"),
        (
            ["table1", "--data", "unlabelled.npz", "--models", "vit_digits"],
            "unlabelled.npz has no labels to count hits",
        ),
        (["table1", "--data", "unlabelled.npy"], "unlabelled.npy has no labels to count hits by"),
        (["table1", "--data", "beyond", "--models", "vit_digits", "--images", "1"], "has labels beyond 0..9"),
        (["table1", "--data", "DIGITS", "--calibration", "absent"], "no images at absent"),
        (
            ["table1", "--data", "DIGITS", "--models", "vit_digits", "--images", "25"],
            "24 readable images, 25 are needed",
        ),
        (["table1", "--data", "DIGITS", "--models", "vit_ss"], "no model named 'vit_ss'; closest are vit_s"),
        (["table1", "--data", "DIGITS", "--checkpoint", "vit_s"], "expected NAME=FILE"),
        (["table1", "--data", "DIGITS", "--checkpoint", "vit_s=absent.pth"], "no checkpoint at absent.pth for vit_s"),
        (["table1", "--data", "DIGITS", "--checkpoint", "vit_t=file"], "vit_t is not asked for"),
        (["table1", "--data", "DIGITS", "--where", "fold"], "expected COLUMN=VALUE"),
        (["table1", "--data", "DIGITS", "--where", "part=3"], "labels.csv has no column 'part'"),
        (["table1", "--data", "unlabelled", "--where", "fold=3"], "--where needs a labels.csv"),
        (["table1", "--data", "DIGITS", "--images", "0"], "expected a whole number of at least 1, got 0"),
        (["table1", "--data", "DIGITS", "--limit", "x"], "expected a whole number of at least 1, got x"),
        (["table1", "--data", "DIGITS", "--seed", "-1"], "seed is -1"),
        (["table1", "--data", "DIGITS", "--engine", "tensorrt"], "invalid choice: 'tensorrt'"),
        (["table1", "--data", "DIGITS", "--out", "file"], "cannot "),
        (["table1", "--data", "DIGITS", "--out", "foreign"], "has other columns than this command writes"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_is_one_line_and_exit_2(
    arguments: list[str], said: str, corners: Path, digit_files: Path, refused: Callable[..., str]
) -> None:
    given = [str(digit_files) if argument == "DIGITS" else argument for argument in arguments]
    assert said in refused("reproduce", *given)
    assert (corners / "file").read_text() == "mine"
    assert not (corners / "reproduce").exists(), "nothing is written before the first row"
    assert (corners / "foreign" / "table1.csv").read_text() == "a,b\n1,2\n"


@pytest.mark.parametrize("arguments", [("--help",), ("table1", "--data", "absent")], ids=" ".join)
def test_help_and_mistakes_answer_without_torch(
    arguments: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer_of: Callable[..., Any]
) -> None:
    monkeypatch.chdir(tmp_path)
    modules = answer_of("reproduce", *arguments).modules
    assert "ptq4vit_onnx.cli.reproduce" in modules
    assert not {"torch", "timm"} & modules
