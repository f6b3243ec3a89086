"""The paper's tables, measured: rows as they are known, each kept in a CSV and a Markdown file.

A row is skipped where the CSV already has it, with the same options, images and weights; so a run that was
interrupted goes on where it stopped. Validation images are read a few at a time, once per row. With workers, rows and
parts of the images are measured side by side (see `shared_rows`), and the CSV is the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ptq4vit_onnx.errors import UserError
from ptq4vit_onnx.files.outputs import require_writable
from ptq4vit_onnx.model_loading.load import load, resolve
from ptq4vit_onnx.progress import Progress, silent
from ptq4vit_onnx.studies.measuring import VALIDATION_SEED, Bench, Engine, Request, Sources, key_of
from ptq4vit_onnx.studies.paper_tables import TableRow, rows_of
from ptq4vit_onnx.studies.shared_rows import measure_shared, skipped_line, without_weights
from ptq4vit_onnx.studies.table_files import add_row, read_rows, write_rows
from ptq4vit_onnx.tasks.task import Tasks

__all__ = ["VALIDATION_SEED", "Engine", "Reproduction", "Request", "Sources", "key_of", "reproduce"]


@dataclass(frozen=True)
class Reproduction:
    """rows: all that the CSV holds, this run's among them. skipped: a line for each model without weights."""

    rows: list[dict[str, str]]
    skipped: tuple[str, ...]


def reproduce(request: Request, progress: Progress = silent, tasks: Tasks | None = None) -> Reproduction:
    """Measure every row that is missing. Weights that cannot be had cost their model's rows, nothing else. tasks: who
    shares the work."""
    for name in request.models:
        resolve(name)  # before torch is imported: a wrong name answers at once
    _require_checkpoints(request)
    rows = rows_of(request.table, request.models, request.images, request.seed)
    sources = Sources.of(request)
    known = read_rows(request.csv)
    order = [key_of(request, sources, row) for row in rows]
    done = {row["key"] for row in known}
    missing = [row for row, key in zip(rows, order, strict=True) if key not in done]
    for path in (request.csv, request.csv.with_suffix(".md")):
        require_writable(path, makes_folder=True)  # now, not after the first row
    if known:
        write_rows(request.csv, known)  # the Markdown may be gone, or a row behind
    if tasks is not None:
        skipped = measure_shared(request, sources, missing, order, tasks, progress)
    else:
        skipped = _measure_here(request, sources, missing, order, progress)
    return Reproduction(read_rows(request.csv), tuple(skipped))


def _measure_here(
    request: Request, sources: Sources, missing: Sequence[TableRow], order: Sequence[str], progress: Progress
) -> list[str]:
    """Row by row, each kept as soon as it is known; returns a line for each model without weights."""
    skipped = []
    for name in dict.fromkeys(row.model for row in missing):
        wanted = [row for row in missing if row.model == name]
        spec = resolve(name)
        try:
            model = load(spec, request.checkpoints.get(name))
        except UserError as error:
            skipped.append(skipped_line(len(wanted), name, without_weights(request, name, error)))
            continue
        bench = Bench(request, sources, spec, model, progress)
        bench.require_labels()  # now, not after the first calibration
        for row in wanted:
            add_row(request.csv, bench.measure(row), order)
    return skipped


def _require_checkpoints(request: Request) -> None:
    wanted = {row.model for row in rows_of(request.table, request.models)}
    for name, path in request.checkpoints.items():
        if name not in wanted:
            raise UserError(f"--checkpoint {name}={path}: {name} is not asked for; name it in --models")
        if not path.is_file():
            raise UserError(f"no checkpoint at {path} for {name}; give a .safetensors, .pth, .pt or .bin file")
