"""Many computations at once, each on a thread of its own.

The products that a fast search tries are small. torch's parallelism within an operation gains little on them, and none
on the operations that are too small to be split. Several products at once keep all threads busy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

import torch

MOST = 8  # workers at once: more would wait for Python's global interpreter lock
Item = TypeVar("Item")
Result = TypeVar("Result")
_threads: ContextVar[int | None] = ContextVar("threads", default=None)  # torch's own number, where it is set to one


def side_by_side(function: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
    """[function(item) for item in items], several at once, each on one thread."""
    workers = worker_count()
    with on_one_thread():
        if workers == 1:
            return [function(item) for item in items]
        with workers_of(workers) as pool:
            return list(pool.map(function, items))


def worker_count() -> int:
    """How many share the threads that torch has here."""
    return min(_threads.get() or torch.get_num_threads(), MOST)


def workers_of(count: int) -> ThreadPoolExecutor:
    """Workers on which torch uses one thread each, to be started in `on_one_thread`: what a worker sets for itself
    holds for every thread that is started later, too."""
    return ThreadPoolExecutor(count, initializer=torch.set_num_threads, initargs=(1,))


@contextmanager
def on_one_thread() -> Iterator[None]:
    """While it is open, torch uses one thread for an operation; `side_by_side` still shares out those it had before."""
    threads, known = torch.get_num_threads(), _threads.get()
    _threads.set(known or threads)
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        _threads.set(known)
