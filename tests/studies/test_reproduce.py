"""`reproduce`: rows as calibration and simulation give them, measured once, kept whole."""

from __future__ import annotations

import csv
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ptq4vit_onnx.cli import main as cli
from ptq4vit_onnx.errors import UserError
from ptq4vit_onnx.images.loading import load_images, pick
from ptq4vit_onnx.images.stream import Where
from ptq4vit_onnx.output_kinds import metrics
from ptq4vit_onnx.plan.options import Options
from ptq4vit_onnx.runtime.session import run
from ptq4vit_onnx.studies import measuring, reproduce
from ptq4vit_onnx.studies import table_files as reproduced_rows
from ptq4vit_onnx.studies.paper_tables import Printed, TableRow, rows_of
from ptq4vit_onnx.studies.table_files import COLUMNS

Rows = list[dict[str, str]]


@pytest.fixture
def command(digit_files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """`reproduce table1` of vit_digits on the digits, into `out`, with a search that takes a second a row."""

    def quick(*arguments: Any) -> list[TableRow]:
        return [replace(row, options=replace(row.options, candidates=3, rounds=1)) for row in rows_of(*arguments)]

    monkeypatch.setattr(reproduce, "rows_of", quick)
    monkeypatch.chdir(tmp_path)

    def call(*arguments: Any, models: tuple[str, ...] = ("vit_digits",), table: str = "table1") -> int:
        given = ["--data", digit_files, "--images", "4", "--out", "out", *arguments, "--models", *models]
        return cli.main(["reproduce", table, *map(str, given)])

    return call


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Nothing is computed: the rows that would have been, in order."""
    names: list[str] = []

    def measure(bench: Any, row: TableRow) -> dict[str, str]:
        names.append(f"{row.model} {row.method} {row.bits}")
        known = {"model": row.model, "method": row.method, "bits": row.bits, "top1": "1.00"}
        return {**dict.fromkeys(COLUMNS, ""), **known, "key": reproduce.key_of(bench.request, bench.sources, row)}

    monkeypatch.setattr(measuring.Bench, "measure", measure)
    monkeypatch.setattr(measuring.Bench, "require_labels", lambda bench: None)
    monkeypatch.setattr(reproduce, "load", lambda spec, checkpoint: None)
    return names


def rows_in(path: Path) -> Rows:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_row_holds_what_calibration_and_simulation_give(
    command: Callable[..., int], digit_files: Path, load_model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    from ptq4vit_onnx.calibration.calibrate import calibrate
    from ptq4vit_onnx.network.tape import record
    from ptq4vit_onnx.simulation.fake import simulate

    options = Options.paper(weight_bits=3, activation_bits=3, candidates=3, rounds=1, images=4, seed=1)
    row = TableRow("vit_digits", "PTQ4ViT", options, Printed(90.5, 1.25, 7))
    monkeypatch.setattr(reproduce, "rows_of", lambda *_: [row])
    monkeypatch.setattr("ptq4vit_onnx.images.stream.AT_ONCE", 5)
    assert command("--where", "fold=1", "--calibration", digit_files) == 0

    model = load_model("vit_digits")
    calibration = load_images(digit_files, model.preprocessing, 4, 1).images
    plans = calibrate(record(model.module, torch.from_numpy(calibration), 1, options.labels), options)
    test = load_images(digit_files, model.preprocessing, where=lambda entry: entry["fold"] == "1")
    logits, reference = simulate(model.module, plans, test.images), simulate(model.module, None, test.images)
    (found,) = rows_in(Path("out/table1.csv"))
    assert test.labels is not None
    assert found["top1"] == f"{metrics.top1(logits, test.labels):.2f}"
    assert found["agreement"] == f"{metrics.agreement(logits, reference):.2f}"
    assert float(found["kl"]) == pytest.approx(metrics.mean_kl(reference, logits), abs=2e-5) and float(found["kl"]) > 0
    assert (found["bits"], found["validation_images"], found["images"], found["seed"]) == ("W3A3", "8", "4", "1")
    assert (found["paper_top1"], found["paper_drop"], found["paper_minutes"]) == ("90.50", "1.25", "7")


def test_the_integer_engine_runs_the_quantised_file(
    command: Callable[..., int], float_export: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = rows_of("table1", ["vit_digits"], [4])[2]
    quick = replace(first, options=replace(first.options, candidates=3, rounds=1))
    monkeypatch.setattr(reproduce, "rows_of", lambda *_: [quick])
    monkeypatch.setattr("ptq4vit_onnx.float_export.exporter.export_float", lambda *_: float_export("vit_digits").proto)
    ran: list[int] = []

    def noted(runner: Any, images: Any) -> Any:
        ran.append(len(images))
        return run(runner, images)

    monkeypatch.setattr("ptq4vit_onnx.runtime.session.run", noted)
    assert command("--engine", "onnxruntime", "--limit", "6") == 0
    (found,) = rows_in(Path("out/table1.csv"))
    assert ran == [6]
    assert (found["engine"], found["validation_images"]) == ("onnxruntime", "6")
    assert float(found["agreement"]) > 80


def test_a_second_run_measures_only_what_is_missing(command: Callable[..., int], measured: list[str]) -> None:
    assert command() == 0
    assert measured == [
        f"vit_digits {method} {bits}" for method in ("Base PTQ", "PTQ4ViT") for bits in ("W8A8", "W6A6")
    ]
    before = Path("out/table1.csv").read_text()
    assert command() == 0
    assert (len(measured), Path("out/table1.csv").read_text()) == (4, before)
    assert command(models=("vit_digits", "swin_digits")) == 0
    assert [name.split()[0] for name in measured[4:]] == ["swin_digits"] * 4
    assert len(rows_in(Path("out/table1.csv"))) == 8


@pytest.mark.parametrize(
    "change", [("--limit", 3), ("--seed", 1), ("--where", "fold=1"), ("--engine", "onnxruntime"), ("--images", "5")]
)
def test_another_setting_is_another_measurement_and_the_first_is_kept(
    change: tuple[Any, ...], command: Callable[..., int], measured: list[str]
) -> None:
    assert command() == 0
    assert command(*change) == 0
    assert len(measured) == 8
    assert len({row["key"] for row in rows_in(Path("out/table1.csv"))}) == 8


def test_other_weights_are_another_measurement(
    command: Callable[..., int], measured: list[str], tmp_path: Path
) -> None:
    weights = tmp_path / "weights.pth"
    for content in (b"one", b"other"):
        weights.write_bytes(content)
        assert command("--checkpoint", f"vit_digits={weights}") == 0
    assert len(measured) == 8


def test_other_labels_or_images_are_another_measurement(
    command: Callable[..., int], measured: list[str], digit_files: Path, tmp_path: Path
) -> None:
    data = Path(shutil.copytree(digit_files, tmp_path / "data"))
    labels = data / "labels.csv"
    assert command("--data", data) == command("--data", data) == 0
    assert len(measured) == 4
    labels.write_text(labels.read_text().replace("00.png,", "00.png,1", 1))
    assert command("--data", data) == 0
    (data / "00.png").write_bytes((data / "01.png").read_bytes() + b"more")
    assert command("--data", data) == 0
    assert len(measured) == 12


def test_an_interrupted_run_leaves_whole_rows_and_goes_on(
    command: Callable[..., int], measured: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = measuring.Bench.measure

    def interrupted(bench: Any, row: TableRow) -> dict[str, str]:
        if len(measured) == 2:
            raise KeyboardInterrupt
        return whole(bench, row)

    with monkeypatch.context() as patch:
        patch.setattr(measuring.Bench, "measure", interrupted)
        assert command() == 130
    assert sorted(path.name for path in Path("out").iterdir()) == ["table1.csv", "table1.md", "table1_minutes.csv"]
    assert [row["method"] for row in rows_in(Path("out/table1.csv"))] == ["Base PTQ", "Base PTQ"]
    assert Path("out/table1.md").read_text().count("| vit_digits |") == 2
    assert command() == 0
    assert measured[2:] == ["vit_digits PTQ4ViT W8A8", "vit_digits PTQ4ViT W6A6"]


def test_a_run_stopped_while_writing_leaves_the_file_before_or_after_the_row(
    command: Callable[..., int], measured: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Path.replace

    def stopped(path: Path, target: Any) -> Path:
        if len(measured) == 2 and str(target).endswith("table1.csv"):
            raise KeyboardInterrupt
        return real(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", stopped)
        assert command() == 130
    assert len(rows_in(Path("out/table1.csv"))) == 1
    assert sorted(path.name for path in Path("out").iterdir()) == ["table1.csv", "table1.md", "table1_minutes.csv"]


def test_the_markdown_shows_the_rows_of_the_csv_without_empty_columns(
    command: Callable[..., int], measured: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert command() == 0
    text = Path("out/table1.md").read_text()
    assert text.splitlines()[0] == "| model | method | bits | top-1 |"
    assert text.splitlines()[2] == "| vit_digits | Base PTQ | W8A8 | 1.00 |"
    assert text.endswith(f"\n\n{reproduced_rows.NOTE}\n")
    out = capsys.readouterr().out
    assert out.startswith(text)
    assert f"4 rows in {Path('out/table1.csv')} and {Path('out/table1.md')}" in out


def test_a_model_without_weights_costs_its_own_rows_and_exit_1(
    command: Callable[..., int],
    measured: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def load(spec: Any, checkpoint: Path | None) -> None:
        if spec.name == "deit_t":
            raise UserError("no weights for deit_t: the hub is silent")

    monkeypatch.setattr(reproduce, "load", load)
    assert command(models=("deit_t", "vit_digits")) == 1
    assert [row["model"] for row in rows_in(Path("out/table1.csv"))] == ["vit_digits"] * 4
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == (
        "skipped 4 rows of deit_t: no weights for deit_t: the hub is silent (here: --checkpoint deit_t=FILE)"
    )


def test_without_any_weights_nothing_is_written(
    command: Callable[..., int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def load(spec: Any, _checkpoint: Path | None) -> None:
        raise UserError(f"no weights for {spec.name}: the hub is silent")

    monkeypatch.setattr(reproduce, "load", load)
    assert command(models=("deit_t",)) == 1
    assert capsys.readouterr().out.startswith("skipped 4 rows of deit_t: no weights")
    assert not Path("out").exists()


def test_val_and_train_of_a_folder_are_what_they_are_called(digit_files: Path, tmp_path: Path) -> None:
    for name in ("val", "train"):
        (tmp_path / name).symlink_to(digit_files, target_is_directory=True)
    request = reproduce.Request("table1", tmp_path, where="fold=1")
    sources = reproduce.Sources.of(request)
    assert (sources.validation.data, sources.calibration) == (tmp_path / "val", tmp_path / "train")
    assert sources.calibration_where is None
    alone = reproduce.Sources.of(replace(request, data=digit_files))
    assert alone.calibration == alone.validation.data == digit_files
    assert alone.calibration_where == Where("fold", "1")
    named = reproduce.Sources.of(replace(request, data=digit_files, calibration=digit_files))
    assert named.calibration_where is None


def test_a_limit_does_not_pick_the_calibration_images_again() -> None:
    order = [pick(50_000, 1000, seed) for seed in (0, 1, reproduce.VALIDATION_SEED)]
    assert len(set(order[2]) & set(order[0][:32])) < 8 and len(set(order[2]) & set(order[1][:32])) < 8
