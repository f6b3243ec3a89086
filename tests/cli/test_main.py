"""The command line: what it answers without torch, its one-line messages, its exit codes."""

from __future__ import annotations

import errno
import json
import logging
import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ptq4vit_onnx
from ptq4vit_onnx import __main__, api, pipeline
from ptq4vit_onnx.cli import export as cli_export
from ptq4vit_onnx.cli import main as cli
from ptq4vit_onnx.errors import ParityError, UserError
from ptq4vit_onnx.files import outputs
from ptq4vit_onnx.models.specs import PAPER_MODELS, SPECS
from ptq4vit_onnx.request import ExportRequest

ROOT = Path(__file__).resolve().parents[2]
HEAVY = {"torch", "timm", "onnx", "onnxruntime"}


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("arguments", [("--help",), ("--version",), ("models",), ("export", "--help")], ids=" ".join)
def test_answers_about_itself_import_nothing_heavy(arguments: tuple[str, ...], answer_of: Callable[..., Any]) -> None:
    answer = answer_of(*arguments)
    assert (answer.code, HEAVY & answer.modules) == (0, set())


def test_a_wrong_model_name_imports_nothing_heavy_and_offers_the_closest(answer_of: Callable[..., Any]) -> None:
    answer = answer_of("export", "--model", "deit_bb")
    assert (answer.code, HEAVY & answer.modules) == (2, set())
    assert answer.error == (
        "ptq4vit-onnx: no model named 'deit_bb'; closest are deit_b, deit_t, deit_s (all: ptq4vit-onnx models)\n"
    )


def test_a_wrong_timm_name_offers_timm_names(elsewhere: Path, refused: Callable[..., str]) -> None:
    assert "vit_base_patch16_224" in refused("export", "--model", "vit_base_patch16_225")


def test_a_name_like_nothing_points_to_the_list(elsewhere: Path, refused: Callable[..., str]) -> None:
    message = refused("export", "--model", "qqqqqq")
    assert message == "ptq4vit-onnx: no model named 'qqqqqq' (all: ptq4vit-onnx models)\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--bits", "9"], "--bits: expected 2..8 bits, got 9"),
        (["--bits", "eight"], "--bits: expected 2..8 bits, got eight"),
        (["--weight-bits", "1"], "--weight-bits: expected 2..8 bits, got 1"),
        (["--activation-bits", "-8"], "--activation-bits: expected 2..8 bits, got -8"),
        (["--batch", "0"], "--batch: expected a whole number of at least 1, got 0"),
        (["--batch", "x"], "--batch: expected a whole number of at least 1, got x"),
        (["--batch", "4097"], "--batch: expected a whole number of at most 4096, got 4097"),
        (["--images", "0"], "--images: expected a whole number of at least 1, got 0"),
        (["--seed", "-1"], "seed is -1; expected a whole number from 0"),
        (["--metric", "l1"], "--metric: invalid choice: 'l1'"),
        (["--checkpoint", "a.pth", "--random-weights"], "not allowed with argument --checkpoint"),
        (["--paper", "--method", "base"], "--paper and --method base exclude each other"),
        (["--plan", "p.json", "--bits", "6"], "--plan decides the quantisation, --bits has no effect"),
        (["--plan", "p.json", "--weights", "per-tensor"], "--weights has no effect"),
        (["--plan", "absent.json"], "cannot read plan absent.json: No such file"),
        (["--output", "occupied"], "output folder occupied exists; give another --output, or --force"),
        (["--out", "occupied/file"], "occupied/file exists and is not a folder"),
        (["--output", "occupied/file/deeper"], "file is not a folder; give another --output"),
        (["--output", "."], "is the folder you are in"),
        (["--output", "..", "--force"], "is the folder you are in, or above it"),
        (["--data", "absent"], "no images at absent: it does not exist"),
        (["--images", "101"], "the embedded calibration split has 100 images, 101 are asked for"),
        (["--checkpoint", "absent.pth"], "no checkpoint at absent.pth"),
        (["--no-such-option"], "unrecognized arguments: --no-such-option"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_is_one_line_exit_2_and_nothing_written(
    arguments: list[str], said: str, elsewhere: Path, refused: Callable[..., str]
) -> None:
    (elsewhere / "occupied").mkdir()
    (elsewhere / "occupied" / "file").write_text("mine")
    assert said in refused("export", *arguments)
    assert sorted(str(path.relative_to(elsewhere)) for path in elsewhere.rglob("*")) == [
        "occupied", "occupied/file",
    ]  # fmt: skip


def test_no_command_prints_the_help_and_exits_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 2
    assert "export" in capsys.readouterr().out


def test_models_lists_the_papers_eleven_ours_and_the_way_to_others(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["models"]) == 0
    lines = capsys.readouterr().out.splitlines()
    names = [line.split()[0] for line in lines[1 : len(SPECS) + 1]]
    assert len(PAPER_MODELS) == 11
    assert names == [*PAPER_MODELS, "vit_t", "deit_t", "vit_digits", "swin_digits"]
    assert "timm name" in lines[-1]


def test_models_json_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["models", "--json"]) == 0
    listed = {entry["name"]: entry for entry in json.loads(capsys.readouterr().out)}
    assert listed["vit_b"]["timm"] == "vit_base_patch16_224.augreg_in21k_ft_in1k"
    assert listed["vit_digits"]["embedded"] is True


def raising(failure: BaseException) -> Callable[..., Any]:
    def fail(*_: Any, **__: Any) -> Any:
        raise failure

    return fail


def run_with(monkeypatch: pytest.MonkeyPatch, replacement: Any, *arguments: str) -> int:
    """The exit code of `export` when the spine is replaced."""
    monkeypatch.setattr(pipeline, "export", replacement)
    return cli.main(["export", *arguments])


def test_a_parity_failure_exits_1(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_with(monkeypatch, raising(ParityError("fc differs"))) == 1
    assert capsys.readouterr().err == "ptq4vit-onnx: parity failed: fc differs\n"


def test_random_weights_are_announced_before_anything_else(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_with(monkeypatch, raising(UserError("stopped")), "--random-weights") == 2
    assert capsys.readouterr().err.startswith("RANDOM WEIGHTS: this is a dry run")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_export_leaves_nothing_and_exits_130(
    number: signal.Signals, elsewhere: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    def interrupted(request: ExportRequest, _progress: Any) -> Any:
        # A process that a shell started in the background inherits SIGINT as ignored; a terminal's does not.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            return write_and_interrupt(request)
        finally:
            signal.signal(signal.SIGINT, before)

    def write_and_interrupt(request: ExportRequest) -> Any:
        with outputs.whole_folder(request.folder, request.force) as staging:
            (staging / "float.onnx").write_bytes(b"half")
            os.kill(os.getpid(), number)
            raise AssertionError("the signal did not arrive")

    handler = signal.getsignal(signal.SIGTERM)
    assert run_with(monkeypatch, interrupted) == 130
    assert "interrupted; nothing half-written, run the same command again to resume\n" in capsys.readouterr().err
    assert list(elsewhere.iterdir()) == []
    assert signal.getsignal(signal.SIGTERM) is handler


def test_an_interrupted_measurement_promises_no_resuming(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(api, "evaluate", raising(KeyboardInterrupt()))
    assert cli.main(["eval", "model.onnx"]) == 130
    assert capsys.readouterr().err == "ptq4vit-onnx: interrupted; nothing half-written\n"


def test_an_interruption_that_a_module_makes_an_import_error_of_is_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    failure = ImportError("initialization failed")
    failure.__cause__ = KeyboardInterrupt()
    assert run_with(monkeypatch, raising(failure)) == 130
    assert "ptq4vit-onnx: interrupted" in capsys.readouterr().err


def test_an_interruption_while_the_command_is_imported_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Interrupted:
        def find_spec(self, name: str, *_: Any) -> None:
            if name == "ptq4vit_onnx.cli.main":
                raise KeyboardInterrupt

    monkeypatch.setattr(sys, "meta_path", [Interrupted(), *sys.meta_path])
    monkeypatch.delitem(sys.modules, "ptq4vit_onnx.cli.main")
    monkeypatch.delattr(ptq4vit_onnx.cli, "main")
    assert __main__.main() == 130
    assert capsys.readouterr().err == "ptq4vit-onnx: interrupted\n"


def test_an_unexpected_error_is_one_line_and_never_exit_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(cli.TRACEBACK, raising=False)
    assert run_with(monkeypatch, raising(ZeroDivisionError("division\nby zero"))) == 3
    message = capsys.readouterr().err
    assert message.startswith("ptq4vit-onnx: unexpected ZeroDivisionError: division by zero; this is a defect")
    assert message.count("\n") == 1 and f"{cli.TRACEBACK}=1" in message
    monkeypatch.setenv(cli.TRACEBACK, "1")
    assert run_with(monkeypatch, raising(ZeroDivisionError("x"))) == 3
    assert "Traceback (most recent call last)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("failure", "said"),
    [
        (MemoryError(), "not enough memory; ask for a smaller --batch"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate"), "not enough memory; ask"),
        (OSError(errno.ENOSPC, "No space left on device", "/tmp/x"), "cannot read or write /tmp/x: No space left"),
    ],
)
def test_what_the_machine_lacks_is_one_line_and_exit_2(
    failure: Exception, said: str, monkeypatch: pytest.MonkeyPatch, refused: Callable[..., str]
) -> None:
    monkeypatch.setattr(pipeline, "export", raising(failure))
    assert said in refused("export")


def test_the_help_says_what_every_exit_code_means(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert cli.EXIT_CODES in text
    assert all(f"{code} " in cli.EXIT_CODES for code in (0, 1, 2, 3, 130))


def test_explicit_options_change_the_methods_own_and_nothing_else() -> None:
    def parsed(*arguments: str) -> Any:
        return cli_export.request_from(cli.build_parser().parse_args(["export", *arguments])).options

    assert (parsed("--bits", "6").weight_bits, parsed("--bits", "6").activation_bits) == (6, 6)
    mixed = parsed("--bits", "6", "--weight-bits", "4")
    assert (mixed.weight_bits, mixed.activation_bits) == (4, 6)
    paper = parsed("--paper", "--images", "7")
    assert (paper.weights, paper.activations, paper.twin, paper.images) == (
        "per-tensor", "symmetric", "both", 7,
    )  # fmt: skip
    assert parsed("--method", "base").metric == "cosine"
    assert parsed("--method", "base", "--metric", "mse").metric == "mse"


def test_a_command_runs_with_sleeping_threads_and_leaves_the_environment_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[str | None] = []

    def look(_: Any) -> int:
        seen.append(os.environ.get("OMP_WAIT_POLICY"))
        return 0

    monkeypatch.setattr(cli, "list_models", look)
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    assert cli.main(["models"]) == 0
    assert seen == ["PASSIVE"] and "OMP_WAIT_POLICY" not in os.environ


def test_a_command_shows_our_warnings_alone_and_leaves_logging_and_streams_as_they_were(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def warn(_: Any) -> int:
        logging.getLogger("ptq4vit_onnx.any").warning("said")
        logging.getLogger("another_library").warning("advice")
        warnings.warn("more advice", stacklevel=1)
        return 0

    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])
    monkeypatch.setattr(cli, "list_models", warn)
    before = root.level, sys.stdout.errors, sys.stderr.errors
    for _ in range(2):
        assert cli.main(["models"]) == 0
    assert capsys.readouterr().err == "WARNING: said\n" * 2
    assert (root.level, sys.stdout.errors, sys.stderr.errors) == before and root.handlers == []


def run_in_shell(command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """`command` in bash, with $P for this program."""
    known = {**os.environ, "PYTHONPATH": str(ROOT), "P": f"{sys.executable} -m ptq4vit_onnx", **environment}
    return subprocess.run(["bash", "-c", command], capture_output=True, text=True, env=known, timeout=60)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_output_that_cannot_be_written_is_one_line_and_exit_2(unbuffered: str) -> None:
    done = run_in_shell("$P models > /dev/full", PYTHONUNBUFFERED=unbuffered)
    assert (done.returncode, done.stderr) == (
        2, "ptq4vit-onnx: cannot read or write: No space left on device; make room or give another place\n",
    )  # fmt: skip


def test_a_closed_standard_output_is_no_failure() -> None:
    done = run_in_shell("$P models >&-")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_path_that_the_encoding_cannot_show_is_escaped() -> None:
    script = (
        "from ptq4vit_onnx.cli import main as m; m.list_models = lambda _: print('ж') or 0; print(m.main(['models']))"
    )
    done = run_in_shell(f'{sys.executable} -c "{script}"', PYTHONIOENCODING="ascii")
    assert done.stdout == "\\u0436\n0\n", done.stderr


def test_a_closed_pipe_ends_quietly() -> None:
    done = run_in_shell("set -o pipefail; $P models | true")
    assert done.stderr == ""
    assert done.returncode in (0, 141)  # 0 where everything fitted into the pipe before it was closed
