"""`ptq4vit-onnx export` of several models, or on several processes or machines: requests, and a row for each."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ptq4vit_onnx.cli.export import request_from
from ptq4vit_onnx.cli.tables import table
from ptq4vit_onnx.errors import UserError
from ptq4vit_onnx.models.specs import DEFAULT

if TYPE_CHECKING:
    from ptq4vit_onnx.request import ExportRequest
    from ptq4vit_onnx.tasks.task import Finished

SHOWN = ("model", "bits", "kernels", "against float", "top-1", "size", "file")  # of an export's table
CODES = {"user": 2, "parity": 1, "defect": 3}  # exit codes by kind of failure; the first of WORST decides
WORST = ("defect", "parity", "user")


def models_of(parsed: argparse.Namespace) -> list[str]:
    return list(dict.fromkeys(parsed.model or [DEFAULT]))


def requests_from(parsed: argparse.Namespace) -> list[ExportRequest]:
    """A request for each --model. With several, --output is the folder that theirs lie in, and a --checkpoint names its
    model."""
    names = models_of(parsed)
    checkpoints = _checkpoints(parsed.checkpoint or [], names)
    if len(names) > 1 and parsed.plan is not None:
        raise UserError("--plan is of one model; export the models one by one")
    return [_request(parsed, name, checkpoints.get(name), len(names) > 1) for name in names]


def _request(parsed: argparse.Namespace, name: str, checkpoint: Path | None, is_one_of_several: bool) -> ExportRequest:
    given = {**vars(parsed), "model": name, "checkpoint": checkpoint}
    if not is_one_of_several or parsed.output is None:
        return request_from(argparse.Namespace(**given))
    default = request_from(argparse.Namespace(**{**given, "output": None}))
    return request_from(argparse.Namespace(**{**given, "output": parsed.output / default.folder}))


def _checkpoints(given: Sequence[str], names: Sequence[str]) -> dict[str, Path]:
    """FILE of the one model, or NAME=FILE of several."""
    found: dict[str, Path] = {}
    for text in given:
        name, equals, file = text.partition("=")
        if equals and name in names:
            found[name] = Path(file)
        elif len(names) == 1:
            found[names[0]] = Path(text)
        else:
            raise UserError(
                f"--checkpoint {text}: with several models, give NAME=FILE; NAME is one of {', '.join(names)}"
            )
    return found


def several_text(models: Sequence[str], done: Sequence[Finished]) -> str:
    """A row for each export that ended well."""
    found = [dict(item.result.rows) for item in done if item.failure is None]
    titles = [title for title in SHOWN if any(title in row for row in found)]
    return table([tuple(titles), *(tuple(row.get(title, "") for title in titles) for row in found)]) if found else ""


def several_json(models: Sequence[str], done: Sequence[Finished]) -> str:
    """report.json of each, and of a failed one its name and its line."""
    return json.dumps([_data(name, item) for name, item in zip(models, done, strict=True)])


def _data(name: str, done: Finished) -> dict[str, Any]:
    return done.result.data if done.failure is None else {"model": name, "failed": done.failure.line}


def failures(models: Sequence[str], done: Sequence[Finished]) -> list[str]:
    """A line for each export that failed."""
    said = {"defect": "; this is a defect, please report it"}
    return [
        f"{name} was not exported: {' '.join(item.failure.line.split())}{said.get(item.failure.kind, '')}"
        for name, item in zip(models, done, strict=True) if item.failure is not None
    ]  # fmt: skip


def exit_code(done: Sequence[Finished]) -> int:
    kinds = {item.failure.kind for item in done if item.failure is not None}
    return next((CODES[kind] for kind in WORST if kind in kinds), 0)
