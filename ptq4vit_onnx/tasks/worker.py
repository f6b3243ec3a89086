"""A task inside a worker: on its threads, with its mistakes in one line and its warnings kept for the caller."""

from __future__ import annotations

import logging
import os
import platform
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import ptq4vit_onnx
from ptq4vit_onnx.errors import ParityError, UserError, is_out_of_memory
from ptq4vit_onnx.files.provenance import versions
from ptq4vit_onnx.runtime import process
from ptq4vit_onnx.tasks.task import Failure, Task
from ptq4vit_onnx.tasks.travel import content_of, here, kept_place, placed, unpacked

Parts = Callable[[], Iterable[bytes]]  # of a file that travels, fetched only where it is missing


@dataclass(frozen=True)
class Call:
    """A task as it is sent. folder: the caller's, which relative paths start from. contents: of the files it reads.
    versions: the caller's; other versions may give other bytes."""

    task: Task
    threads: int
    folder: str
    versions: Mapping[str, str]
    contents: Mapping[str, tuple[str, bool]] = field(default_factory=dict)  # path -> content, whether it is a folder

    @classmethod
    def of(cls, task: Task, threads: int) -> Call:
        contents = {str(path): (content_of(path), path.is_dir()) for path in task.reads}
        return cls(task, threads, str(Path.cwd()), known_versions(), contents)


@dataclass(frozen=True)
class Answer:
    """missing: files that this machine does not have; then the task has not run."""

    result: Any = None
    failure: Failure | None = None
    machine: str = ""
    worker: str = ""
    seconds: float = 0.0
    warnings: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()


@cache
def known_versions() -> Mapping[str, str]:
    return versions()


def environment(threads: int) -> dict[str, str]:
    """What a worker's environment has before it imports torch. Its threads sleep while they wait (see `process`)."""
    return {"OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": os.environ.get("OMP_WAIT_POLICY", "PASSIVE")}


def run(call: Call, parts: Mapping[str, Parts] | None = None) -> Answer:
    """The task's answer, whatever becomes of it; only an interruption is raised. parts: of files that travel."""
    started = time.perf_counter()
    known = Answer(machine=platform.node(), worker=str(os.getpid()))
    if os.path.isdir(call.folder):  # noqa: PTH112
        os.chdir(call.folder)
    warnings: list[str] = []
    try:
        _require_same_versions(call.versions, known.machine)
        places, missing = _places(call, parts or {})
    except (UserError, OSError) as error:
        return replace(known, failure=_failure(error))
    if missing:
        return replace(known, missing=missing)
    process.limit_threads(call.threads)
    with process.prepared(), placed(places), _warnings_kept(warnings):
        result, failure = attempted(call.task)
    seconds = time.perf_counter() - started
    return replace(known, result=result, failure=failure, seconds=seconds, warnings=tuple(warnings))


def attempted(task: Task) -> tuple[Any, Failure | None]:
    """The result, or why there is none; only an interruption is raised."""
    try:
        return task.function(*task.arguments), None
    except Exception as error:  # whoever asked for the task decides what becomes of it
        return None, _failure(error)


def _places(call: Call, parts: Mapping[str, Parts]) -> tuple[dict[str, Path], tuple[str, ...]]:
    """Where the files of a task lie here, as far as they travelled, and those that are missing."""
    places: dict[str, Path] = {}
    missing = []
    for path, (content, is_folder) in call.contents.items():
        if content_of(Path(path)) == content:
            continue
        kept = kept_place(Path(path), content)
        if kept.exists() or path in parts:
            places[path] = kept if kept.exists() else unpacked(Path(path), content, parts[path](), is_folder)
        else:
            missing.append(path)
    return places, tuple(missing)


def _require_same_versions(wanted: Mapping[str, str], machine: str) -> None:
    found = known_versions()
    other = [f"{name} {found.get(name)} (here {version})" for name, version in wanted.items()
             if found.get(name) != version]  # fmt: skip
    if other:
        raise UserError(f"{machine} has {', '.join(other)}; results may differ, install the same set on all machines")


def _failure(error: Exception) -> Failure:
    trace = "".join(traceback.format_exception(error))
    match error:
        case UserError():
            return Failure("user", str(error))
        case ParityError():
            return Failure("parity", str(error))
        case _ if is_out_of_memory(error):
            return Failure("user", "not enough memory; ask for a smaller --batch or fewer --images")
        case OSError():
            where = f" {here(Path(error.filename))}" if isinstance(error.filename, str) else ""
            return Failure("user", f"cannot read or write{where}: {error.strerror or error}; make room or give another")
    return Failure("defect", f"{type(error).__name__}: {error}", trace)


@contextmanager
def _warnings_kept(kept: list[str]) -> Iterator[None]:
    """Our warnings go to the caller, who says them once, in place of this process's standard error."""
    logger, handler = logging.getLogger(ptq4vit_onnx.__name__), _Kept(kept)
    before, logger.propagate = logger.propagate, False
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.propagate = before


class _Kept(logging.Handler):
    def __init__(self, kept: list[str]) -> None:
        super().__init__(logging.WARNING)
        self.kept = kept

    def emit(self, record: logging.LogRecord) -> None:
        self.kept.append(record.getMessage())
