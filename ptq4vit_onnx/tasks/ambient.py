"""Who a long computation may share its inner work with: known to whoever starts it, used far below."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from ptq4vit_onnx.tasks.task import Tasks

_tasks: ContextVar[Tasks | None] = ContextVar("tasks", default=None)


@contextmanager
def shared_out(tasks: Tasks | None) -> Iterator[None]:
    """While it is open, searches are tasks of these workers; None: of this process."""
    token = _tasks.set(tasks)
    try:
        yield
    finally:
        _tasks.reset(token)


def helpers() -> Tasks | None:
    """The workers that share the work here, if there are any."""
    return _tasks.get()
