"""The published schema of report.json: it is up to date, reports of real exports fit it, and what is shaped otherwise
does not."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

import ptq4vit_onnx
from tests.small_exports import SmallExport
from tools import report_schema

ROOT = Path(__file__).resolve().parents[2]
SCHEMA: dict[str, Any] = json.loads((ROOT / "docs" / "report.schema.json").read_text(encoding="utf-8"))
SCHEMAS = Draft202012Validator(SCHEMA)
KINDS = ("logits", "embedding", "features")
# Their keys are names of sites, options, libraries, operations, passes and stages: any may be there or not.
BY_NAME = frozenset({
    "options", "versions", "float_products", "op_counts", "replay.sites", "twins.sites", "losses", "channels",
    "weight_bits", "seconds", "moved_weights", "passes.products", "operations_before", "operations_after", "places",
    "outputs", "points.bits",
})  # fmt: skip


def mistakes(report: Any) -> list[str]:
    return [f"{'.'.join(map(str, error.path))}: {error.message:.200}" for error in SCHEMAS.iter_errors(report)]


@pytest.fixture(scope="module")
def report_of(
    small_export: Callable[[str], SmallExport], tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., dict[str, Any]]:
    """An output kind and options -> report.json of an export of the tiny model."""

    @cache
    def made(kind: str, **options: Any) -> dict[str, Any]:
        small, folder = small_export(kind), tmp_path_factory.mktemp("export") / "out"
        ptq4vit_onnx.export(
            small.model.module, preprocessing=small.model.preprocessing, output_kind=kind, data=small.images,
            output=folder, images=8, candidates=4, **options,
        )  # fmt: skip
        found: dict[str, Any] = json.loads((folder / "report.json").read_text(encoding="utf-8"))
        return found

    return made


def objects(value: Any, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every object in a report whose fields are ours, with its path without numbers."""
    if isinstance(value, list):
        for item in value[:1]:
            yield from objects(item, path)
    elif isinstance(value, dict):
        if any(f".{path}".endswith(f".{name}") for name in BY_NAME):
            return
        yield path, value
        for name, item in value.items():
            yield from objects(item, f"{path}.{name}".strip("."))


def test_the_published_schema_is_up_to_date_and_is_one() -> None:
    assert report_schema.main(["--check"]) == 0, "run python tools/report_schema.py"
    Draft202012Validator.check_schema(SCHEMA)


def test_an_outdated_schema_is_noticed_and_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(report_schema, "FILE", tmp_path / "report.schema.json")
    assert report_schema.main(["--check"]) == 1
    assert "is out of date; run python tools/report_schema.py" in capsys.readouterr().out
    assert report_schema.main([]) == 0 and report_schema.main(["--check"]) == 0


@pytest.mark.parametrize("kind", KINDS)
def test_the_report_of_an_export_fits(report_of: Callable[..., dict[str, Any]], kind: str) -> None:
    report = report_of(kind)
    assert report["against_float"]["kind"] == kind
    assert mistakes(report) == []


def test_the_report_of_an_embedded_model_fits(quick_spine: None, tmp_path: Path) -> None:
    report = ptq4vit_onnx.export("vit_digits", output=tmp_path / "out", images=4, candidates=4)
    assert mistakes(json.loads(json.dumps(report.to_data()))) == []


def test_the_report_of_an_export_within_a_budget_fits(report_of: Callable[..., dict[str, Any]]) -> None:
    report = report_of("logits", average_weight_bits=4.5)
    assert report["budget"]["budget"] == {"limited": "average_weight_bits", "limit": 4.5}
    assert mistakes(report) == []


def test_every_missing_and_every_unknown_field_breaks_the_schema(report_of: Callable[..., dict[str, Any]]) -> None:
    for report in (report_of("logits", average_weight_bits=4.5), report_of("features")):
        changed = copy.deepcopy(report)
        for path, place in objects(changed):
            for name in list(place):
                held = place.pop(name)
                assert mistakes(changed), f"{path}.{name} may be missing"
                place[name] = held
            place["surplus"] = 1
            assert mistakes(changed), f"{path} may have any field"
            del place["surplus"]
        assert changed == report and mistakes(changed) == []


@pytest.mark.parametrize(
    ("field", "value"),
    [("format", 2), ("sites", "38"), ("weights_from", "guessed"), ("bits", {"weights": [3], "activations": 8}),
     ("seconds", {"load": "long"}), ("against_float", {"kind": "logits"}), ("latency", [])],
)  # fmt: skip
def test_a_field_of_another_type_breaks_the_schema(
    report_of: Callable[..., dict[str, Any]], field: str, value: Any
) -> None:
    assert mistakes({**report_of("logits"), field: value})
