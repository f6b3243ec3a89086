"""The files around a release agree with each other and with the code: version, citation, changes, hooks, templates."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import pytest

from ptq4vit_onnx import __version__

ROOT = Path(__file__).resolve().parent.parent
TEMPLATES = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("[0-9]-*.yml"))


def read(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def parsed(path: Path) -> Any:
    yaml: Any = importlib.import_module("yaml")  # a dependency of timm; it has no types
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def test_every_file_names_the_same_version() -> None:
    assert re.findall(r'^version = "(.*)"$', read("pyproject.toml"), re.MULTILINE) == [__version__]
    assert str(parsed(ROOT / "CITATION.cff")["version"]) == __version__


def test_the_newest_change_is_this_version_with_the_date_of_the_citation() -> None:
    version, date = re.findall(r"^## \[(.*)\] - (\d{4}-\d\d-\d\d)$", read("CHANGELOG.md"), re.MULTILINE)[0]
    assert (version, date) == (__version__, parsed(ROOT / "CITATION.cff")["date-released"])


def test_the_citation_names_the_paper() -> None:
    (paper,) = parsed(ROOT / "CITATION.cff")["references"]
    assert paper["title"].startswith("PTQ4ViT:")
    assert [author["family-names"] for author in paper["authors"]] == ["Yuan", "Xue", "Chen", "Wu", "Sun"]


def test_the_hooks_are_the_checks_of_the_readme_in_the_versions_of_the_environment() -> None:
    (repository,) = parsed(ROOT / ".pre-commit-config.yaml")["repos"]
    assert repository["repo"] == "local"
    hooks = repository["hooks"]
    assert {(hook["language"], hook["pass_filenames"]) for hook in hooks} == {("system", False)}
    (block,) = re.findall(r"<!-- test command -->\n```sh\n(.*?)```", read("README.md"), re.DOTALL)
    checks = re.findall(r"\.venv/bin/((?:ruff|mypy)[^&\\\n]*)", block)
    assert len(checks) == 3 and {check.strip() for check in checks} <= {hook["entry"] for hook in hooks}


def test_the_hooks_run_scripts_that_exist() -> None:
    (repository,) = parsed(ROOT / ".pre-commit-config.yaml")["repos"]
    scripts = [word for hook in repository["hooks"] for word in hook["entry"].split() if word.endswith(".py")]
    assert len(scripts) > 2 and all((ROOT / script).is_file() for script in scripts)


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.stem)
def test_an_issue_form_asks_for_what_can_be_answered(path: Path) -> None:
    """Every question has an id of its own and a label, and every form asks for the version as the tool prints it."""
    form = parsed(path)
    assert form["name"] and form["description"] and form["labels"]
    questions = [part for part in form["body"] if part["type"] != "markdown"]
    assert {part["type"] for part in questions} <= {"textarea", "input"}
    assert all(part["attributes"]["label"] for part in questions)
    assert len({part["id"] for part in questions}) == len(questions)
    assert "`ptq4vit-onnx --version`" in path.read_text(encoding="utf-8")


def test_there_is_a_form_for_each_kind_of_issue() -> None:
    assert [path.stem for path in TEMPLATES] == ["1-defect", "2-accuracy", "3-model", "4-wish"]
