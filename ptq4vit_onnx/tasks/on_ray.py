"""Tasks on a Ray cluster; no other module imports ray.

A task asks for its CPUs and its memory, and its worker has as many threads as CPUs. Ray's own retries are off: what
dies is handed over again from here, on any machine, and counted. Large arguments and results go through Ray's object
store; so do files, where a machine does not have them (see `travel`).
"""

from __future__ import annotations

import logging
import os
import signal
import socket
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from ptq4vit_onnx.errors import UserError, one_line
from ptq4vit_onnx.tasks.local import GRACE, gave_up
from ptq4vit_onnx.tasks.task import MOST_ATTEMPTS, Failure, Finished, Task
from ptq4vit_onnx.tasks.travel import parts_of
from ptq4vit_onnx.tasks.worker import Answer, Call, environment, run

logger = logging.getLogger("ptq4vit_onnx")
AHEAD = 2  # tasks that Ray knows of for each CPU: enough to keep all busy, and to let a cluster grow
ANSWERS = 10.0  # seconds within which a cluster's machine has to answer
LOOK = 1.0  # seconds between two looks at what else can be handed over
# Read when ray is imported. A cluster that is started here reports to nobody; and Ray's messages on dead workers, which
# it prints on standard output, are left out: what becomes of a task is said by us.
_SETTINGS = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS_SKIP_REGEX": ".*"}
EXTRA = 'pip install "ptq4vit-onnx[ray]", on every machine'


@contextmanager
def connected(address: str, jobs: int | None) -> Iterator[RayTasks]:
    """A cluster of this machine for "local", else a connection to one; nothing of ours is left in it afterwards."""
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
    try:
        import ray
    except ImportError as error:
        raise UserError(f"--ray needs Ray, which is not installed: {EXTRA}") from error
    logging.getLogger("ray").setLevel(logging.CRITICAL)  # what becomes of a task is said by us, once
    ours: dict[str, Any] = {"num_cpus": jobs, "include_dashboard": False} if address == "local" else {}
    try:
        _require_answer(address)
        with _signals_kept():
            ray.init(address, log_to_driver=False, logging_level=logging.CRITICAL, **ours)
    except Exception as error:  # a class per reason, of which some are gRPC's
        raise UserError(
            f"cannot reach a Ray cluster at {address}: {one_line(error)[:200]}; start one with `ray start --head`, or "
            "give --ray local"
        ) from error
    tasks = RayTasks(ray, jobs)
    try:
        yield tasks
    finally:
        try:
            tasks.cancel()
        finally:
            ray.shutdown()


def _require_answer(address: str) -> None:
    """Ray itself waits minutes for a machine that does not answer."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if colon:
        socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWERS).close()


@contextmanager
def _signals_kept() -> Iterator[None]:
    """Ray has its own answer to SIGTERM; ours is to clean up."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        with suppress(ValueError):  # not the main thread, which alone may set it
            signal.signal(signal.SIGTERM, before)


@dataclass
class _Try:
    task: Task
    attempts: int = 1


class RayTasks:
    """jobs: at most so many tasks at once; None for as many as there are CPUs."""

    threads = 1

    def __init__(self, ray: Any, jobs: int | None) -> None:
        self._ray, self._jobs = ray, jobs
        self.history: list[Finished] = []
        self._waiting: deque[_Try] = deque()
        self._running: dict[Any, _Try] = {}
        self._refused: list[Finished] = []
        self._sent: dict[str, list[Any]] = {}  # path -> its parts in the object store
        self._remote = ray.remote(_run)

    @property
    def slots(self) -> int:
        cpus = int(self._ray.cluster_resources().get("CPU", 1))
        return max(1, cpus if self._jobs is None else min(cpus, self._jobs))

    def submit(self, task: Task) -> None:
        self._waiting.append(_Try(task))
        self._hand_out()

    def finished(self) -> Iterator[Finished]:
        while self._waiting or self._running or self._refused:
            self._hand_out()
            ended, _ = self._ray.wait(list(self._running), timeout=LOOK) if self._running else ([], [])
            done = self._heard(ended[0]) if ended else self._refused.pop() if self._refused else None
            if done is not None:
                self.history.append(replace(done, result=None, task=replace(done.task, arguments=())))
                for warning in done.warnings:
                    logger.warning("%s", warning)
                yield done

    def cancel(self) -> None:
        """Ask what is still running to stop, so that it clears away what it was writing; then make it."""
        self._waiting.clear()
        left = list(self._running)
        for force in (False, True) if left else ():
            for ref in left:
                with suppress(Exception):  # it has ended meanwhile
                    self._ray.cancel(ref, force=force, recursive=True)
            _, left = self._ray.wait(left, num_returns=len(left), timeout=GRACE)
        self._running.clear()

    def _hand_out(self) -> None:
        """As many as Ray is to know of; those that no machine of the cluster is large enough for are refused."""
        most = self.slots if self._jobs is not None else AHEAD * self.slots
        while self._waiting and len(self._running) < most:
            chosen = self._waiting.popleft()
            cpus, memory = self._largest()
            if chosen.task.memory > memory:
                failure = _too_large(chosen.task, memory)
                self._refused.append(Finished(chosen.task, failure=failure, machine="(none)"))
                continue
            self._start(chosen, min(chosen.task.cpus, max(1, cpus)))

    def _start(self, chosen: _Try, cpus: int) -> None:
        call = Call.of(chosen.task, cpus)
        sent = {path: self._sent[path] for path in call.contents if path in self._sent}
        options = {"num_cpus": cpus, "memory": chosen.task.memory or None, "max_retries": 0, "name": chosen.task.name}
        remote = self._remote.options(**options, runtime_env={"env_vars": environment(cpus)})
        self._running[remote.remote(call, sent)] = chosen

    def _largest(self) -> tuple[int, float]:
        """CPUs, and bytes, of the largest machine."""
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        most = (max((node.get(name, 0) for node in nodes), default=0) for name in ("CPU", "memory"))
        cpus, memory = most
        return int(cpus), memory

    def _heard(self, ref: Any) -> Finished | None:
        """What became of a task; None if it is tried again."""
        doing = self._running.pop(ref)
        try:
            answer: Answer = self._ray.get(ref)
        except self._ray.exceptions.RayTaskError as error:  # before our own code could answer
            line = f"a machine of the cluster cannot run it: {one_line(error.cause or error)}; {EXTRA}"
            return Finished(doing.task, failure=Failure("user", line), attempts=doing.attempts)
        except self._ray.exceptions.RayError as error:  # a worker, a machine or what it held is lost
            return self._lost(doing, error)
        if answer.missing:
            for path in answer.missing:
                self._send(path)
            self._waiting.appendleft(doing)
            return None
        return Finished(
            doing.task, answer.result, answer.failure, answer.machine, answer.worker, answer.seconds,
            doing.attempts, answer.warnings,
        )  # fmt: skip

    def _lost(self, doing: _Try, error: Exception) -> Finished | None:
        if doing.attempts < MOST_ATTEMPTS:
            self._waiting.appendleft(_Try(doing.task, doing.attempts + 1))
            return None
        reason = type(error).__name__
        return Finished(doing.task, failure=gave_up(reason), machine="(lost)", attempts=doing.attempts)

    def _send(self, path: str) -> None:
        """Into the object store, once, whichever machines are going to ask for it."""
        if path not in self._sent:
            self._sent[path] = [self._ray.put(part) for part in parts_of(Path(path))]


def _too_large(task: Task, memory: float) -> Failure:
    line = (
        f"it needs {task.memory / 1e9:.1f} GB, the largest machine of the cluster has {memory / 1e9:.1f} GB to give; "
        "add one that is larger"
    )
    return Failure("user", line)


def _run(call: Call, sent: dict[str, list[Any]]) -> Answer:
    """In a worker of Ray's. Machines of one name are told apart by their node."""
    import ray

    parts = {path: partial(_fetched, refs) for path, refs in sent.items()}
    answer = run(call, parts)
    node = ray.get_runtime_context().get_node_id()[:6]
    return replace(answer, machine=f"{answer.machine}/{node}")


def _fetched(refs: list[Any]) -> Iterable[bytes]:
    import ray

    return (ray.get(ref) for ref in refs)
