"""`evaluate` on shards gives the figures of one run, to the last bit."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from ptq4vit_onnx import evaluate
from ptq4vit_onnx.cli import main as cli
from ptq4vit_onnx.errors import UserError
from ptq4vit_onnx.images import stream
from ptq4vit_onnx.tasks.one_by_one import OneByOne


@pytest.fixture
def few_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "AT_ONCE", 5)


@pytest.fixture
def files(exported: Path) -> list[Path]:
    return [exported / "float.onnx", exported / "model.onnx"]


def test_figures_of_shards_are_those_of_one_run(files: list[Path], digit_files: Path, few_at_once: None) -> None:
    tasks = OneByOne()
    assert evaluate(files, digit_files, tasks=tasks).to_data() == evaluate(files, digit_files).to_data()


def test_figures_of_the_embedded_images_are_as_well(files: list[Path], few_at_once: None) -> None:
    alone, shared = evaluate(files, images=23), evaluate(files, images=23, tasks=OneByOne())
    assert alone.to_data() == shared.to_data() and alone.measured_on == shared.measured_on


def test_damaged_images_change_nothing_in_that(
    files: list[Path], digit_files: Path, tmp_path: Path, few_at_once: None
) -> None:
    folder = Path(shutil.copytree(digit_files, tmp_path / "damaged"))
    for number in (*range(5), 11):  # a whole chunk among them
        (folder / f"{number:02}.png").write_bytes(b"no image")
    alone = evaluate(files, folder, skip_unreadable=True)
    shared = evaluate(files, folder, skip_unreadable=True, tasks=OneByOne())
    assert alone.to_data() == shared.to_data() and alone.models[0].skipped == 6
    with pytest.raises(UserError, match="cannot read 6 images"):
        evaluate(files, folder, tasks=OneByOne())


def test_the_command_prints_the_same_with_jobs_and_who_did_what_beside_it(
    files: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The only one with real processes: 64 images at once, so 130 make three shards."""
    from ptq4vit_onnx.models.specs import DIGITS_FOLDER

    with np.load(DIGITS_FOLDER / "digits.npz", allow_pickle=False) as data:
        images = np.resize(data["images"], (130, 32, 32)).astype(np.float32)[:, None] / 16
    np.savez(tmp_path / "images.npz", images=images, labels=np.arange(130) % 10)
    command = ["eval", *map(str, files), "--data", str(tmp_path / "images.npz"), "--json"]
    assert cli.main(command) == 0
    alone = capsys.readouterr()
    assert cli.main([*command, "--jobs", "2"]) == 0
    shared = capsys.readouterr()
    assert shared.out == alone.out and alone.err == ""
    title, *workers = shared.err.strip().splitlines()
    assert title.split() == ["machine", "process", "tasks", "seconds", "failed", "tried", "again"]
    assert sum(int(line.split()[2]) for line in workers) == 3
