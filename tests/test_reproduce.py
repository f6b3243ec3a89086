"""`reproduce`: the paper's tables as they are printed, rows measured once and kept whole, mistakes in one line."""

from __future__ import annotations

import csv
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from ptq4vit_onnx import cli, metrics, paper_tables, reproduce, reproduced_rows
from ptq4vit_onnx.errors import UserError
from ptq4vit_onnx.image_stream import Where
from ptq4vit_onnx.images import load_images, pick
from ptq4vit_onnx.models.specs import PAPER_MODELS, find
from ptq4vit_onnx.options import Options
from ptq4vit_onnx.paper_tables import Printed, TableRow, rows_of
from ptq4vit_onnx.reproduced_rows import COLUMNS, Tally
from ptq4vit_onnx.runtime import run

ROOT = Path(__file__).resolve().parent.parent
Rows = list[dict[str, str]]


def printed_top1(table: Any, model: str, method: str, bits: str, images: int = 32) -> float:
    found = [
        row.paper.top1
        for row in rows_of(table)
        if (row.model, row.method, row.bits, row.options.images) == (model, method, bits, images)
    ]
    assert len(found) == 1 and found[0] is not None
    return found[0]


def test_the_tables_have_the_papers_models_and_every_row_has_its_number() -> None:
    assert [len(rows_of(table)) for table in paper_tables.TABLES] == [11 * 4, 3 * 6 * 2, 11 * 2 * 2]
    assert paper_tables.MODELS["table1"] == paper_tables.MODELS["table4"] == PAPER_MODELS
    assert paper_tables.MODELS["table3"] == ("vit_s", "vit_b", "vit_b_384")
    assert all(row.paper.top1 is not None for table in paper_tables.TABLES for row in rows_of(table))


@pytest.mark.parametrize(
    ("table", "model", "method", "bits", "images", "top1"),
    [
        ("table1", "vit_s_32", "Base PTQ", "W8A8", 32, 73.61),
        ("table1", "vit_b_384", "Base PTQ", "W6A6", 32, 46.88),
        ("table1", "swin_b_384", "PTQ4ViT", "W6A6", 32, 85.38),
        ("table3", "vit_s", "Hessian", "W6A6", 32, 77.20),
        ("table3", "vit_b", "softmax twin + GELU twin", "W8A8", 32, 83.40),
        ("table3", "vit_b_384", "Hessian + GELU twin", "W6A6", 32, 82.21),
        ("table4", "vit_s_32", "PTQ4ViT", "W6A6", 128, 72.29),
        ("table4", "swin_b_384", "PTQ4ViT", "W8A8", 128, 86.36),
    ],
)
def test_numbers_stand_where_the_paper_prints_them(
    table: Any, model: str, method: str, bits: str, images: int, top1: float
) -> None:
    assert printed_top1(table, model, method, bits, images) == top1


def test_printed_drops_are_the_distance_from_the_printed_float_accuracy() -> None:
    """Drops are cut to three digits, from accuracies of more digits than printed: 0.03 points apart, 0.1 from 10 on."""
    for row in rows_of("table1"):
        spec = find(row.model)
        assert spec is not None and spec.top1 is not None
        assert row.paper.top1 is not None and row.paper.drop is not None
        apart = abs(spec.top1 - row.paper.top1 - row.paper.drop)
        assert apart < (0.1 if row.paper.drop >= 10 else 0.03), row


def test_the_tables_agree_where_they_print_the_same_experiment() -> None:
    """The appendix rounds otherwise by 0.01; ViT-B/384 of Table 3 is up to 0.15 points from Table 1 in the paper."""
    for model in PAPER_MODELS:
        for bits in ("W8A8", "W6A6"):
            first = printed_top1("table1", model, "PTQ4ViT", bits)
            assert abs(first - printed_top1("table4", model, "PTQ4ViT", bits)) < 0.011
            if model in paper_tables.MODELS["table3"]:
                assert abs(first - printed_top1("table3", model, "Hessian + softmax twin + GELU twin", bits)) < 0.16
                base = printed_top1("table1", model, "Base PTQ", bits)
                assert abs(base - printed_top1("table3", model, "none of the three", bits)) < 0.011


def test_rows_are_the_papers_two_methods_and_its_six_combinations() -> None:
    base, _, ours, narrow = (row.options for row in rows_of("table1", ["vit_t"], seed=5))
    assert (base, ours) == (Options.base(seed=5), Options.paper(seed=5))
    assert (base.rounds, base.alpha, base.beta) == (1, 0.5, 1.2)  # the paper's appendix, on Base PTQ
    assert all((row.options.rounds, row.options.alpha) == (3, 0.0) for row in rows_of("table3", ["vit_t"])[2:])
    assert (ours.rounds, ours.alpha, ours.beta, ours.images) == (3, 0.0, 1.2, 32)
    assert (narrow.weight_bits, narrow.activation_bits) == (6, 6)
    combinations = [(row.options.metric, row.options.twin) for row in rows_of("table3", ["vit_t"])][::2]
    assert combinations == [
        ("cosine", "none"), ("hessian", "none"), ("hessian", "softmax"), ("hessian", "gelu"), ("cosine", "both"),
        ("hessian", "both"),
    ]  # fmt: skip
    assert [row.options.images for row in rows_of("table4", ["vit_t"])] == [32, 32, 128, 128]
    assert rows_of("table4")[2].paper == Printed(75.54, minutes=5)


def test_what_the_paper_has_not_measured_has_nothing_beside_it() -> None:
    for rows in (rows_of("table1", ["vit_t"]), rows_of("table3", ["vit_s"], [64]), rows_of("table4", ["vit_s"], [64])):
        assert rows and all(row.paper == Printed() for row in rows)
    with pytest.raises(UserError, match="no table named 'table2'"):
        rows_of("table2")  # type: ignore[arg-type]


def test_a_tally_over_chunks_is_the_metrics_of_all_images() -> None:
    random = np.random.default_rng(0)
    reference, labels = random.standard_normal((50, 7)), random.integers(0, 7, 50)
    logits = reference + random.standard_normal((50, 7))
    tally = Tally()
    for part in (slice(0, 20), slice(20, 49), slice(49, 50)):
        tally.add(logits[part], reference[part], labels[part])
    drop = metrics.paired_drop(reference, logits, labels)
    assert drop.points != 0
    assert tally.cells() == {
        "top1": f"{metrics.top1(logits, labels):.2f}", "drop": f"{drop.points:.2f}",
        "drop_error": f"{drop.standard_error:.2f}", "float_top1": f"{metrics.top1(reference, labels):.2f}",
        "agreement": f"{metrics.agreement(logits, reference):.2f}", "kl": f"{metrics.mean_kl(reference, logits):.5f}",
        "validation_images": "50",
    }  # fmt: skip


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

    monkeypatch.setattr(reproduce._Bench, "measure", measure)
    monkeypatch.setattr(reproduce._Bench, "require_labels", lambda bench: None)
    monkeypatch.setattr(reproduce, "load", lambda spec, checkpoint: None)
    return names


def rows_in(path: Path) -> Rows:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_row_holds_what_calibration_and_simulation_give(
    command: Callable[..., int], digit_files: Path, load_model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    from ptq4vit_onnx.calibrate import calibrate
    from ptq4vit_onnx.simulate import simulate
    from ptq4vit_onnx.tape import record

    options = Options.paper(weight_bits=3, activation_bits=3, candidates=3, rounds=1, images=4, seed=1)
    row = TableRow("vit_digits", "PTQ4ViT", options, Printed(90.5, 1.25, 7))
    monkeypatch.setattr(reproduce, "rows_of", lambda *_: [row])
    monkeypatch.setattr("ptq4vit_onnx.image_stream.AT_ONCE", 5)
    assert command("--where", "fold=1", "--calibration", digit_files) == 0

    model = load_model("vit_digits")
    calibration = load_images(digit_files, model.preprocessing, 4, 1).images
    plans = calibrate(record(model.module, torch.from_numpy(calibration), 1), options)
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
    monkeypatch.setattr("ptq4vit_onnx.float_export.export_float", lambda *_: float_export("vit_digits").proto)
    ran: list[int] = []

    def noted(runner: Any, images: Any) -> Any:
        ran.append(len(images))
        return run(runner, images)

    monkeypatch.setattr("ptq4vit_onnx.runtime.run", noted)
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
    whole = reproduce._Bench.measure

    def interrupted(bench: Any, row: TableRow) -> dict[str, str]:
        if len(measured) == 2:
            raise KeyboardInterrupt
        return whole(bench, row)

    with monkeypatch.context() as patch:
        patch.setattr(reproduce._Bench, "measure", interrupted)
        assert command() == 130
    assert sorted(path.name for path in Path("out").iterdir()) == ["table1.csv", "table1.md"]
    assert [row["method"] for row in rows_in(Path("out/table1.csv"))] == ["Base PTQ", "Base PTQ"]
    assert Path("out/table1.md").read_text().count("| vit_digits |") == 2
    assert command() == 0
    assert measured[2:] == ["vit_digits PTQ4ViT W8A8", "vit_digits PTQ4ViT W6A6"]


def test_a_run_stopped_while_writing_leaves_the_file_before_or_after_the_row(
    command: Callable[..., int], measured: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Path.replace

    def stopped(path: Path, target: Any) -> Path:
        if len(measured) == 2 and str(target).endswith(".csv"):
            raise KeyboardInterrupt
        return real(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", stopped)
        assert command() == 130
    assert len(rows_in(Path("out/table1.csv"))) == 1
    assert sorted(path.name for path in Path("out").iterdir()) == ["table1.csv", "table1.md"]


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


@pytest.fixture
def corners(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of things that are not what is asked for."""
    monkeypatch.chdir(tmp_path)
    for name in ("unlabelled", "empty", "foreign", "beyond"):
        (tmp_path / name).mkdir()
    Image.new("L", (8, 8)).save(tmp_path / "unlabelled" / "a.png")
    Image.new("L", (8, 8)).save(tmp_path / "beyond" / "a.png")
    (tmp_path / "beyond" / "labels.csv").write_text("file,index\na.png,10\n")
    (tmp_path / "foreign" / "table1.csv").write_text("a,b\n1,2\n")
    (tmp_path / "file").write_text("mine")
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["table2", "--data", "DIGITS"], "invalid choice: 'table2'"),
        (["table1"], "the following arguments are required: --data"),
        (["table1", "--data", "absent"], "no images at absent: it does not exist"),
        (["table1", "--data", "empty"], "empty holds no image files"),
        (["table1", "--data", "unlabelled"], "unlabelled has no labels to count hits by"),
        (["table1", "--data", "beyond", "--models", "vit_digits", "--images", "1"], "has labels beyond 0..9"),
        (["table1", "--data", "DIGITS", "--calibration", "absent"], "no images at absent"),
        (
            ["table1", "--data", "DIGITS", "--models", "vit_digits", "--images", "25"],
            "24 readable images, 25 are needed",
        ),
        (["table1", "--data", "DIGITS", "--models", "vit_ss"], "no model named 'vit_ss'; closest are vit_s"),
        (["table1", "--data", "DIGITS", "--checkpoint", "vit_s"], "expected NAME=FILE"),
        (["table1", "--data", "DIGITS", "--checkpoint", "vit_s=absent.pth"], "no checkpoint at absent.pth for vit_s"),
        (["table1", "--data", "DIGITS", "--checkpoint", "vit_t=file"], "vit_t is not asked for"),
        (["table1", "--data", "DIGITS", "--where", "fold"], "expected COLUMN=VALUE"),
        (["table1", "--data", "DIGITS", "--where", "part=3"], "labels.csv has no column 'part'"),
        (["table1", "--data", "unlabelled", "--where", "fold=3"], "--where needs a labels.csv"),
        (["table1", "--data", "DIGITS", "--images", "0"], "expected a whole number of at least 1, got 0"),
        (["table1", "--data", "DIGITS", "--limit", "x"], "expected a whole number of at least 1, got x"),
        (["table1", "--data", "DIGITS", "--seed", "-1"], "seed is -1"),
        (["table1", "--data", "DIGITS", "--engine", "tensorrt"], "invalid choice: 'tensorrt'"),
        (["table1", "--data", "DIGITS", "--out", "file"], "cannot "),
        (["table1", "--data", "DIGITS", "--out", "foreign"], "has other columns than this command writes"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_is_one_line_and_exit_2(
    arguments: list[str], said: str, corners: Path, digit_files: Path, refused: Callable[..., str]
) -> None:
    given = [str(digit_files) if argument == "DIGITS" else argument for argument in arguments]
    assert said in refused("reproduce", *given)
    assert (corners / "file").read_text() == "mine"
    assert (corners / "foreign" / "table1.csv").read_text() == "a,b\n1,2\n"


@pytest.mark.parametrize("arguments", [("--help",), ("table1", "--data", "absent")], ids=" ".join)
def test_help_and_mistakes_answer_without_torch(arguments: tuple[str, ...], tmp_path: Path) -> None:
    script = (
        "import sys\nfrom ptq4vit_onnx import cli\n"
        "try: cli.main(['reproduce', *sys.argv[1:]])\n"
        "except SystemExit: pass\n"
        "print('MODULES', *sys.modules)"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments], capture_output=True, text=True, env=environment, cwd=tmp_path
    )
    loaded = done.stdout.rpartition("MODULES")[2].split()
    assert "ptq4vit_onnx.cli_reproduce" in loaded
    assert not {"torch", "timm"} & set(loaded)


def test_a_file_with_a_torn_row_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "table1.csv"
    reproduced_rows.write_rows(path, [dict.fromkeys(COLUMNS, "1")])
    path.write_text(path.read_text() + "vit_s,PTQ4ViT\n")
    with pytest.raises(UserError, match="has other columns"):
        reproduced_rows.read_rows(path)
