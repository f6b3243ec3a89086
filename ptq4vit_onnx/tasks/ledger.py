"""Which machine and which worker did what."""

from __future__ import annotations

from collections.abc import Sequence

from ptq4vit_onnx.tasks.task import Finished


def rows(history: Sequence[Finished]) -> list[tuple[str, ...]]:
    """A table: a line for each worker, machine by machine, with the tasks it ended and the seconds they took."""
    workers: dict[tuple[str, str], list[Finished]] = {}
    for done in history:
        workers.setdefault((done.machine, done.worker), []).append(done)
    lines: list[tuple[str, ...]] = [("machine", "process", "tasks", "seconds", "failed", "tried again")]
    for (machine, worker), ended in sorted(workers.items()):
        failed = sum(done.failure is not None for done in ended)
        again = sum(done.attempts - 1 for done in ended)
        seconds = sum(done.seconds for done in ended)
        lines.append((machine, worker, str(len(ended)), f"{seconds:.0f}", _count(failed), _count(again)))
    return lines


def _count(number: int) -> str:
    return str(number) if number else ""
