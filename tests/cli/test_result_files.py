"""The files that `parity` writes for CI: what they hold, where they may go, and that they are whole or not there."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from ptq4vit_onnx import api
from ptq4vit_onnx.cli import main as cli
from ptq4vit_onnx.proof.parity_result import Check, ParityResult

CHECKS = ["plan", "graph", "kernels", "saturation", "sites", "agreement", "kl", "drop"]


@pytest.fixture
def files(exported: Path, digit_files: Path) -> list[Any]:
    """model, its reference, and images with labels"""
    return [exported / "model.onnx", "--reference", exported / "float.onnx", "--data", digit_files]


def printed(capsys: pytest.CaptureFixture[str], code: int, *arguments: Any) -> str:
    """What `parity` prints, given that it exits with `code`."""
    assert cli.main(["parity", "--threads", "1", *map(str, arguments)]) == code
    return capsys.readouterr().out


def test_junit_and_json_hold_every_check(files: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outputs = ["--junit", tmp_path / "parity.xml", "--json", tmp_path / "parity.json"]
    printed(capsys, 1, *files, *outputs, "--max-kl", "0")
    suite = ElementTree.parse(tmp_path / "parity.xml").getroot()
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("8", "1", "0")
    assert [case.get("name") for case in suite.iter("testcase")] == CHECKS
    (failure,) = suite.iter("failure")
    assert "KL" in (failure.get("message") or "")
    assert failure.text == "no divergent site was found"
    data = json.loads((tmp_path / "parity.json").read_text())
    assert data["passed"] is False
    assert [check["name"] for check in data["checks"]] == CHECKS
    assert data["checks"][6]["limit"] == 0
    assert data["images"] == 24
    assert sorted(path.name for path in tmp_path.iterdir()) == ["parity.json", "parity.xml"]


def test_junit_is_well_formed_whatever_a_path_holds() -> None:
    odd = "models/\x1b[31m\x00\ud800\ufffe<é>.onnx"
    checks = [Check(status, status, f"in {odd}", odd) for status in ("passed", "failed", "skipped")]
    result = ParityResult(odd, odd, 1, tuple(checks))
    suite = ElementTree.fromstring(result.to_junit().encode())
    shown = r"models/\x1b[31m\x00\xd800\xfffe<é>.onnx"
    assert {case.get("classname") for case in suite.iter("testcase")} == {shown}
    assert suite.findtext(".//failure") == f"first divergent site: {shown}"
    assert suite.findtext(".//system-out") == f"in {shown}"


def test_skipped_images_are_counted_in_the_result(
    files: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(files[4], tmp_path / "digits")
    (tmp_path / "digits" / "07.png").unlink()
    given = [*files[:4], tmp_path / "digits", "--skip-unreadable", "--json", "-"]
    data = json.loads(printed(capsys, 0, *given))
    assert (data["images"], data["skipped"]) == (23, 1)


def test_a_result_that_cannot_be_written_is_one_line_before_any_work(
    files: list[Any], tmp_path: Path, refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "check_parity", None)
    absent = tmp_path / "absent" / "parity.xml"
    message = refused("parity", *files, "--json", tmp_path / "parity.json", "--junit", absent)
    assert f"cannot write {absent}: there is no folder {absent.parent}; make it or give another --junit" in message
    assert "it is a folder; give another --json" in refused("parity", *files, "--json", tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("option", "name"),
    [("--json", "model.onnx"), ("--junit", "float.onnx"), ("--json", "plan.json"), ("--json", "link"), ("--json", "x")],
)
def test_a_result_never_replaces_an_input_or_the_other_result(
    option: str, name: str, files: list[Any], tmp_path: Path, refused: Callable[..., str]
) -> None:
    for file in ("model.onnx", "float.onnx", "plan.json"):
        shutil.copy(files[0].with_name(file), tmp_path)
    (tmp_path / "link").symlink_to(tmp_path / "float.onnx")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    given = [tmp_path / "model.onnx", "--reference", tmp_path / "float.onnx", *files[3:]]
    results = [option, tmp_path / name, *(["--junit", tmp_path / "sub" / ".." / "x"] if name == "x" else [])]
    message = refused("parity", *given, *results)
    expected = {"model.onnx": "MODEL", "float.onnx": "--reference", "link": "--reference", "plan.json": "the plan"}
    assert f" is {expected.get(name, '--json')} as well; give another" in message
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_dash_prints_the_result_and_nothing_else(
    files: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    refused: Callable[..., str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    few = [*files[:3], "--images", 2]
    assert json.loads(printed(capsys, 0, *few, "--json", "-"))["passed"] is True
    text = printed(capsys, 0, *few, "--junit", "-")
    assert ElementTree.fromstring(text).get("failures") == "0"
    assert "give a file for one of them" in refused("parity", *few, "--json", "-", "--junit", "/dev/fd/1")
    assert list(tmp_path.iterdir()) == []
