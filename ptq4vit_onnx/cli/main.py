"""The command line's entry: runs a command, and turns errors into one line and an exit code."""

from __future__ import annotations

import argparse
import io
import json
import logging
import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, NoReturn

import ptq4vit_onnx
from ptq4vit_onnx import __version__
from ptq4vit_onnx.cli import bench as cli_bench
from ptq4vit_onnx.cli import evaluate as cli_eval
from ptq4vit_onnx.cli import export as cli_export
from ptq4vit_onnx.cli import exports as cli_exports
from ptq4vit_onnx.cli import pareto as cli_pareto
from ptq4vit_onnx.cli import reproduce as cli_reproduce
from ptq4vit_onnx.cli.arguments import Outcome, workers
from ptq4vit_onnx.cli.tables import table
from ptq4vit_onnx.errors import ParityError, UserError, is_out_of_memory
from ptq4vit_onnx.models.specs import SPECS, find
from ptq4vit_onnx.request import ExportRequest
from ptq4vit_onnx.runtime import process
from ptq4vit_onnx.tasks.ambient import shared_out
from ptq4vit_onnx.tasks.one_by_one import OneByOne

EXIT_CODES = (
    "exit codes: 0 done, 1 parity failed, 2 something you can mend, 3 a defect of this program, 130 interrupted"
)
TRACEBACK = "PTQ4VIT_ONNX_TRACEBACK"  # environment variable: print the traceback of an unexpected error


def main(arguments: list[str] | None = None) -> int:
    """Run one command; the exit code."""
    with _logged_to_standard_error(), _escaped_output(), process.prepared():  # before a command imports torch
        return _run(arguments)


def _run(arguments: list[str] | None) -> int:
    parsed = argparse.Namespace()
    try:
        with _terminated_like_interrupted(), _flushed_output():
            parser = build_parser()
            parser.parse_args(arguments, parsed)
            if hasattr(parsed, "command"):
                return int(parsed.command(parsed))
            parser.print_help()
            return 2
    except BrokenPipeError:
        _drop_output()
        return 141
    except (Exception, KeyboardInterrupt) as error:
        return _explain(error, resumes=getattr(parsed, "resumes", False))


def _explain(error: BaseException, resumes: bool) -> int:
    """Print the error as one line; returns the exit code."""
    error = _interruption(error) or error
    match error:
        case UserError():
            return _complain(2, str(error))
        case ParityError():
            return _complain(1, f"parity failed: {error}")
        case KeyboardInterrupt():
            again = ", run the same command again to resume" if resumes else ""
            return _complain(130, f"interrupted; nothing half-written{again}")
        case _ if is_out_of_memory(error):
            return _complain(2, "not enough memory; ask for a smaller --batch or fewer --images")
        case OSError():  # a full disk, no permission: cannot be checked in advance
            _drop_output()
            where = f" {error.filename}" if error.filename else ""
            return _complain(
                2, f"cannot read or write{where}: {error.strerror or error}; make room or give another place"
            )
    if os.environ.get(TRACEBACK):
        traceback.print_exception(error)
    return _complain(3, f"unexpected {type(error).__name__}: {error}; this is a defect, please report it with what "
                        f"{TRACEBACK}=1 adds to this line")  # fmt: skip


def _interruption(error: BaseException | None) -> KeyboardInterrupt | None:
    """The KeyboardInterrupt that caused an error: importing a compiled module turns it into an ImportError."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error


def _complain(code: int, message: str) -> int:
    print(f"ptq4vit-onnx: {' '.join(message.splitlines())}", file=sys.stderr)
    return code


@contextmanager
def _logged_to_standard_error() -> Iterator[None]:
    """Our warnings are lines on standard error, unless the caller of `main` has set up logging already. What other
    libraries log and warn of is not for our user; PYTHONWARNINGS and -W show their warnings."""
    with warnings.catch_warnings():
        if not sys.warnoptions:
            warnings.simplefilter("ignore")
        root, ours = logging.getLogger(), logging.getLogger(ptq4vit_onnx.__name__)
        if root.handlers:
            yield
            return
        level, handler, nowhere = ours.level, logging.StreamHandler(), logging.NullHandler()
        handler.setFormatter(logging.Formatter("%(levelname)s: %(message)s"))
        ours.addHandler(handler)
        ours.setLevel(logging.WARNING)
        root.addHandler(nowhere)  # without any, logging would print to standard error
        try:
            yield
        finally:
            ours.removeHandler(handler)
            ours.setLevel(level)
            root.removeHandler(nowhere)


@contextmanager
def _escaped_output() -> Iterator[None]:
    """Escape characters of a path that the terminal's encoding does not have, instead of failing."""
    streams = [stream for stream in (sys.stdout, sys.stderr) if isinstance(stream, io.TextIOWrapper)]
    with ExitStack() as stack:
        for stream in streams:
            stack.callback(_set_errors, stream, stream.errors)
            _set_errors(stream, "backslashreplace")
        yield


def _set_errors(stream: io.TextIOWrapper, errors: str | None) -> None:
    with suppress(OSError, ValueError):  # reconfiguring flushes, which fails on a full disk and on a closed stream
        stream.reconfigure(errors=errors)


@contextmanager
def _flushed_output() -> Iterator[None]:
    """Flush here, so that a closed pipe or a full disk is answered by `main` and not by the interpreter's end."""
    try:
        yield
    finally:
        if sys.stdout is not None:  # None if the shell has closed it
            sys.stdout.flush()


def _drop_output() -> None:
    """Send buffered output to /dev/null: the interpreter would flush it again at its end, and complain."""
    with suppress(OSError, AttributeError):  # a stream without a file, as in tests
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextmanager
def _terminated_like_interrupted() -> Iterator[None]:
    """While it is open, SIGTERM (timeout, docker stop) raises KeyboardInterrupt; only the main thread may set that."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class _Parser(argparse.ArgumentParser):
    """Reports a mistake in one line, as the commands do, instead of argparse's usage."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"ptq4vit-onnx: {' '.join(message.split())} (see {self.prog} --help)\n")


def build_parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="ptq4vit-onnx", description="Vision transformers in integers, in ONNX Runtime.", epilog=EXIT_CODES
    )
    parser.add_argument("--version", action="version", version=f"ptq4vit-onnx {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    _add_models(commands)
    cli_export.add_export(commands).set_defaults(command=run_export, resumes=True)
    for add, run in (
        (cli_eval.add_eval, cli_eval.run_eval),
        (cli_eval.add_parity, cli_eval.run_parity),
        (cli_bench.add_bench, cli_bench.run_bench),
        (cli_pareto.add_pareto, cli_pareto.run_pareto),
        (cli_reproduce.add_reproduce, cli_reproduce.run_reproduce),
    ):
        add(commands).set_defaults(
            command=_printed(run), resumes=run in (cli_reproduce.run_reproduce, cli_pareto.run_pareto)
        )
    return parser


def _printed(run: Callable[[argparse.Namespace, Any], Outcome]) -> Callable[[argparse.Namespace], int]:
    """A command that returns an Outcome -> one that prints it and returns the exit code."""

    def command(parsed: argparse.Namespace) -> int:
        outcome = run(parsed, progress_bar)
        print(outcome.text)
        return outcome.code

    return command


def _add_models(commands: Any) -> None:
    models = commands.add_parser("models", help="list what can be quantised")
    models.add_argument("--json", action="store_true", help="print JSON on standard output")
    models.set_defaults(command=list_models)


def list_models(parsed: argparse.Namespace) -> int:
    if parsed.json:
        names = ("name", "timm", "size", "top1", "embedded")
        print(json.dumps([{name: getattr(spec, name) for name in names} for spec in SPECS], indent=1))
        return 0
    rows = [("name", "model", "size", "float top-1", "weights")]
    for spec in SPECS:
        weights = "embedded" if spec.embedded else f"timm {spec.timm}"
        rows.append((spec.name, spec.title, str(spec.size), f"{spec.top1:.2f}" if spec.top1 else "", weights))
    print_table(rows)
    print("\nAny other model whose products can all be found is accepted: by its timm name, as transformers:NAME or "
          "torchvision:NAME, as a folder with config.json, or as an nn.Module in Python.")  # fmt: skip
    return 0


def run_export(parsed: argparse.Namespace) -> int:
    requests = cli_exports.requests_from(parsed)
    for name in (request.model for request in requests if find(request.model) is None):
        from ptq4vit_onnx.model_loading.load import resolve

        resolve(name)  # before ONNX and torch are imported: a wrong name answers at once
    if requests[0].random_weights:
        print("RANDOM WEIGHTS: this is a dry run, the model predicts nothing.", file=sys.stderr)
    return _export_several(requests, parsed) if len(requests) > 1 else _export_one(requests[0], parsed)


def _export_one(request: ExportRequest, parsed: argparse.Namespace) -> int:
    from ptq4vit_onnx.pipeline import export
    from ptq4vit_onnx.report.terminal import rows

    with workers(parsed) as tasks, shared_out(tasks):
        report = export(request, progress_bar)
    if parsed.json:
        print(json.dumps(report.to_data()))
    else:
        print_table(rows(report))
    return 0


def _export_several(requests: Sequence[ExportRequest], parsed: argparse.Namespace) -> int:
    from ptq4vit_onnx.studies.exports import export_all

    names = [request.model for request in requests]
    with workers(parsed) as tasks:
        done = export_all(requests, tasks or OneByOne(), progress_bar)
    text = (cli_exports.several_json if parsed.json else cli_exports.several_text)(names, done)
    if text:
        print(text)
    for line in cli_exports.failures(names, done):
        print(f"ptq4vit-onnx: {line}", file=sys.stderr)
    return cli_exports.exit_code(done)


def progress_bar(items: Iterable[Any], title: str) -> Iterable[Any]:
    """A progress bar on standard error, if that is a terminal."""
    from tqdm import tqdm

    bar: Iterable[Any] = tqdm(items, desc=title, disable=not sys.stderr.isatty(), dynamic_ncols=True, leave=False)
    return bar


def print_table(rows: Sequence[tuple[str, ...]]) -> None:
    print(table(rows))


if __name__ == "__main__":
    sys.exit(main())
