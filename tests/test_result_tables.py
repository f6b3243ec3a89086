"""Tables of README and docs say what benchmarks/results says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tools import result_tables

ROW = {"family": "A", "model": "a", "remark": "", "output": "logits", "sites": 3, "integer products": 3, "products": 3,
       "exact": 3, "checked": 3, "identical percent": 100.0, "seconds": 7}  # fmt: skip


@pytest.mark.parametrize("path", result_tables.DOCUMENTS, ids=lambda path: path.name)
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
