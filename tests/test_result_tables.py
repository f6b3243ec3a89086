"""Tables and pictures of README and docs say what benchmarks/results says."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks.measured_code import fingerprints
from tools import result_pictures, result_tables

ROW = {"family": "A", "model": "a", "remark": "", "output": "logits", "sites": 3, "integer products": 3, "products": 3,
       "exact": 3, "checked": 3, "identical percent": 100.0, "seconds": 7}  # fmt: skip


@pytest.mark.parametrize("path", result_tables.DOCUMENTS, ids=lambda path: path.stem)
def test_every_table_is_what_its_results_say(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert result_tables.written(text) == text, "run python tools/result_tables.py"


def test_a_number_that_was_changed_by_hand_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = {"commit": "c0ffee", "date": "2026-01-01", "machine": "one", "versions": {"onnxruntime": "1"}, "rows": [ROW]}
    (tmp_path / "families.json").write_text(json.dumps(data))
    monkeypatch.setattr(result_tables, "RESULTS", tmp_path)
    text = result_tables.written("above\n<!-- results: families -->\n<!-- end of results -->\nbelow")
    assert "| A | `a` | logits | 3 | 3 of 3 | 3 of 3 | 100 % | 7 |" in text
    assert text.startswith("above\n") and text.endswith("\nbelow")
    assert result_tables.written(text) == text
    assert result_tables.written(text.replace("100 %", "99 %")) == text


def test_results_name_the_commit_the_date_and_the_machine() -> None:
    for path in result_tables.RESULTS.glob("*.json"):
        data = json.loads(path.read_text(encoding="utf-8"))
        assert data["commit"] and data["date"] and data["machine"] and data["versions"], path.name
        assert data["rows"], path.name


def test_every_results_file_stands_in_a_table_or_a_sentence() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in result_tables.DOCUMENTS)
    names = {path.stem for path in result_tables.RESULTS.glob("*.json")}
    assert {name for name in names if name not in text} == set()


def test_results_older_than_their_code_are_named() -> None:
    """They fail nothing: whoever changes code cannot measure everything again. A release does (docs/releasing.md)."""
    for name, rooms in result_tables.older().items():
        warnings.warn(f"{name}.json is older than the code it measures: {', '.join(rooms)}", stacklevel=1)


def test_a_room_that_has_changed_makes_its_results_older(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = fingerprints()
    data = {"commit": "c0ffee", "rows": [{}], "code": {"c0ffee": known}}
    monkeypatch.setattr(result_tables, "RESULTS", tmp_path)
    (tmp_path / "speed_vnni.json").write_text(json.dumps(data))
    assert result_tables.older() == {}
    data["code"] = {"c0ffee": known | {"passes": "another", "tasks": "another"}}
    (tmp_path / "speed_vnni.json").write_text(json.dumps(data))
    assert result_tables.older() == {"speed_vnni": ["passes"]}, "rooms that do not decide a figure do not count"


def test_a_row_of_another_day_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [ROW, {**ROW, "commit": "beef", "date": "2026-02-03"}]
    data = {"commit": "c0ffee", "date": "2026-01-01", "machine": "one", "versions": {"onnxruntime": "1"}, "rows": rows}
    (tmp_path / "families.json").write_text(json.dumps(data))
    monkeypatch.setattr(result_tables, "RESULTS", tmp_path)
    text = result_tables.written("<!-- results: families -->\n<!-- end of results -->")
    assert "2026-01-01 to 2026-02-03, commit beef, c0ffee, one, ONNX Runtime 1." in text


def test_pictures_are_what_their_results_say() -> None:
    assert result_pictures.stale(result_pictures.pictures()) == [], "run python tools/result_pictures.py"


@pytest.mark.parametrize("name", sorted(result_pictures.pictures()))
def test_a_picture_is_well_formed_and_says_what_it_shows(name: str) -> None:
    root = ElementTree.fromstring(result_pictures.pictures()[name])
    described = root.find("{http://www.w3.org/2000/svg}desc")
    assert described is not None and described.text and " MB at KL " in described.text


def test_a_mark_lies_where_its_row_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    base = {"model": "vit_t", "title": "a", "size": 3_000_000, "kl": 0.1, "group": "single"}
    both = [base, {**base, "model": "deit_t"}, {**base, "title": "b", "size": 6_000_000, "kl": 0.01}]
    (tmp_path / "budgets.json").write_text(json.dumps({"rows": [*both, {**both[1], "title": "c", "size": 4_000_000}]}))
    peer = {"model": "vit_t", "tool": "NNCF", "seed": 0, "mb": 6.5, "kl": 0.02, "failure": ""}
    others = [{**peer, "tool": "ptq4vit-onnx"}, {**peer, "seed": 1, "kl": 0.5}, {**peer, "failure": "why", "kl": None}]
    (tmp_path / "peers.json").write_text(json.dumps({"rows": [peer, *others]}))
    monkeypatch.setattr(result_pictures, "RESULTS", tmp_path)
    drawn = result_pictures.pictures()["pareto-vit_t-light.svg"]
    assert "a: 3.00 MB, KL from the float model, nats 0.1" in drawn
    assert "NNCF: 6.50 MB, KL from the float model, nats 0.02" in drawn
    assert drawn.count("<title>NNCF: ") == 1, "one seed, of those that worked"
    assert "ptq4vit-onnx: " not in drawn, "our own files are those of budgets.json"
