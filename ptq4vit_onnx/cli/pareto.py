"""`ptq4vit-onnx pareto`: arguments, and the table as text."""

from __future__ import annotations

import argparse
import json
import logging
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ptq4vit_onnx.cli import export as cli_export
from ptq4vit_onnx.cli.arguments import Outcome, add_workers, positive, several, workers
from ptq4vit_onnx.cli.exports import requests_from
from ptq4vit_onnx.cli.tables import table
from ptq4vit_onnx.errors import UserError
from ptq4vit_onnx.plan.budget import parse_bytes
from ptq4vit_onnx.tasks.ambient import shared_out

logger = logging.getLogger(__name__)

if TYPE_CHECKING:
    from ptq4vit_onnx.progress import Progress


def add_pareto(commands: Any) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(
        "pareto", help="many budgets from one calibration: size against accuracy and speed",
        description="Calibrates once, makes a file for every size and every width, measures them side by side, and "
                    "writes them with their plans, pareto.csv, pareto.json, pareto.svg and pareto.html.",
    )  # fmt: skip
    cli_export.add_model(parser, "output folder (./MODEL_pareto)")
    parser.add_argument(
        "--sizes", type=several(parse_bytes), default=(), metavar="SIZE,..", help="sizes of files, as 3MB,4.5MB"
    )
    parser.add_argument("--points", type=positive, default=8, metavar="N",
                        help="without --sizes: so many, evenly between three and eight bits (8)")  # fmt: skip
    parser.add_argument("--with", dest="others", type=Path, action="append", default=[], metavar="FILE",
                        help="another tool's ONNX file of the same model, beside ours; may be repeated")  # fmt: skip
    cli_export.add_method(parser, widths=False)
    add_workers(parser)
    parser.set_defaults(plan=None)
    return parser


def run_pareto(parsed: argparse.Namespace, progress: Progress) -> Outcome:
    from ptq4vit_onnx.studies.pareto import Study, pareto

    requests = requests_from(parsed)
    if len(requests) > 1:
        raise UserError("pareto is of one model; give --model once")
    if parsed.paper or parsed.method == "base":
        raise UserError("pareto mixes widths, which the methods as published do not; leave --paper and --method out")
    if requests[0].random_weights:
        logger.warning("RANDOM WEIGHTS: this is a dry run, the model predicts nothing.")
    study = Study(requests[0], parsed.sizes, parsed.points, tuple(parsed.others))
    with workers(parsed) as tasks, shared_out(tasks):
        found = pareto(study, progress)
    if parsed.json:
        return Outcome(json.dumps({"about": asdict(found.about), "rows": [asdict(row) for row in found.rows]}))
    from ptq4vit_onnx.report.pareto_rows import pareto_table

    files = f"\n{found.folder}: pareto.html, pareto.svg, pareto.csv, and a file with its plan for every row of ours"
    return Outcome(table(pareto_table(found.rows, found.about.distance)) + files)
