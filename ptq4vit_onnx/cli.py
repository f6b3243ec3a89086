"""Command line: the only module that prints. Exit codes: 0 done, 1 parity failed, 2 mendable by the user."""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn, get_args

from ptq4vit_onnx import __version__, cli_bench, cli_eval, cli_reproduce, process
from ptq4vit_onnx.cli_arguments import Outcome, batch_size, not_negative, positive, table
from ptq4vit_onnx.errors import ParityError, UserError
from ptq4vit_onnx.models.specs import DEFAULT, SPECS, find
from ptq4vit_onnx.options import (
    Activations,
    Labels,
    Method,
    Metric,
    Options,
    OutlierMode,
    Search,
    Twin,
    Weights,
)
from ptq4vit_onnx.quantizers import MAX_BITS, MIN_BITS


def main(arguments: list[str] | None = None) -> int:
    parser = build_parser()
    parsed = parser.parse_args(arguments)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s")
    process.prepare()
    if not hasattr(parsed, "command"):
        parser.print_help()
        return 2
    try:
        with _terminated_like_interrupted():
            code = int(parsed.command(parsed))
            sys.stdout.flush()  # a closed pipe shows here, not in the interpreter's last breath
            return code
    except UserError as error:
        print(f"ptq4vit-onnx: {error}", file=sys.stderr)
        return 2
    except ParityError as error:
        print(f"ptq4vit-onnx: parity failed: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(
            "ptq4vit-onnx: interrupted; nothing half-written, run the same command again to resume",
            file=sys.stderr,
        )
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


@contextmanager
def _terminated_like_interrupted() -> Iterator[None]:
    """Have SIGTERM (timeout, docker stop) clean up as Ctrl-C does; only the main thread may."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class _Parser(argparse.ArgumentParser):
    """A mistake is one line, as everywhere else; the usage is one --help away."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"ptq4vit-onnx: {' '.join(message.split())} (see {self.prog} --help)\n")


def build_parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="ptq4vit-onnx", description="Vision transformers in integers, in ONNX Runtime.")
    parser.add_argument("--version", action="version", version=f"ptq4vit-onnx {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    _add_models(commands)
    _add_export(commands)
    for add, run in (
        (cli_eval.add_eval, cli_eval.run_eval),
        (cli_eval.add_parity, cli_eval.run_parity),
        (cli_bench.add_bench, cli_bench.run_bench),
        (cli_reproduce.add_reproduce, cli_reproduce.run_reproduce),
    ):
        add(commands).set_defaults(command=_printed(run))
    return parser


def _printed(run: Callable[[argparse.Namespace, Any], Outcome]) -> Callable[[argparse.Namespace], int]:
    """A command that hands back text, as one that prints it."""

    def command(parsed: argparse.Namespace) -> int:
        outcome = run(parsed, progress_bar)
        print(outcome.text)
        return outcome.code

    return command


def _add_models(commands: Any) -> None:
    models = commands.add_parser("models", help="list what can be quantised")
    models.add_argument("--json", action="store_true", help="machine-readable")
    models.set_defaults(command=list_models)


def _add_export(commands: Any) -> None:
    export = commands.add_parser(
        "export", help="quantise a model to integer ONNX",
        description="Export, calibrate, quantise and prove a model; writes model.onnx, float.onnx, "
                    "plan.json, report.json, report.html.",
    )  # fmt: skip
    export.set_defaults(command=run_export)
    export.add_argument(
        "--model", default=DEFAULT, help=f"a name of `ptq4vit-onnx models`, or any timm ViT ({DEFAULT})"
    )
    export.add_argument("--output", type=Path, metavar="DIR", help="output folder (./MODEL_wKaK)")
    export.add_argument("--force", action="store_true", help="replace an earlier export")
    export.add_argument("--batch", type=batch_size, metavar="N", help="fix the batch size (dynamic)")
    export.add_argument("--json", action="store_true", help="print report.json on standard output")
    weights = export.add_argument_group("weights").add_mutually_exclusive_group()
    weights.add_argument("--checkpoint", type=Path, metavar="FILE", help=".safetensors, .pth, .pt or .bin")
    weights.add_argument("--random-weights", action="store_true", help="a dry run without any weights")
    images = export.add_argument_group("images")
    images.add_argument("--data", type=Path, metavar="PATH", help="folder, ImageFolder tree, .npy or .npz")
    images.add_argument("--images", type=positive, metavar="N", help="calibration images (32)")
    images.add_argument("--seed", type=int, help="picks images and sampled labels (0)")
    _add_method(export)


def _add_method(export: argparse.ArgumentParser) -> None:
    group = export.add_argument_group("quantisation")
    group.add_argument("--bits", type=_bits, metavar="K", help="bits of weights and activations, 2..8 (8)")
    group.add_argument("--weight-bits", type=_bits, metavar="K", help="bits of weights alone")
    group.add_argument("--activation-bits", type=_bits, metavar="K", help="bits of activations alone")
    group.add_argument("--plan", type=Path, metavar="FILE", help="apply this plan.json instead of calibrating")
    group.add_argument("--method", choices=get_args(Method), help="ptq4vit, or the paper's Base PTQ (ptq4vit)")
    group.add_argument("--paper", action="store_true",
                       help="PTQ4ViT exactly as published: layer-wise symmetric scales, both twins, no "
                            "outlier split")  # fmt: skip
    for name, choices, text in (
        ("metric", Metric, "what the search minimises (hessian)"),
        ("twin", Twin, "which inputs get two ranges (auto)"),
        ("weights", Weights, "scales of weights (per-channel)"),
        ("activations", Activations, "offer a zero point, or stay symmetric (affine)"),
        ("outliers", OutlierMode, "own scales for single huge channels (auto)"),
        ("search", Search, "(fast)"),
        ("labels", Labels, "labels of the calibration loss (sampled)"),
    ):
        group.add_argument(f"--{name}", choices=get_args(choices), help=text)
    group.add_argument("--rounds", type=not_negative, metavar="N",
                       help="alternating rounds; 0: each side by itself (0; with --paper 3)")  # fmt: skip
    group.add_argument("--candidates", type=positive, metavar="N", help="scales tried per search (100)")
    group.add_argument("--bias-correction", action="store_true", default=None, help="add the mean error to the biases")


def options_from(parsed: argparse.Namespace) -> Options:
    """The method's own settings, changed by what was given explicitly."""
    names = ("metric", "twin", "weights", "activations", "outliers", "search", "labels", "rounds",
             "candidates", "bias_correction", "images", "seed")  # fmt: skip
    _refuse_options_next_to_plan(parsed, names[:-2])
    changes = {name: getattr(parsed, name) for name in names if getattr(parsed, name) is not None}
    for name in ("weight_bits", "activation_bits"):
        given = getattr(parsed, name) if getattr(parsed, name) is not None else parsed.bits
        if given is not None:
            changes[name] = given
    if parsed.paper and parsed.method == "base":
        raise UserError("--paper and --method base exclude each other; give one of them")
    if parsed.method == "base":
        return Options.base(**changes)
    return Options.paper(**changes) if parsed.paper else Options(**changes)


def _refuse_options_next_to_plan(parsed: argparse.Namespace, names: Sequence[str]) -> None:
    """A plan holds what these options decide; an option that would change nothing is a misunderstanding."""
    given = [
        name for name in ("bits", "weight_bits", "activation_bits", "method", "paper", *names)
        if getattr(parsed, name) not in (None, False)
    ]  # fmt: skip
    if parsed.plan is not None and given:
        raise UserError(
            f"--plan decides the quantisation, --{given[0].replace('_', '-')} has no effect next to it; "
            "leave one of them out"
        )


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
    print("\nAny other timm model whose products can all be found is accepted by its timm name.")
    return 0


def run_export(parsed: argparse.Namespace) -> int:
    options = options_from(parsed)
    if find(parsed.model) is None:
        from ptq4vit_onnx.loading import resolve

        resolve(parsed.model)  # before torch is imported: a wrong name answers at once
    from ptq4vit_onnx.pipeline import ExportRequest, export

    request = ExportRequest(
        parsed.model, options, parsed.output, parsed.checkpoint, parsed.random_weights, parsed.data,
        parsed.plan, parsed.batch, parsed.force,
    )  # fmt: skip
    if request.random_weights:
        print("RANDOM WEIGHTS: this is a dry run, the model predicts nothing.", file=sys.stderr)
    report = export(request, progress_bar)
    if parsed.json:
        print(json.dumps(report.data))
    else:
        print_table(report.rows())
    return 0


def progress_bar(items: Iterable[Any], title: str) -> Iterable[Any]:
    """A bar with the time left on standard error, only where somebody looks at it."""
    from tqdm import tqdm

    bar: Iterable[Any] = tqdm(items, desc=title, disable=not sys.stderr.isatty(), dynamic_ncols=True, leave=False)
    return bar


def print_table(rows: Sequence[tuple[str, ...]]) -> None:
    print(table(rows))


def _bits(text: str) -> int:
    if not text.isdecimal() or not MIN_BITS <= int(text) <= MAX_BITS:
        raise argparse.ArgumentTypeError(f"expected {MIN_BITS}..{MAX_BITS} bits, got {text}")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
