"""The published schema: it is up to date, plans fit it, and what has another shape does not."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ptq4vit_onnx.plan.plan_json import plain
from ptq4vit_onnx.plan.scale_plan import ScalePlan
from tools import plan_schema

ROOT = Path(__file__).resolve().parents[2]
TYPES: dict[str, type | tuple[type, ...]] = {
    "object": dict, "array": list, "string": str, "integer": int, "number": (int, float), "null": type(None),
}  # fmt: skip


@pytest.fixture
def fits() -> Callable[[object], bool]:
    """Whether data has the shape that docs/plan.schema.json describes."""
    whole: dict[str, Any] = json.loads((ROOT / "docs" / "plan.schema.json").read_text(encoding="utf-8"))
    return lambda data: _fits(whole, data, whole["$defs"])


def _fits(schema: dict[str, Any], data: Any, known: dict[str, Any]) -> bool:
    """Of JSON schema, what ours uses."""
    if "$ref" in schema:
        return _fits(known[schema["$ref"].removeprefix("#/$defs/")], data, known)
    choices = schema.get("oneOf") or schema.get("anyOf")
    if choices:
        return sum(_fits(choice, data, known) for choice in choices) == 1
    if not isinstance(data, TYPES[schema["type"]]) or isinstance(data, bool):
        return False
    if data not in schema.get("enum", [data]) or data != schema.get("const", data):
        return False
    if isinstance(data, list):
        return all(_fits(schema["items"], item, known) for item in data)
    if not isinstance(data, dict):
        return True
    named, others = schema.get("properties", {}), schema["additionalProperties"]
    rest = [item for name, item in data.items() if name not in named]
    return (
        set(schema.get("required", [])) <= set(data)
        and all(_fits(named[name], item, known) for name, item in data.items() if name in named)
        and (all(_fits(others, item, known) for item in rest) if isinstance(others, dict) else others or not rest)
    )


def test_the_published_schema_is_up_to_date() -> None:
    assert plan_schema.main(["--check"]) == 0, "run python tools/plan_schema.py"


def test_an_outdated_schema_is_noticed_and_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(plan_schema, "FILE", tmp_path / "plan.schema.json")
    assert plan_schema.main(["--check"]) == 1
    assert "is out of date; run python tools/plan_schema.py" in capsys.readouterr().out
    assert plan_schema.main([]) == 0 and plan_schema.main(["--check"]) == 0


def test_a_plan_fits_the_schema(plan: ScalePlan, fits: Callable[[object], bool]) -> None:
    assert fits(plain(plan))


def test_every_missing_and_every_unknown_field_breaks_the_schema(
    plan: ScalePlan, fits: Callable[[object], bool]
) -> None:
    data = plain(plan)
    free = [data["options"], data["versions"], data["sites"], *(site["losses"] for site in data["sites"].values()),
            *(site["forms"] for site in data["sites"].values())]  # fmt: skip
    for record in (item for item in _objects(data) if not any(item is other for other in free)):
        for name in list(record):
            value = record.pop(name)
            assert not fits(data), f"without {name}"
            record[name] = value
        record["surplus"] = 1
        assert not fits(data), record
        del record["surplus"]
    assert fits(data)


def _objects(data: Any) -> list[dict[str, Any]]:
    inner = data.values() if isinstance(data, dict) else data if isinstance(data, list) else ()
    return [*([data] if isinstance(data, dict) else []), *(found for item in inner for found in _objects(item))]
