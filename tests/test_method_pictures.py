"""The pictures of docs/method.md say what benchmarks/results says, and are drawn from it alone."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tools import method_pictures

PAGE = method_pictures.ROOT / "docs" / "method.md"


def test_every_picture_is_what_its_results_say() -> None:
    assert method_pictures.stale() == {}, "run python tools/method_pictures.py"


def test_the_page_shows_every_picture_in_both_themes_and_no_other() -> None:
    shown = re.findall(r"\(pictures/(method-\w+)-(light|dark)\.svg#only-(\w+)\)", PAGE.read_text(encoding="utf-8"))
    assert all(theme == only for _, theme, only in shown)
    assert {f"{name}-{theme}.svg" for name, theme, _ in shown} == set(method_pictures.drawn())
    assert {path.name for path in method_pictures.FOLDER.glob("method-*")} == set(method_pictures.drawn())


@pytest.mark.parametrize("name", sorted(method_pictures.drawn()))
def test_pictures_are_whole_load_nothing_and_hide_nothing_beyond_their_borders(name: str) -> None:
    text = method_pictures.drawn()[name]
    root = ElementTree.fromstring(text)
    width, height = map(float, root.attrib["viewBox"].split()[2:])
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")
    for item in root.iter("{http://www.w3.org/2000/svg}text"):
        assert 0 <= float(item.attrib["x"]) <= width and 0 <= float(item.attrib["y"]) <= height, item.text
    circles = list(root.iter("{http://www.w3.org/2000/svg}circle"))
    assert all(0 <= float(item.attrib["cx"]) <= width and 0 <= float(item.attrib["cy"]) <= height for item in circles)


@pytest.fixture
def redrawn(tmp_path: Path) -> Callable[[Callable[[list[dict[str, Any]]], None]], set[str]]:
    """The files that differ once the rows of the results are changed by a function."""

    def differing(change: Callable[[list[dict[str, Any]]], None]) -> set[str]:
        data = json.loads(method_pictures.RESULTS.read_text(encoding="utf-8"))
        change(data["rows"])
        path = tmp_path / "changed.json"
        path.write_text(json.dumps(data), encoding="utf-8")
        before, after = method_pictures.drawn(), method_pictures.drawn(path)
        return {name for name in before if before[name] != after[name]}

    return differing


def test_a_cost_that_was_changed_changes_its_picture(redrawn: Callable[..., set[str]]) -> None:
    def dearer(rows: list[dict[str, Any]]) -> None:
        row = next(row for row in rows if row.get("source") == "gelu")
        row["forms"][0]["kl"] *= 2

    assert redrawn(dearer) == {"method-gelu-light.svg", "method-gelu-dark.svg"}


def test_a_point_outside_a_panel_is_not_drawn() -> None:
    evenly = method_pictures.Scale(0.0, 2.0, 10.0, 30.0)
    assert [method_pictures.mark_of(value, evenly) for value in (-0.5, 0.0, 1.0, 2.5)] == [None, 10.0, 20.0, None]
    by_logarithm = method_pictures.Scale(0.01, 1.0, 10.0, 30.0, log=True)
    assert [method_pictures.mark_of(value, by_logarithm) for value in (0.0, 0.1, -0.5)] == [10.0, 20.0, None]
