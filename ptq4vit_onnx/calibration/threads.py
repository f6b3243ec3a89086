"""Many small computations at once, each on a thread of its own.

The products a fast search tries are small: torch gains little by cutting each of them in pieces for its threads, and
much of the time goes to operations too small to be cut. Next to each other they keep all threads busy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

MOST = 8  # at once: more would wait for Python, of which there is one
Item = TypeVar("Item")
Result = TypeVar("Result")


def side_by_side(function: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
    """[function(item) for item in items], several at once, which share the threads that torch has here."""
    threads = torch.get_num_threads()
    if threads == 1:
        return [function(item) for item in items]
    workers = min(threads, MOST)
    try:
        with ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(threads // workers,)) as pool:
            return list(pool.map(function, items))
    finally:
        torch.set_num_threads(threads)  # what the workers set holds for threads that are started later, too
