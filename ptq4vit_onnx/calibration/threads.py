"""Many small computations at once, each on a thread of its own.

The products that a fast search tries are small. torch's parallelism within an operation gains little on them, and none
on the operations that are too small to be split. Several products at once keep all threads busy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import torch

MOST = 8  # workers at once: more would wait for Python's global interpreter lock
Item = TypeVar("Item")
Result = TypeVar("Result")


def side_by_side(function: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
    """[function(item) for item in items], several at once, which share the threads that torch has here."""
    threads = torch.get_num_threads()
    if threads == 1:
        return [function(item) for item in items]
    workers = min(threads, MOST)
    with (
        thread_count_restored(),
        ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(threads // workers,)) as pool,
    ):
        return list(pool.map(function, items))


@contextmanager
def thread_count_restored() -> Iterator[None]:
    """Set torch's number of threads at the end to what it was.

    What a worker sets for itself holds for every thread that is started later, too.
    """
    threads = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(threads)
