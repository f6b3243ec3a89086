"""README.md is short, its links lead somewhere, its commands and calls exist, and its output is what is printed."""

from __future__ import annotations

import ast
import inspect
import re
import shlex
from pathlib import Path

import pytest

import ptq4vit_onnx
from ptq4vit_onnx.cli.main import build_parser, main

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
MOST_WORDS = 900
HISTORY = re.compile(
    r"no longer|used to be|formerly|earlier form|predates|measured when|measured before|"
    r"not (yet measured|measured yet)",
    re.IGNORECASE,
)


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", TEXT, re.DOTALL)


def commands() -> list[str]:
    lines = "".join(blocks("sh")).splitlines()
    return [line for line in lines if line.startswith("ptq4vit-onnx ")]


def test_it_is_read_in_ten_minutes() -> None:
    shown = re.sub(r"<!--.*?-->", "", TEXT, flags=re.DOTALL).replace("|", " ")
    assert len(shown.split()) <= MOST_WORDS


@pytest.mark.parametrize(
    "path", [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))], ids=lambda path: path.stem
)
def test_a_document_tells_what_is_and_not_what_was(path: Path) -> None:
    text = re.sub(r"<!--.*?-->|`[^`\n]+`", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert [found[0] for found in HISTORY.finditer(re.sub(r"```.*?```", "", text, flags=re.DOTALL))] == []


@pytest.mark.parametrize("link", sorted(set(re.findall(r"\]\(([^)#]+)|(?:src|srcset)=\"([^\"]+)\"", TEXT))))
def test_its_links_lead_to_files(link: tuple[str, str]) -> None:
    assert (ROOT / (link[0] or link[1])).exists()


@pytest.mark.parametrize("line", commands())
def test_its_commands_are_the_programs(line: str) -> None:
    arguments = shlex.split(line, comments=True)[1:]
    assert build_parser().parse_args(arguments).command


def test_its_python_calls_what_there_is() -> None:
    calls = [node for block in blocks("python") for node in ast.walk(ast.parse(block)) if isinstance(node, ast.Call)]
    named = {call.func.id: call for call in calls if isinstance(call.func, ast.Name) and call.func.id != "print"}
    named.pop("dict", None)
    assert set(named) == {"export", "evaluate", "check_parity"}
    for name, call in named.items():
        options = {keyword.arg: None for keyword in call.keywords if keyword.arg}
        inspect.signature(getattr(ptq4vit_onnx, name)).bind(*call.args, **options)


def test_the_run_command_prints_what_stands_below_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["export", "--force"]) == 0
    printed = re.sub(r" +", " ", capsys.readouterr().out)
    shown = TEXT.partition("<!-- output of the run command -->")[2].partition("```text\n")[2].partition("```")[0]
    for line in shown.splitlines():
        start = re.sub(r" +", " ", line.removesuffix("..."))
        assert any(item.startswith(start.strip()) for item in printed.splitlines()), f"{line} is not printed"
