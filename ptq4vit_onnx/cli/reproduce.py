"""`ptq4vit-onnx reproduce`: arguments, and the table as text."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ptq4vit_onnx.cli.arguments import Outcome, add_workers, positive, several, workers
from ptq4vit_onnx.studies.paper_tables import TABLES

if TYPE_CHECKING:
    from ptq4vit_onnx.progress import Progress
    from ptq4vit_onnx.studies.measuring import Request

ENGINES = ("simulator", "onnxruntime")  # studies.reproduce.Engine, which imports torch


def add_reproduce(commands: Any) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(
        "reproduce", help="the paper's tables, measured on your ImageNet",
        description="Table 1 (methods by models), 3 (ablation) or 4 (number of calibration images) of the paper, our "
                    "result beside its number. Each row is kept as soon as it is known; the same command goes on where "
                    "it stopped. Exit code 1 if a model was skipped because its weights cannot be had.",
    )  # fmt: skip
    parser.add_argument("table", choices=TABLES, metavar="TABLE", help=f"of the paper: {', '.join(TABLES)}")
    parser.add_argument("--output", "--out", type=Path, default=Path("reproduce"), metavar="DIR",
                        help="for TABLE.csv and TABLE.md (reproduce)")  # fmt: skip
    parser.add_argument("--models", nargs="+", default=[], metavar="NAME", help="names of models (the table's own)")
    parser.add_argument("--checkpoint", type=_checkpoint, action="append", default=[], metavar="NAME=FILE",
                        help="weights of a model; may be repeated (timm's hub)")  # fmt: skip
    parser.add_argument("--engine", choices=ENGINES, default=ENGINES[0],
                        help="fake quantisation as in the paper, or the integer file (simulator)")  # fmt: skip
    images = parser.add_argument_group("images")
    images.add_argument("--data", type=Path, required=True, metavar="PATH",
                        help="labelled images to measure on: ImageFolder tree, labels.csv, .npz, or a folder that has "
                             "them in val/ or validation/")  # fmt: skip
    images.add_argument("--where", metavar="COLUMN=VALUE", help="only these rows of labels.csv")
    images.add_argument("--limit", type=positive, metavar="N", help="measure on N images, picked alike (all)")
    images.add_argument("--calibration", type=Path, metavar="PATH",
                        help="images to calibrate on (train/ or calibration/ in --data, else of --data)")  # fmt: skip
    images.add_argument("--images", type=several(positive), default=(), metavar="N,N",
                        help="calibration images (32; table4: 32,128)")  # fmt: skip
    images.add_argument("--seed", type=int, default=0, help="picks calibration images, signs and sampled labels (0)")
    add_workers(parser)
    return parser


def run_reproduce(parsed: argparse.Namespace, progress: Progress) -> Outcome:
    from ptq4vit_onnx.studies.reproduce import reproduce
    from ptq4vit_onnx.studies.table_files import markdown

    request = _request(parsed)
    with workers(parsed) as tasks:
        found = reproduce(request, progress, tasks)
    files = f"{len(found.rows)} rows in {request.csv} and {request.csv.with_suffix('.md')}"
    measured = [markdown(found.rows), files] if found.rows else []  # without rows there are no files
    return Outcome("\n".join([*measured, *found.skipped]), 1 if found.skipped else 0)


def _request(parsed: argparse.Namespace) -> Request:
    from ptq4vit_onnx.studies.measuring import Request

    return Request(
        parsed.table, parsed.data, tuple(parsed.models), dict(parsed.checkpoint), parsed.calibration, parsed.images,
        parsed.seed, parsed.limit, parsed.where, parsed.engine, parsed.output,
    )  # fmt: skip


def _checkpoint(text: str) -> tuple[str, Path]:
    name, equals, file = text.partition("=")
    if not (name and equals and file):
        raise argparse.ArgumentTypeError(f"expected NAME=FILE, as vit_s=vit_s.safetensors, got {text}")
    return name, Path(file)
