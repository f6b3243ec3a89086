"""Functions that tests hand to workers, which find them here by name."""

from __future__ import annotations

import logging
import os
import signal
import time
from pathlib import Path

from ptq4vit_onnx.errors import ParityError, UserError
from ptq4vit_onnx.tasks.travel import here


def square(number: int) -> int:
    return number * number


def threads() -> tuple[int, int]:
    """As the environment has it, and as torch does."""
    import torch

    return int(os.environ["OMP_NUM_THREADS"]), torch.get_num_threads()


def die_the_first(times: int, folder: Path) -> int:
    """Kills its process, the first `times` that it is called; returns how many calls there have been."""
    calls = len(list(folder.iterdir()))
    (folder / str(calls)).touch()
    if calls < times:
        os.kill(os.getpid(), signal.SIGKILL)
    return calls + 1


def fail(kind: str) -> None:
    if kind == "user":
        raise UserError("no such image")
    if kind == "parity":
        raise ParityError("other bits")
    raise ZeroDivisionError("by nothing")


def warn() -> None:
    logging.getLogger("ptq4vit_onnx.images").warning("two of them look alike")


def span(seconds: float) -> tuple[float, float]:
    begins = time.monotonic()
    time.sleep(seconds)
    return begins, time.monotonic()


def linger(folder: Path, seconds: float = 60) -> None:
    """Leaves its process id in `folder` while it works, and clears that away if it may."""
    mark = folder / str(os.getpid())
    mark.touch()
    try:
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            time.sleep(0.05)
    finally:
        mark.unlink()


def read(path: Path) -> tuple[str, str]:
    """Where a file lies here, and its text."""
    return str(here(path)), here(path).read_text()
