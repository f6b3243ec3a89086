"""Who runs tasks: the two choices, and how they are opened."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeAlias

from ptq4vit_onnx.errors import UserError
from ptq4vit_onnx.limits import MAX_THREADS, require_whole
from ptq4vit_onnx.tasks.task import Tasks

_ADDRESS = re.compile(r"auto|local|(ray://)?[^\s/:]+:\d{1,5}")


@dataclass(frozen=True)
class LocalProcesses:
    """jobs: how many processes of this machine; its cores are shared out among them."""

    jobs: int

    def __post_init__(self) -> None:
        require_whole("jobs", self.jobs, 1, MAX_THREADS)

    @property
    def threads(self) -> int:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        asked = os.environ.get("OMP_NUM_THREADS", "")
        return max(1, min(cores // self.jobs, int(asked) if asked.isdecimal() and int(asked) else cores))


@dataclass(frozen=True)
class RayCluster:
    """address: "local" for a cluster of this machine, started and ended here; "auto" for the one that this machine
    belongs to; ray://HOST:PORT or HOST:PORT for another. jobs: at most so many tasks at once; of "local", its CPUs."""

    address: str = "auto"
    jobs: int | None = None

    def __post_init__(self) -> None:
        if not _ADDRESS.fullmatch(self.address):
            raise UserError(f"no Ray address: {self.address!r}; expected auto, local, ray://HOST:PORT or HOST:PORT")
        if self.jobs is not None:
            require_whole("jobs", self.jobs, 1, MAX_THREADS)


Workers: TypeAlias = LocalProcesses | RayCluster


def workers_from(ray: str | None, jobs: int | None) -> Workers | None:
    """What --ray and --jobs stand for; None without either: all work is done in this process."""
    if ray is not None:
        return RayCluster(ray, jobs)
    return None if jobs is None else LocalProcesses(jobs)


@contextmanager
def opened(workers: Workers) -> Iterator[Tasks]:
    """Tasks can be run while it is open; afterwards no process and no task of it is left, whatever has happened."""
    if isinstance(workers, RayCluster):
        from ptq4vit_onnx.tasks.on_ray import connected

        with connected(workers.address, workers.jobs) as tasks:
            yield tasks
        return
    from ptq4vit_onnx.tasks.local import LocalTasks

    running = LocalTasks(workers.jobs, workers.threads)
    try:
        yield running
    finally:
        running.close()
