"""The reference says what the code does: the page of commands, that of Python and that of files."""

from __future__ import annotations

import inspect
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

import ptq4vit_onnx
from ptq4vit_onnx.cli.main import build_parser
from tools import command_reference

REFERENCE = Path(__file__).resolve().parents[2] / "docs" / "reference"
FUNCTIONS = [name for name in ptq4vit_onnx.__all__ if name != "__version__"]


def read(name: str) -> str:
    return (REFERENCE / name).read_text(encoding="utf-8")


def test_the_page_of_commands_is_up_to_date() -> None:
    assert command_reference.main(["--check"]) == 0, "run python tools/command_reference.py"


def test_an_outdated_page_is_noticed_and_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command_reference, "FILE", tmp_path / "commands.md")
    assert command_reference.main(["--check"]) == 1
    assert "is out of date; run python tools/command_reference.py" in capsys.readouterr().out
    assert command_reference.main([]) == 0 and command_reference.main(["--check"]) == 0


@pytest.mark.parametrize("command", command_reference.EXAMPLES)
def test_the_examples_of_a_command_are_taken_by_its_parser(command: str) -> None:
    for example in command_reference.EXAMPLES[command]:
        program, *arguments = shlex.split(example)
        assert program == "ptq4vit-onnx" and arguments[0] == command
        build_parser().parse_args(arguments)


@pytest.mark.parametrize("command", command_reference.EXAMPLES)
def test_every_option_says_what_it_means(command: str) -> None:
    section = read("commands.md").split(f"\n## {command}\n")[1].split("\n## ")[0]
    rows = [[cell.strip() for cell in line.split(" | ")] for line in section.splitlines() if line.startswith("| `")]
    assert all(len(row) == 3 and row[1] for row in rows), rows


def test_what_stands_in_brackets_behind_the_help_is_what_holds_without_the_option() -> None:
    assert command_reference.divided("images at once (8)") == ("images at once", "8")
    assert command_reference.divided("of (some) images") == ("of (some) images", "")


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_parameter_of_a_function_is_described_and_the_function_is_on_the_page(name: str) -> None:
    function: Any = getattr(ptq4vit_onnx, name)
    described = re.findall(r"^    (\w+): ", inspect.getdoc(function) or "", re.MULTILINE)
    assert set(inspect.signature(function).parameters) <= set(described)
    assert f"::: ptq4vit_onnx.api.{name}\n" in read("python.md")


@pytest.mark.parametrize("file", ["plan", "report"])
def test_every_field_of_a_file_is_explained(file: str) -> None:
    """Each name stands as code in the part of the page that is about the file."""
    part = read("formats.md").split(f"\n## {file}.json\n")[1].split("\n## report.json\n")[0]
    code = re.findall(r"`([^`]+)`", re.sub(r"^```.*?^```$", "", part, flags=re.MULTILINE | re.DOTALL))
    named = {name for text in code for name in (text, *text.split("."))}
    schema = json.loads((REFERENCE.parent / f"{file}.schema.json").read_text(encoding="utf-8"))
    forms = [schema, *schema["$defs"].values()]
    assert {name for form in forms for name in form.get("properties", {})} - named == set()


def test_the_example_of_a_site_is_one() -> None:
    from ptq4vit_onnx.plan.plan_json import parse_named_site

    example = re.search(r"```json\n(.*?)```", read("formats.md"), re.DOTALL)
    assert example is not None
    assert (
        parse_named_site(json.dumps(["blocks.0.mlp.fc2", float32_scales(json.loads(example[1]))]))[1].kind == "linear"
    )


def float32_scales(site: dict[str, Any]) -> dict[str, Any]:
    """The page shortens scales; a plan has float32 values."""
    from ptq4vit_onnx.plan.quantizers import as_float32

    for side in ("lhs", "rhs"):
        site[side]["scale"] = [as_float32(value) for value in site[side]["scale"]]
    return site
