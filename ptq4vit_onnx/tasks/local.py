"""Tasks on processes of this machine, started afresh (not forked) and used again for one task after the other.

A process that dies is replaced, and its task tried again. At the end, or when the caller is interrupted, processes are
asked to stop, so that they clear away what they were writing, and then made to. A process whose caller has died ends.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

from ptq4vit_onnx.runtime.process import environment_restored
from ptq4vit_onnx.tasks.task import MOST_ATTEMPTS, Failure, Finished, Task
from ptq4vit_onnx.tasks.worker import Answer, Call, environment, run

logger = logging.getLogger("ptq4vit_onnx")
GRACE = 5.0  # seconds that a process has to stop by itself
MEMORY_SHARE = 0.9  # of the machine's memory that tasks may ask for together


@dataclass
class _Try:
    task: Task
    attempts: int = 1


@dataclass
class _Worker:
    process: BaseProcess
    line: Connection
    doing: _Try | None = None


class LocalTasks:
    """jobs: processes at once. threads: of torch and of an engine in each."""

    def __init__(self, jobs: int, threads: int) -> None:
        self.slots, self.threads = jobs, threads
        self.history: list[Finished] = []
        self._waiting: deque[_Try] = deque()
        self._workers: list[_Worker] = []
        self._memory = total_memory() * MEMORY_SHARE

    def submit(self, task: Task) -> None:
        self._waiting.append(_Try(task))
        self._hand_out()

    def finished(self) -> Iterator[Finished]:
        while self._waiting or self._busy:
            self._hand_out()
            lines = {worker.line: worker for worker in self._busy}
            for line in wait(list(lines)):
                done = self._heard(lines[line])  # type: ignore[index]
                if done is not None:
                    self.history.append(replace(done, result=None, task=replace(done.task, arguments=())))
                    for warning in done.warnings:
                        logger.warning("%s", warning)
                    yield done

    def close(self) -> None:
        """End all processes: asked first, killed where that takes too long."""
        try:
            for worker in self._workers:
                worker.process.terminate()
            ends = time.monotonic() + GRACE
            for worker in self._workers:
                worker.process.join(max(0.0, ends - time.monotonic()))
        finally:
            for worker in self._workers:
                worker.process.kill()
                worker.process.join()
                worker.line.close()
            self._workers.clear()

    @property
    def _busy(self) -> list[_Worker]:
        return [worker for worker in self._workers if worker.doing is not None]

    def _hand_out(self) -> None:
        """To idle processes, and to new ones up to their number: the first tasks that the memory is enough for."""
        while len(self._busy) < self.slots and (chosen := self._next()) is not None:
            idle = next((worker for worker in self._workers if worker.doing is None), None)
            worker = idle or self._started()
            worker.doing = chosen
            with suppress(OSError):  # it has died; that is noticed where its answer is awaited
                worker.line.send(Call.of(chosen.task, self.threads))

    def _next(self) -> _Try | None:
        used = sum(worker.doing.task.memory for worker in self._busy if worker.doing is not None)
        for chosen in self._waiting:
            if not self._busy or used + chosen.task.memory <= self._memory:
                self._waiting.remove(chosen)
                return chosen
        return None

    def _started(self) -> _Worker:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=serve, args=(theirs,), daemon=True)
        given = environment(self.threads)
        with environment_restored(*given), _interruptions_held():
            os.environ.update(given)
            process.start()
        theirs.close()  # so that only the process holds it, and its death is the end of the line
        self._workers.append(_Worker(process, ours))
        return self._workers[-1]

    def _heard(self, worker: _Worker) -> Finished | None:
        """What a worker has to say; None if it has died and its task is tried again."""
        doing, worker.doing = worker.doing, None
        assert doing is not None
        try:
            answer: Answer = worker.line.recv()
        except (EOFError, OSError):
            return self._lost(worker, doing)
        return Finished(
            doing.task, answer.result, answer.failure, answer.machine, answer.worker, answer.seconds,
            doing.attempts, answer.warnings,
        )  # fmt: skip

    def _lost(self, worker: _Worker, doing: _Try) -> Finished | None:
        worker.process.join()
        worker.line.close()
        self._workers.remove(worker)
        if doing.attempts < MOST_ATTEMPTS:
            self._waiting.appendleft(_Try(doing.task, doing.attempts + 1))
            return None
        return Finished(
            doing.task, failure=gave_up(f"exit code {worker.process.exitcode}"), machine="(lost)",
            worker=str(worker.process.pid), attempts=doing.attempts,
        )  # fmt: skip


def gave_up(reason: str) -> Failure:
    line = (
        f"its process died {MOST_ATTEMPTS} times ({reason}); is there enough memory? Ask for fewer --jobs or --images"
    )
    return Failure("user", line)


def total_memory() -> float:
    """Bytes of this machine; endless where the system does not say."""
    try:
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, OSError, ValueError):
        return float("inf")


@contextmanager
def _interruptions_held() -> Iterator[None]:
    """A process that is started meanwhile never sees Ctrl-C: its caller does, and ends it in order."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # of multiprocessing: its start lets signals through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def serve(line: Connection) -> None:
    """A worker process: one call after the other, until there is no more caller."""
    threading.Thread(target=_end_with_caller, daemon=True).start()
    signal.signal(signal.SIGTERM, _interrupted_once)
    with suppress(KeyboardInterrupt, EOFError, OSError):
        while True:
            line.send(run(line.recv()))
    sys.exit(0)


def _interrupted_once(_number: int, _frame: object) -> None:
    """What a task writes is cleared away as when Ctrl-C stops this program; another signal must not stop that."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt


def _end_with_caller() -> None:
    """However the caller ends: its tasks are of no use to anybody else. A task that clears away may take a while."""
    caller = multiprocessing.parent_process()
    assert caller is not None
    caller.join()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE)
    os._exit(1)
