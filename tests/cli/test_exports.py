"""`export` of several models: each into its own folder, one that fails stops nobody."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ptq4vit_onnx.cli import main as cli
from ptq4vit_onnx.errors import ParityError, UserError
from ptq4vit_onnx.request import ExportRequest
from ptq4vit_onnx.studies import exports
from ptq4vit_onnx.studies.exports import Exported, gigabytes_of

MODELS = ("vit_digits", "swin_digits", "vit_t", "deit_t", "vit_s", "deit_s")


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """`export`, with exports that only leave a file."""
    monkeypatch.chdir(tmp_path)
    failing: dict[str, Exception] = {}

    def export_one(request: ExportRequest, mark: Path) -> Exported:
        if request.model in failing:
            raise failing[request.model]
        assert mark.exists(), "the folder is seen from here"
        request.folder.mkdir(parents=True)
        (request.folder / "model.onnx").write_text(str(request.checkpoint))
        return Exported([("model", request.model), ("size", "1 MB"), ("time", "2 s")], {"model": request.model})

    monkeypatch.setattr(exports, "export_one", export_one)

    def call(*arguments: str, fails: dict[str, Exception] | None = None) -> int:
        failing.update(fails or {})
        return cli.main(["export", *(part for name in MODELS for part in ("--model", name)), *arguments])

    return call


def test_each_model_has_its_own_folder_and_a_row(
    command: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command() == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(f"{name}_w8a8" for name in MODELS)
    title, *rows = capsys.readouterr().out.splitlines()
    assert title.split() == ["model", "size"] and [row.split()[0] for row in rows] == list(MODELS)


def test_output_is_the_folder_that_theirs_lie_in(command: Callable[..., int], tmp_path: Path) -> None:
    assert command("--output", "all", "--bits", "6") == 0
    assert sorted(path.name for path in (tmp_path / "all").iterdir()) == sorted(f"{name}_w6a6" for name in MODELS)


@pytest.mark.parametrize(
    ("error", "code"),
    [(UserError("its weights are torn"), 2), (ParityError("its weights are torn"), 1), (KeyError("torn"), 3)],
)
def test_one_that_fails_among_six_leaves_five_rows_and_a_line(
    error: Exception, code: int, command: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(fails={"vit_t": error}) == code
    printed = capsys.readouterr()
    assert [row.split()[0] for row in printed.out.splitlines()[1:]] == [name for name in MODELS if name != "vit_t"]
    (line,) = printed.err.splitlines()
    assert line.startswith("ptq4vit-onnx: vit_t was not exported: ") and "torn" in line
    assert not (tmp_path / "vit_t_w8a8").exists()


def test_json_is_a_list_that_says_what_failed(command: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    assert command("--json", fails={"deit_s": UserError("no weights")}) == 2
    found = json.loads(capsys.readouterr().out)
    assert [item["model"] for item in found] == list(MODELS)
    assert found[-1] == {"model": "deit_s", "failed": "no weights"}


def test_checkpoints_are_given_by_name(command: Callable[..., int], tmp_path: Path) -> None:
    assert command("--checkpoint", "vit_t=a=b.pth", "--checkpoint", "deit_t=c.pth") == 0
    assert (tmp_path / "vit_t_w8a8" / "model.onnx").read_text() == "a=b.pth"
    assert (tmp_path / "deit_t_w8a8" / "model.onnx").read_text() == "c.pth"
    assert (tmp_path / "vit_s_w8a8" / "model.onnx").read_text() == "None"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--checkpoint", "a.pth"], "--checkpoint a.pth: with several models, give NAME=FILE; NAME is one of"),
        (["--plan", "plan.json"], "--plan is of one model; export the models one by one"),
        (["--model", "vit_ss"], "no model named 'vit_ss'"),
        (["--output", "file"], "cannot write"),
        (["--jobs", "0"], "expected a whole number of at least 1, got 0"),
        (["--ray", "nowhere"], "no Ray address: 'nowhere'; expected auto, local, ray://HOST:PORT or HOST:PORT"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_is_one_line_before_any_export(
    arguments: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Callable[..., str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("mine")
    assert said in refused("export", "--model", "vit_digits", "--model", "swin_digits", *arguments)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_folder_that_is_taken_is_refused_before_any_export(
    command: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "deit_s_w8a8").mkdir()
    (tmp_path / "deit_s_w8a8" / "model.onnx").write_text("mine")
    assert command() == 2
    assert "output folder deit_s_w8a8 exists" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["deit_s_w8a8"]


def test_an_export_where_the_folder_is_not_seen_comes_back_whole(
    tmp_path: Path, quick_spine: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a machine that has no disk in common with the caller's."""
    from ptq4vit_onnx.plan.options import Options
    from ptq4vit_onnx.progress import silent
    from ptq4vit_onnx.tasks.one_by_one import OneByOne

    options = Options(candidates=3, images=4, metric="mse")
    near = ExportRequest("vit_digits", options, tmp_path / "near")
    far = ExportRequest("vit_digits", options, tmp_path / "far")

    @contextmanager
    def unseen(folders: list[Path]) -> Iterator[list[Path]]:
        yield [folder / "not here" for folder in folders]

    (done,) = exports.export_all([near], OneByOne(), silent)
    monkeypatch.setattr(exports, "marked", unseen)
    (done,) = exports.export_all([far], OneByOne(), silent)
    assert done.failure is None and not done.result.files
    for name in ("model.onnx", "float.onnx", "plan.json"):
        assert (far.folder / name).read_bytes() == (near.folder / name).read_bytes()
    texts = (far.folder / "report.json").read_text() + (far.folder / "report.html").read_text() + str(done.result.rows)
    assert "ptq4vit_onnx_" not in texts, "no place of the other machine is named"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["far", "near"]


def test_a_folder_that_appears_meanwhile_costs_that_export_alone(
    command: Callable[..., int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def export_one(request: ExportRequest, _mark: Path) -> Exported:
        if request.model == "vit_t":
            request.folder.mkdir()
            (request.folder / "model.onnx").write_text("somebody's")
        return Exported([("model", request.model)], {}, {"model.onnx": b"of a worker"})

    monkeypatch.setattr(exports, "export_one", export_one)
    assert command() == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("ptq4vit-onnx: vit_t was not exported: output folder vit_t_w8a8 exists")
    written = {path.parent.name: path.read_text() for path in tmp_path.glob("*/model.onnx")}
    assert written == {f"{name}_w8a8": "somebody's" if name == "vit_t" else "of a worker" for name in MODELS}


def test_larger_models_ask_for_more() -> None:
    from ptq4vit_onnx.model_loading.load import resolve
    from ptq4vit_onnx.models.specs import find

    def asked(name: str, images: int = 32) -> float:
        spec = find(name)
        return gigabytes_of(resolve(name) if spec is None else spec, images)

    order = [asked(name) for name in ("vit_digits", "vit_t", "deit_s", "deit_b", "swin_b_384")]
    assert order == sorted(order) and np.diff(order).min() > 0
    assert 5.5 < asked("swin_b_384") < 8, "5.5 GB were measured"
    assert asked("deit_b", 128) > asked("deit_b")


def test_what_a_program_reads_of_a_single_export_is_as_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[Any] = []

    def export(request: ExportRequest, _progress: Any) -> Any:
        seen.append(request)
        raise UserError("far enough")

    monkeypatch.setattr("ptq4vit_onnx.pipeline.export", export)
    monkeypatch.chdir(tmp_path)
    assert cli.main(["export", "--checkpoint", "a=b.pth", "--output", "out"]) == 2
    assert (seen[0].model, seen[0].checkpoint, seen[0].folder) == ("vit_digits", Path("a=b.pth"), Path("out"))
