"""A task, what became of it, and what runs tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from ptq4vit_onnx.errors import ParityError, UserError
from ptq4vit_onnx.progress import Progress, Sized

MOST_ATTEMPTS = 3  # a task whose worker dies so often is given up: it may be what kills them
Kind = Literal["user", "parity", "defect"]


@dataclass(frozen=True)
class Task:
    """A call whose result depends on its arguments and on the files it reads, and on nothing else.

    name: shown in progress and in errors. function: of a module, so that a worker finds it by its name. arguments,
    and the result: whatever pickle takes. reads: files and folders of the caller; the function asks `travel.here` where
    they lie on its machine. cpus: threads of torch and of an engine, on Ray (on this machine the number of jobs
    decides). memory: bytes that it needs at most; 0 is unknown.
    """

    name: str
    function: Callable[..., Any]
    arguments: tuple[Any, ...] = ()
    reads: tuple[Path, ...] = ()
    cpus: int = 1
    memory: int = 0


@dataclass(frozen=True)
class Failure:
    """Why a task has no result, in one line. kind: a mistake of the user's, a broken promise, a defect of ours."""

    kind: Kind
    line: str
    trace: str = ""

    def error(self) -> Exception:
        """As the same call in this process would have raised it."""
        kinds: dict[Kind, type[Exception]] = {"user": UserError, "parity": ParityError, "defect": DefectError}
        error = kinds[self.kind](self.line)
        error.__cause__ = RuntimeError(self.trace) if self.trace else None  # the worker's own traceback
        return error


class DefectError(Exception):
    """An error in a worker that is nobody's mistake but ours."""


@dataclass(frozen=True)
class Finished:
    """failure None: it has a result. machine, worker: where it ran last. attempts: more than one if workers died."""

    task: Task
    result: Any = None
    failure: Failure | None = None
    machine: str = ""
    worker: str = ""
    seconds: float = 0.0
    attempts: int = 1
    warnings: tuple[str, ...] = ()

    def value(self) -> Any:
        """The result; raises what the task has failed by."""
        if self.failure is not None:
            raise self.failure.error()
        return self.result


class Tasks(Protocol):
    """Runs tasks on several workers. A worker or a machine that dies costs a task an attempt, not its result."""

    @property
    def slots(self) -> int:
        """How many tasks run at once, about."""

    @property
    def threads(self) -> int:
        """How many threads a task of one CPU has."""

    @property
    def history(self) -> list[Finished]:
        """What has finished, without results."""

    def submit(self, task: Task) -> None:
        """Hand over a task; more may be handed over while results come."""

    def finished(self) -> Iterator[Finished]:
        """Tasks in the order in which they end, until none is left."""


@dataclass
class Watched:
    """Results of tasks as they come, under one bar. total: how many there will be, those handed over later included."""

    tasks: Tasks
    total: int
    title: str
    progress: Progress
    failures: list[Finished] = field(default_factory=list)

    def __iter__(self) -> Iterator[Finished]:
        yield from self.progress(Sized(self.tasks.finished(), self.total), self.title)


def in_order(tasks: Tasks, asked: list[Task], title: str, progress: Progress) -> list[Any]:
    """The results of tasks that belong together, in the order of the tasks; raises the first failure that comes."""
    for task in asked:
        tasks.submit(task)
    found = {id(done.task): done.value() for done in Watched(tasks, len(asked), title, progress)}
    return [found[id(task)] for task in asked]
