"""Several exports, each a task: of six models one may fail, and five are exported."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ptq4vit_onnx.errors import UserError
from ptq4vit_onnx.files.outputs import EXPORT_FILES, claimed, require_free, whole_folder
from ptq4vit_onnx.files.scratch import marked, scratch_folder
from ptq4vit_onnx.model_loading.load import resolve
from ptq4vit_onnx.models.specs import ModelSpec
from ptq4vit_onnx.progress import Progress
from ptq4vit_onnx.request import ExportRequest
from ptq4vit_onnx.tasks.task import Failure, Finished, Task, Tasks, Watched
from ptq4vit_onnx.tasks.travel import here

# GB that an export or a calibration takes at most, by size of the architecture, at 224 pixels and with some to spare.
# Measured: 1.0 for ViT-T, 1.4 DeiT-S, 2.3 DeiT-B, 5.5 Swin-B at 384 pixels, 11 ViT-H. Others count
# as base.
SIZES = {"digits": 1, "tiny": 1.5, "small": 2, "base": 3.5, "large": 7, "huge": 14, "giant": 22}
LARGE = 6  # GB from which on a task asks for a second core: it holds the memory of several anyway
Row = tuple[str, str]


@dataclass(frozen=True)
class Exported:
    """rows: what the terminal shows of the report; data: what report.json holds. files: of an export on a machine that
    does not see the output folder, which the caller then writes."""

    rows: list[Row]
    data: dict[str, Any]
    files: Mapping[str, bytes] = field(default_factory=dict)


def export_all(requests: Sequence[ExportRequest], tasks: Tasks, progress: Progress) -> list[Finished]:
    """What became of each export, in the order of the requests. Mistakes that can be seen now are raised now."""
    for request in requests:
        resolve(request.model)
        require_free(request.folder, request.force)
    _require_apart(requests)
    with marked([request.folder for request in requests]) as marks:
        asked = [_task(request, mark) for request, mark in zip(requests, marks, strict=True)]
        for task in asked:
            tasks.submit(task)
        found = {}
        for done in Watched(tasks, len(asked), "exporting", progress):
            place = next(number for number, task in enumerate(asked) if task is done.task)
            found[place] = _written(requests[place], done)
    return [found[place] for place in range(len(asked))]


def _task(request: ExportRequest, mark: Path) -> Task:
    reads = tuple(path for path in (request.data, request.checkpoint, request.plan) if path is not None)
    gigabytes = gigabytes_of(resolve(request.model), request.options.images)
    cpus = 1 if gigabytes < LARGE else 2
    return Task(request.model, export_one, (request, mark), reads, cpus, int(gigabytes * 1e9))


def gigabytes_of(spec: ModelSpec, images: int) -> float:
    """What an export or a calibration takes at most: more at more pixels, and at more than 32 calibration images."""
    name = f"{spec.name} {spec.timm} {spec.address}".lower()
    found = re.search("|".join(SIZES), name)
    pixels, calibration = max(1.0, spec.size / 224), max(1.0, images / 32)
    return SIZES[found[0] if found else "base"] * float(pixels * calibration**0.5)


def export_one(request: ExportRequest, mark: Path) -> Exported:
    """In a worker: into the output folder where it is seen from here, else into memory."""
    from ptq4vit_onnx.pipeline import export
    from ptq4vit_onnx.report.terminal import rows

    local = replace(
        request, data=_here(request.data), checkpoint=_here(request.checkpoint), plan=_here(request.plan)
    )  # fmt: skip
    if mark.exists():
        report = export(local)
        return Exported(rows(report), report.to_data())
    with scratch_folder() as scratch:
        folder = scratch / "export"
        report = replace(export(replace(local, output=folder)), folder=request.folder)
        names = {str(folder): str(request.folder), str(local.data): str(request.data)}
        files = {path.name: _renamed(path, names) for path in folder.iterdir()}
    return Exported(_all_renamed(rows(report), names), report.to_data(), files)


def _here(path: Path | None) -> Path | None:
    return None if path is None else here(path)


def _renamed(path: Path, names: Mapping[str, str]) -> bytes:
    """A file with the caller's paths in place of this machine's, which only reports name."""
    content = path.read_bytes()
    for ours, theirs in names.items() if path.name.startswith("report.") else ():
        content = content.replace(ours.encode(), theirs.encode())
    return content


def _all_renamed(rows: list[Row], names: Mapping[str, str]) -> list[Row]:
    for ours, theirs in names.items():
        rows = [(title, text.replace(ours, theirs)) for title, text in rows]
    return rows


def _written(request: ExportRequest, done: Finished) -> Finished:
    """With the files that came back written to their folder."""
    if done.failure is not None or not done.result.files:
        return done
    try:
        with claimed(request.folder, request.force), whole_folder(request.folder, request.force) as staging:
            for name, content in done.result.files.items():
                assert name in EXPORT_FILES, name
                (staging / name).write_bytes(content)
    except UserError as error:  # a full disk, a folder that was not there before: the others may still be written
        return replace(done, result=None, failure=Failure("user", str(error)))
    return replace(done, result=replace(done.result, files={}))


def _require_apart(requests: Sequence[ExportRequest]) -> None:
    taken: dict[Path, str] = {}
    for request in requests:
        other = taken.setdefault(request.folder.resolve(), request.model)
        if other != request.model:
            raise UserError(f"{other} and {request.model} would both be written to {request.folder}; export one later")
