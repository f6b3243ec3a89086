"""How large a number a user may ask for, on the command line and in a call."""

from __future__ import annotations

from typing import Any

from ptq4vit_onnx.errors import UserError

MAX_THREADS = 1024
MAX_BATCH = 4096  # images of 224 x 224 pixels: 2.5 GB before the first layer
MAX_SIDE = 2**14  # of an image, in pixels
MAX_PIXELS = 2**26  # of an image, 8192 x 8192: in three colours of 4 bytes, 800 MB
MAX_RUNS = 10**6
MAX_SECONDS = 24 * 60 * 60
MAX_CLASSES = 10**6
MAX_COUNT = 10**9  # of anything else: beyond it lengths do not fit, and nobody waits for the end


def require_running(threads: Any, batch: Any) -> None:
    """Refuse threads (0: all cores) or images at once that no model can be run with."""
    require_whole("threads", threads, 0, MAX_THREADS)
    require_whole("batch", batch, 1, MAX_BATCH)


def require_whole(name: str, value: Any, least: int, most: int = MAX_COUNT) -> None:
    """Refuse what is no whole number from `least` to `most`; True and 8.0 are none."""
    if type(value) is not int or not least <= value <= most:
        raise UserError(f"{name} is {value!r}; expected a whole number from {least} to {most}")
