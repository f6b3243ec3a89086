"""How this process waits for its threads and keeps freed memory."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

# mallopt's parameters, from glibc's malloc.h
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX, _ARENA_MAX = -1, -2, -4, -8
_KEPT, _PAD = 2**31 - 1, 2**27  # bytes free at the top before any go back to the system; bytes asked for in advance
_most_threads = 0  # of an engine, where it is asked for all cores; 0: no limit


def limit_threads(most: int) -> None:
    """From now on "all cores" are this many: the others belong to other processes."""
    global _most_threads
    _most_threads = most


def allowed_threads(asked: int) -> int:
    """For an engine: what was asked for, where 0 is all cores, as far as this process may use them."""
    return asked or _most_threads


@contextmanager
def prepared() -> Iterator[None]:
    """While it is open, torch is imported with threads that sleep, and freed memory serves the next tensor.

    torch's threads spin by default while they wait for each other; next to any other busy program that makes a
    calibration ten times slower. OpenMP reads OMP_WAIT_POLICY once, when torch is imported: if torch was imported
    before, its threads stay as they are. At the end the environment is as before and freed memory goes back to the
    system; glibc's settings cannot be read, so they stay. What the user has set (OMP_WAIT_POLICY, MALLOC_*) is left
    alone.
    """
    with environment_restored("OMP_WAIT_POLICY", "TORCHINDUCTOR_CACHE_DIR"):  # torch sets the second on import
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
        if not any(name.startswith("MALLOC_") for name in os.environ):
            keep_freed_memory()
        try:
            yield
        finally:
            give_back_freed_memory()


@contextmanager
def environment_restored(*names: str) -> Iterator[None]:
    """At the end, these environment variables are set to what they were, or unset."""
    before = {name: os.environ.get(name) for name in names}
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def keep_freed_memory() -> bool:
    """Have glibc reuse freed memory instead of unmapping it; False where there is no glibc.

    By default every large tensor is a memory mapping of its own: for each candidate that is tried, its pages are
    zeroed and faulted in again. On a virtual machine whose host takes free pages back, that is most of a search's
    time. All threads share one arena: memory that is freed in a thread's own arena is of no use to the others.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # musl and macOS have no mallopt, Windows no handle of the process
        return False
    settings = ((_MMAP_MAX, 0), (_TRIM_THRESHOLD, _KEPT), (_TOP_PAD, _PAD), (_ARENA_MAX, 1))
    return all([mallopt(parameter, value) == 1 for parameter, value in settings])


def give_back_freed_memory() -> bool:
    """Return freed memory to the system, once; False where there is no glibc.

    Kept memory is fragmented: its pieces fit the tensors that were freed, and the next ones may be larger. To be
    called between blocks of a model, not between candidates.
    """
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        return False
    return bool(trim(0))
