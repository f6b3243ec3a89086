"""What may happen to a file that nobody vouches for: it is taken, or refused in one line. Nothing else."""

from __future__ import annotations

import resource
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ptq4vit_onnx.errors import ParityError, UserError

MOST_SECONDS = 10
MOST_BYTES = 2 * 2**30  # of resident memory
STRUCK: list[str] = []  # what code of a file has written, had any been run


def strike(what: str) -> None:
    """The payload of pickles that run code: nobody else calls it."""
    STRUCK.append(what)


class HangError(BaseException):
    """Not an Exception, so that nothing on its way takes it for a damaged file."""


def judged(attack: Callable[[], object], counts: Counter[str]) -> None:
    """Run `attack`; any other outcome than success and a refusal in one line raises."""
    before, started = _resident(), time.monotonic()
    try:
        with _alarm():
            attack()
    except (UserError, ParityError) as error:
        assert str(error).strip() and "\n" not in str(error).strip(), f"not one line: {error}"
        counts["refused"] += 1
    else:
        counts["taken"] += 1
    counts["slowest ms"] = max(counts["slowest ms"], int(1000 * (time.monotonic() - started)))
    grown = _resident()
    assert grown == before or grown < MOST_BYTES, f"{grown / 2**30:.1f} GB of memory"
    assert not STRUCK, f"code of a file was run: {STRUCK}"


def _resident() -> int:
    """The most memory that this process has had at a time."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@contextmanager
def _alarm() -> Iterator[None]:
    def ring(*_: Any) -> None:
        raise HangError(f"longer than {MOST_SECONDS} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(MOST_SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
