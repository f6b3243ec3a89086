"""Many budgets from one calibration of the embedded model: the folder, its files, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ptq4vit_onnx import check_parity, pipeline
from ptq4vit_onnx.cli.main import main
from ptq4vit_onnx.errors import UserError
from ptq4vit_onnx.graph.model_proto import file_bytes
from ptq4vit_onnx.planning import widths
from ptq4vit_onnx.request import resolve_request
from ptq4vit_onnx.studies import pareto as study
from ptq4vit_onnx.studies.pareto import Study, pareto

QUICK: dict[str, Any] = {"candidates": 4, "images": 4, "rounding_images": 4}


@pytest.fixture
def quick(quick_spine: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two widths, few images, few runs."""
    monkeypatch.setattr(widths, "WIDTHS", (4, 8))
    monkeypatch.setattr(study, "RUNS", 2)


@pytest.fixture
def found(quick: None, tmp_path: Path) -> study.Found:
    request = resolve_request("vit_digits", output=tmp_path / "out", **QUICK)
    return pareto(Study(request, sizes=(330_000, 10**9)))


def test_every_row_is_a_file_with_its_plan_that_parity_accepts(found: study.Found) -> None:
    ours = [row for row in found.rows if row.group in ("single", "mixed")]
    assert {row.title for row in ours} >= {"4 bits", "8 bits"}
    for row in ours:
        file = found.folder / row.file
        assert file_bytes(file) == row.size
        result = check_parity(
            file, found.folder / "float.onnx", plan=file.with_suffix(".json"), require_plan=True, images=8,
            min_agreement=0.0,
        )  # fmt: skip
        assert result.passed, result


def test_a_file_for_a_size_is_no_larger_and_no_worse_than_the_single_width_that_fits(found: study.Found) -> None:
    fitting = [row for row in found.rows if row.group in ("single", "mixed") and row.size <= 330_000]
    assert fitting and min(row.size for row in fitting) <= 330_000


def test_the_folder_says_the_same_in_csv_and_json(found: study.Found) -> None:
    data = json.loads((found.folder / "pareto.json").read_text())
    lines = (found.folder / "pareto.csv").read_text().splitlines()
    assert len(lines) == 1 + len(data["rows"]) == 1 + len(found.rows)
    assert (found.folder / "pareto.svg").read_text().startswith("<svg")
    assert "vit_digits" in (found.folder / "pareto.html").read_text()


def test_the_folder_is_replaced_by_force_alone(found: study.Found) -> None:
    request = resolve_request("vit_digits", output=found.folder, **QUICK)
    with pytest.raises(UserError, match="--force"):
        pareto(Study(request))


def test_a_file_that_is_no_model_is_refused_before_the_calibration(tmp_path: Path) -> None:
    other = tmp_path / "other.onnx"
    other.write_bytes(b"no model")
    with pytest.raises(UserError, match=r"other\.onnx"):
        pareto(Study(resolve_request("vit_digits", output=tmp_path / "out"), others=(other,)))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["pareto", "--sizes", "4XB"], "expected bytes, or a number with KB"),
        (["pareto", "--model", "vit_digits", "--model", "swin_digits"], "pareto is of one model"),
        (
            ["export", "--max-size", "4MB", "--bits", "4"],
            "--max-size decides the bits of weights",
        ),
        (["export", "--max-size", "4MB", "--max-kl", "1"], "not allowed with argument"),
        (["export", "--max-kl", "0.1", "--paper"], "--max-kl mixes widths"),
        (["export", "--max-size", "1", "--plan", "plan.json"], "--plan decides the quantisation"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    arguments: list[str], line: str, capsys: pytest.CaptureFixture[str], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    try:
        code = main(arguments)
    except SystemExit as ended:
        code = int(ended.code or 0)
    said = capsys.readouterr().err.strip()
    assert code == 2 and line in said and "\n" not in said, said
    assert not list(tmp_path.iterdir())


def test_weights_are_rounded_and_sizes_chosen_on_images_that_the_table_is_not_measured_on(
    quick: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen: list[Any] = []

    def load_inputs(*arguments: Any) -> Any:
        seen.extend(pipeline.load_inputs(*arguments))
        raise UserError("seen")

    monkeypatch.setattr(study, "load_inputs", load_inputs)
    with pytest.raises(UserError, match="seen"):
        pareto(Study(resolve_request("vit_digits", output=tmp_path / "out", images=4, rounding_images=12)))
    images = seen[1]
    assert len(images.rounded_on) == 12 and len(images.calibration) == 4
    assert images.choosing is not None and not set(images.choosing.names) & set(images.measured.names)
