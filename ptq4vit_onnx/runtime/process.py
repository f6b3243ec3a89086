"""How this process waits and keeps memory: settled once, before torch is imported."""

from __future__ import annotations

import ctypes
import os

# mallopt's parameters, from glibc's malloc.h
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX, _ARENA_MAX = -1, -2, -4, -8
_KEPT, _PAD = 2**31 - 1, 2**27  # bytes free at the top before any go back to the system; bytes asked for in advance


def prepare() -> None:
    """Threads sleep while they wait for each other, and freed memory serves the next tensor.

    torch's threads spin by default; next to any other busy program that made a calibration ten times slower. What the
    user has set in the environment (OMP_WAIT_POLICY, MALLOC_*) is left alone.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    if not any(name.startswith("MALLOC_") for name in os.environ):
        keep_freed_memory()


def keep_freed_memory() -> bool:
    """Have glibc hand freed memory out again instead of unmapping it; False where there is no glibc.

    By default every large tensor is a mapping of its own: its pages are zeroed and faulted in anew for each candidate
    that is tried. On a virtual machine whose host takes free pages back, that is most of a search's time. All threads
    share one heap: what each would keep in its own, the others could not use.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # musl and macOS have no mallopt, Windows no handle of the process
        return False
    settings = ((_MMAP_MAX, 0), (_TRIM_THRESHOLD, _KEPT), (_TOP_PAD, _PAD), (_ARENA_MAX, 1))
    return all([mallopt(parameter, value) == 1 for parameter, value in settings])


def give_back_freed_memory() -> bool:
    """Return what is free to the system, once; False where there is no glibc.

    Kept memory is in pieces that fit what was freed; what is allocated next may be larger. To be called between blocks
    of a model, not between candidates.
    """
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        return False
    return bool(trim(0))
