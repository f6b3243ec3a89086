"""Folders for temporary files, which a later run deletes if this one dies."""

from __future__ import annotations

import glob
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from ptq4vit_onnx.files.locks import release, take

PREFIX = "ptq4vit_onnx_"
_LOCK = re.compile(re.escape(PREFIX) + r"[0-9a-f]{12}\.lock")


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A folder in the system's place for temporary files, gone at the end, and a locked file next to it meanwhile.

    Such folders whose locks nobody holds are deleted first.
    """
    place = Path(tempfile.gettempdir())
    _delete_abandoned(place)
    folder = place / f"{PREFIX}{secrets.token_hex(6)}"
    lock = folder.with_suffix(".lock")
    descriptor = take(lock)
    assert descriptor is not None, "nobody else has this name"
    try:
        folder.mkdir(mode=0o700)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        release(lock, descriptor)


@contextmanager
def marked(places: Sequence[Path]) -> Iterator[list[Path]]:
    """An empty file next to each place while it is open: whoever sees it, on whichever machine, sees the place. Those
    of dead runs are deleted."""
    marks = [place.absolute().with_name(f".{place.name}.seen-{secrets.token_hex(4)}") for place in places]
    made = [folder for mark in marks for folder in reversed([mark.parent, *mark.parents]) if not folder.exists()]
    try:
        for mark in marks:
            mark.parent.mkdir(parents=True, exist_ok=True)
            for old in mark.parent.glob(glob.escape(mark.name[:-8]) + "?" * 8):
                old.unlink(missing_ok=True)
            mark.touch()
        yield marks
    finally:
        for mark in marks:
            mark.unlink(missing_ok=True)
        for folder in reversed(made):
            with suppress(OSError):  # it is in use
                folder.rmdir()


def _delete_abandoned(place: Path) -> None:
    for lock in place.glob(f"{PREFIX}*.lock"):
        if not _LOCK.fullmatch(lock.name):
            continue
        try:
            descriptor = take(lock, create=False)
        except OSError:  # another user's, or deleted meanwhile
            continue
        if descriptor is None:
            continue
        if hasattr(os, "geteuid") and os.fstat(descriptor).st_uid != os.geteuid():  # root may open anybody's
            os.close(descriptor)
            continue
        shutil.rmtree(lock.with_suffix(""), ignore_errors=True)
        release(lock, descriptor)
