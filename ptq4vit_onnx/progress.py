"""How long work shows that it goes on: one meaning of progress for the whole package.

A `Progress` is handed the items of a loop and the title of a bar, and hands the items on. Whoever works calls it; what
it shows, and to whom, is the caller's affair.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias

Progress: TypeAlias = Callable[[Iterable[Any], str], Iterable[Any]]


def silent(items: Iterable[Any], _title: str) -> Iterable[Any]:
    """The progress of work that nobody watches."""
    return items


class Sized:
    """An iterator with a length, so that a bar knows the time left."""

    def __init__(self, items: Iterator[Any], length: int) -> None:
        self.items, self.length = items, length

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[Any]:
        return self.items


def ticks(progress: Progress, total: int, title: str) -> Callable[[int], None]:
    """For work that is no loop: a function to be told how many of `total` steps are done."""
    steps = iter(progress(range(total), title))

    def tick(done: int) -> None:
        for _ in range(done):
            next(steps, None)

    return tick
