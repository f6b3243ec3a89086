"""Libraries that log advice which is not for our user."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress


@contextmanager
def quiet_logging(*names: str, level: int = logging.ERROR) -> Iterator[None]:
    """While it is open, loggers of these names drop what is below `level`; without names, all loggers do.

    At the end the levels and the level of `logging.disable` are as before. So are the root logger's handlers:
    `logging.warning` and its sisters add one where there is none.
    """
    loggers = [logging.getLogger(name) for name in names]
    levels = [logger.level for logger in loggers]
    disabled, handlers = logging.root.manager.disable, list(logging.root.handlers)
    try:
        for logger in loggers:
            logger.setLevel(level)
        if not loggers:
            logging.disable(max(disabled, level - 1))
        yield
    finally:
        logging.disable(disabled)
        logging.root.handlers[:] = handlers
        for logger, before in zip(loggers, levels, strict=True):
            logger.setLevel(before)


@contextmanager
def quiet_standard_error() -> Iterator[None]:
    """While it is open, what libraries write to the process's standard error by themselves is dropped."""
    with suppress(OSError, ValueError, AttributeError):  # closed, or none at all
        sys.stderr.flush()
    try:
        kept = os.dup(2)
    except OSError:  # it is closed: nothing is shown anyway
        yield
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)
