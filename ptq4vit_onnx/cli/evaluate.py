"""`ptq4vit-onnx eval` and `ptq4vit-onnx parity`: arguments, and results as text."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ptq4vit_onnx.cli.arguments import Outcome, add_images, add_running, add_workers, number, workers
from ptq4vit_onnx.cli.result_files import ResultFile, named_results, require_apart
from ptq4vit_onnx.cli.tables import table
from ptq4vit_onnx.errors import UserError
from ptq4vit_onnx.runtime.engines import TITLES

if TYPE_CHECKING:
    from ptq4vit_onnx.evaluation.evaluate import Evaluation, Evaluations
    from ptq4vit_onnx.output_kinds.output_kind import Column
    from ptq4vit_onnx.progress import Progress
    from ptq4vit_onnx.proof.parity_result import Check, ParityResult

SHOWN = 10  # differences of a check; --json has more


def add_eval(commands: Any) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(
        "eval", help="accuracy of ONNX models, side by side",
        description="Against a reference, by what the models return. Logits: top-1, top-5, drop, agreement, KL. "
                    "Embeddings: k-NN accuracy, drop, cosine, nearest neighbours. Features: cosine and relative error "
                    "of tokens.",
    )  # fmt: skip
    parser.add_argument("model", nargs="+", type=Path, metavar="MODEL", help="ONNX files of an export")
    parser.add_argument("--reference", type=Path, metavar="FLOAT", help="compare with this (the first model)")
    parser.add_argument(
        "--gallery", type=Path, metavar="PATH",
        help="of embeddings: labelled images, as --data, whose nearest tell the labels of --data (--data itself)",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print JSON on standard output")
    add_images(parser, may_skip=True)
    add_running(parser)
    add_workers(parser)
    return parser


def run_eval(parsed: argparse.Namespace, progress: Progress) -> Outcome:
    from ptq4vit_onnx.api import evaluate

    with workers(parsed) as tasks:
        found = evaluate(
            parsed.model, parsed.data, reference=parsed.reference, images=parsed.images, where=parsed.where,
            skip_unreadable=parsed.skip_unreadable, gallery=parsed.gallery, threads=parsed.threads, batch=parsed.batch,
            engine=parsed.engine, progress=progress, tasks=tasks,
        )  # fmt: skip
    text = table(evaluation_rows(found)) + _measured_on(found)
    return Outcome(json.dumps(found.to_data()) if parsed.json else text)


def evaluation_rows(found: Evaluations) -> list[tuple[str, ...]]:
    """Rows of a table: the reference first, unless it is one of the models, then the models."""
    known = [model.path for model in found.models]
    every = found.models if found.reference.path in known else (found.reference, *found.models)
    rows = _figure_rows(found, every)
    counts = {model.path: model.integer_products for model in every}
    if not any(counts.values()):
        return rows
    title = "products in integers"
    return [(*rows[0], title), *((*row, counts.get(row[0]) or "") for row in rows[1:])]


def _figure_rows(found: Evaluations, every: Sequence[Evaluation]) -> list[tuple[str, ...]]:
    columns = found.kind.columns
    rows = [("model", "images", *(column.title for column in columns))]
    for model in every:
        rows.append((model.path, str(model.images), *(column.cell(model.figures) for column in columns)))
        if model.path == found.reference.path:
            rows[-1] = _as_reference(rows[-1], 2 + found.kind.own)
        rows += _rows_by_output(model, columns)
    return rows if len(every) > 1 else [row[: 2 + found.kind.own] for row in rows]  # nothing to compare with


def _as_reference(row: tuple[str, ...], place: int) -> tuple[str, ...]:
    return (*row[:place], "reference", *row[place + 1 :])


def _rows_by_output(model: Evaluation, columns: Sequence[Column]) -> list[tuple[str, ...]]:
    """A row for each of several named outputs."""
    outputs = model.figures.get("outputs") or {}
    return [
        (f"  {name}", "", *(column.cell(figures) for column in columns))
        for name, figures in (outputs.items() if len(outputs) > 1 else ())
    ]


def add_parity(commands: Any) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(
        "parity", help="check a quantised model against its float one; for CI",
        description="Accepts exactly the file that export writes for the float file and the plan, and measures it on "
                    "images. One line per check; exit code 0 if all pass, 1 if one fails, 2 for a mistake, 3 for a "
                    "defect of this program.",
    )  # fmt: skip
    parser.add_argument("model", type=Path, metavar="MODEL", help="the quantised ONNX file")
    parser.add_argument("--reference", type=Path, required=True, metavar="FLOAT", help="float.onnx of the same export")
    parser.add_argument("--plan", type=Path, metavar="FILE", help="plan.json (the one next to MODEL)")
    parser.add_argument("--require-plan", action="store_true", help="fail where there is none (checks less)")
    limits = parser.add_argument_group("limits", "what fits the model's output kind, anything else is refused")
    for option, metavar, help in (
        ("--min-agreement", "SHARE", "0..1. Logits: equal predictions; embeddings: nearest neighbours kept "
                                     "(0.99 of logits)"),
        ("--max-drop", "POINTS", "loss of top-1, or of an embedding's k-NN accuracy (no limit)"),
        ("--max-kl", "NATS", "logits: mean KL divergence (no limit)"),
        ("--min-cosine", "COSINE", "embeddings and features: mean cosine to float (0.99)"),
        ("--min-worst-cosine", "COSINE", "embeddings: of the worst image; features: of the worst token (no limit)"),
    ):  # fmt: skip
        limits.add_argument(option, type=number, metavar=metavar, help=help)
    results = parser.add_argument_group("results")
    results.add_argument(
        "--junit", type=Path, metavar="FILE", help="write the checks as JUnit XML; - prints it instead"
    )
    results.add_argument("--json", type=Path, metavar="FILE", help="write the checks as JSON; - prints it instead")
    add_images(parser, may_skip=True)
    add_running(parser)
    return parser


def run_parity(parsed: argparse.Namespace, progress: Progress) -> Outcome:
    from ptq4vit_onnx.api import check_parity

    results = _result_files(parsed)
    result = check_parity(
        parsed.model, parsed.reference, parsed.data, plan=parsed.plan,
        require_plan=parsed.require_plan, min_agreement=parsed.min_agreement,
        max_drop=parsed.max_drop, max_kl=parsed.max_kl, min_cosine=parsed.min_cosine,
        min_worst_cosine=parsed.min_worst_cosine, images=parsed.images, where=parsed.where,
        skip_unreadable=parsed.skip_unreadable, threads=parsed.threads, batch=parsed.batch,
        engine=parsed.engine, progress=progress,
    )  # fmt: skip
    printed = _write(results, result)
    return Outcome(parity_text(result) if printed is None else printed, 0 if result.passed else 1)


def parity_text(result: ParityResult) -> str:
    """A line for each check, what is wrong in the graph, and a line for the first site that diverges."""
    lines = table([(check.status, check.name, check.sentence) for check in result.checks])
    lines += "".join(_details(check) for check in result.checks if len(check.details) > 1)
    lines += _measured_on(result)
    if result.not_checked:
        lines += f"\nNOT CHECKED, for want of a plan: {'; '.join(result.not_checked)}"
    return lines if result.first_divergent is None else f"{lines}\nfirst divergent site: {result.first_divergent}"


def _details(check: Check) -> str:
    rest = len(check.details) - SHOWN
    shown = [*check.details[:SHOWN], *([f"and {rest} more, see --json"] if rest > 0 else [])]
    return "".join(f"\n  {check.name}: {sentence}" for sentence in shown)


def _measured_on(found: Evaluations | ParityResult) -> str:
    """Lines, if the images are not the user's, or the engine is not the usual one."""
    images = "" if found.measured_on is None else f"\nmeasured on {found.measured_on}"
    return images if found.engine == "onnxruntime" else f"{images}\nmeasured in {TITLES[found.engine]}"


def _result_files(parsed: argparse.Namespace) -> list[ResultFile]:
    """The files for results; refuses, before any work, one that is an input or cannot be written."""
    from ptq4vit_onnx.files.outputs import require_writable
    from ptq4vit_onnx.plan.code_file import codes_path

    results = named_results(json=parsed.json, junit=parsed.junit)
    plan = parsed.plan or parsed.model.with_name("plan.json")
    require_apart(results, {
        "MODEL": parsed.model, "--reference": parsed.reference, "--data": parsed.data, "the plan": plan,
        "the plan's codes": codes_path(plan),
    })  # fmt: skip
    if sum(result.is_printed for result in results) > 1:
        raise UserError("--json and --junit both go to standard output; give a file for one of them")
    for result in results:
        if not result.is_printed:
            require_writable(result.path, result.option)
    return results


def _write(results: Sequence[ResultFile], result: ParityResult) -> str | None:
    """Write the results that go to files; returns the text of the one that is printed, if any."""
    from ptq4vit_onnx.files.outputs import write_whole

    texts = {"--json": json.dumps(result.to_data(), indent=1) + "\n", "--junit": result.to_junit()}
    for file in results:
        if not file.is_printed:
            write_whole(file.path, texts[file.option], file.option)
    return next((texts[file.option].rstrip("\n") for file in results if file.is_printed), None)
