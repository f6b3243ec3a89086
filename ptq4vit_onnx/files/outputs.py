"""Output folders and files that appear whole or not at all.

What is written is on the disk before it gets its name (fsync): a file system may else keep the name and lose the
content when the power fails.
"""

from __future__ import annotations

import errno
import logging
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from ptq4vit_onnx.errors import UserError
from ptq4vit_onnx.files.exchange import exchange
from ptq4vit_onnx.files.leftovers import (
    EXPORT_FILES,
    foreign_entry,
    fresh_name,
    lock_of,
    partial_of,
    real_place,
    recover,
)
from ptq4vit_onnx.files.locks import is_unsupported, release, take

__all__ = ["EXPORT_FILES", "claimed", "require_free", "require_outside", "require_writable", "whole_folder",
           "write_whole"]  # fmt: skip
_log = logging.getLogger(__name__)
TURN = 0.01  # seconds between two looks at a file that another process is writing


def require_free(folder: Path, force: bool) -> None:
    """Refuse, before any work, a folder that exists or cannot be written; of a link, the folder that it leads to.

    With force a folder may exist, unless it holds more than an export: replacing it would delete that.
    """
    place = real_place(folder)
    if place.is_symlink():
        raise UserError(f"output {folder} is a link that leads back to itself; give another --output")
    if Path.cwd().is_relative_to(place):
        raise UserError(f"output {str(folder)!r} is the folder you are in, or above it; name one below it")
    if place.exists() and not place.is_dir():
        raise UserError(f"output {folder} exists and is not a folder; give another --output")
    if os.path.ismount(place):
        raise UserError(f"output {folder} is a mount point, which cannot be replaced; name a folder below it")
    if place.exists() and any(place.iterdir()) and not force:
        raise UserError(f"output folder {folder} exists; give another --output, or --force to replace it")
    _require_only_export(folder, place)
    parent = _existing_parent(place)
    if not parent.is_dir():
        raise UserError(f"cannot write {folder}: {parent} is not a folder; give another --output")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise UserError(f"cannot write {folder}: no permission in {parent}; give another --output")


def require_outside(folder: Path, inputs: Mapping[str, Path | None]) -> None:
    """Refuse an input inside the folder that is about to be replaced. inputs: option -> path."""
    for option, path in inputs.items():
        if path is not None and real_place(path).is_relative_to(real_place(folder)):
            raise UserError(f"{option} {path} lies in the output folder {folder}; give another --output")


@contextmanager
def claimed(folder: Path, force: bool) -> Iterator[None]:
    """While it is open, no other process exports to `folder`. First, what dead exports to it left is cleared away.

    Folders that are made above it go again if nothing is left in them.
    """
    place = real_place(folder)
    missing = [parent for parent in place.parents if not parent.exists()]
    with ExitStack() as stack:
        for parent in reversed(missing):  # the deepest goes first
            stack.callback(_remove_empty, parent)
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            if stack.enter_context(_locked(lock_of(place), folder)):
                recover(place)
        except OSError as error:
            raise _write_error(folder, error) from error
        require_free(folder, force)
        yield


@contextmanager
def _locked(lock: Path, folder: Path) -> Iterator[bool]:
    """Hold `lock`, or refuse; False where the file system has no locks."""
    try:
        descriptor = take(lock)
    except OSError as error:
        if not is_unsupported(error):
            raise
        lock.unlink(missing_ok=True)
        _log.warning("%s has no locks: do not export to %s twice at once", lock.parent, folder)
        yield False
        return
    if descriptor is None:
        raise UserError(f"another export is writing to {folder}; wait until it has ended, or give another --output")
    try:
        yield True
    finally:
        release(lock, descriptor)


def _remove_empty(folder: Path) -> None:
    with suppress(OSError):
        folder.rmdir()


@contextmanager
def whole_folder(folder: Path, force: bool) -> Iterator[Path]:
    """A staging folder next to `folder`: renamed to `folder` if the block succeeds, deleted if it raises.

    An earlier folder is replaced only on success, in one step where the system can exchange names. A killed process
    leaves at most hidden folders, which the next run clears away (see `claimed`).
    """
    place = real_place(folder)
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=f".{place.name}.partial-", dir=place.parent))
    except OSError as error:
        raise _write_error(folder, error) from error
    try:
        staging.chmod(0o755)
        yield staging
        require_free(folder, force)
        for file in (*staging.iterdir(), staging):
            _flush(file)
        if place.exists():
            _replace(staging, place, folder)
        else:
            staging.rename(place)
        _flush(place.parent)  # before what was replaced is deleted
    except OSError as error:
        raise _write_error(folder, error) from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _replace(staging: Path, place: Path, folder: Path) -> None:
    """Afterwards `staging` is what was replaced, or nothing."""
    if exchange(staging, place):
        try:
            _require_only_export(folder, staging)  # somebody may have put a file there a moment ago
        except UserError:
            exchange(staging, place)
            raise
        return
    old = fresh_name(place, "old")
    try:
        place.rename(old)
        staging.rename(place)  # a process that is killed before this leaves no folder: the next one puts `old` back
    finally:
        if old.exists() and not place.exists():
            old.rename(place)
    shutil.rmtree(old, ignore_errors=True)


def require_writable(path: Path, option: str = "--output", makes_folder: bool = False) -> None:
    """Refuse, before any work, a file that cannot be written. makes_folder: whether its folder will be created."""
    if path.is_dir():
        raise UserError(f"cannot write {path}: it is a folder; give another {option}")
    if path.exists() and not path.is_file():
        place, needed = path, os.W_OK
    else:
        place, needed = Path(os.path.realpath(path)).parent, os.W_OK | os.X_OK
        place = _existing_parent(place / path.name) if makes_folder else place
        if not place.is_dir():
            raise UserError(f"cannot write {path}: there is no folder {place}; make it or give another {option}")
    if not os.access(place, needed):
        raise UserError(f"cannot write {path}: no permission in {place}; give another {option}")


def write_whole(path: Path, text: str, option: str = "--output") -> None:
    """Write a text file by renaming, so that it appears whole or not at all. option: named in the error message.

    Of a symbolic link the target is replaced. A device or a pipe is written to directly: renaming would replace it by
    a file.
    """
    try:
        if path.exists() and not path.is_file():
            path.write_text(text, encoding="utf-8")
        else:
            _replace_file(path.resolve(), text)
    except OSError as error:
        raise _write_error(path, error, option) from error
    except RuntimeError as error:  # Path.resolve on a loop of symbolic links before Python 3.13
        raise UserError(f"cannot write {path}: {error}; give another {option}") from error


def _replace_file(path: Path, text: str) -> None:
    """Through a file of one name, so that what a dead process left is written over by the next."""
    partial = partial_of(path)
    descriptor = _opened_alone(partial)
    try:
        with open(descriptor, "w", encoding="utf-8", closefd=False) as file:
            file.truncate()
            file.write(text)
        os.fsync(descriptor)
        if sys.platform == "win32":  # an open file cannot be renamed there
            os.close(descriptor)
            descriptor = -1
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    finally:
        if descriptor >= 0:
            os.close(descriptor)


def _opened_alone(partial: Path) -> int:
    """The descriptor of a file that no other process writes; where there are no locks, that is not certain."""
    try:
        while (descriptor := take(partial)) is None:
            time.sleep(TURN)
        return descriptor
    except OSError as error:
        if not is_unsupported(error):
            raise
        return os.open(partial, os.O_RDWR | os.O_CREAT, 0o666)


def _flush(path: Path) -> None:
    """Have the system write a file or a folder to its disk; of a folder, where it can."""
    is_folder = path.is_dir()
    try:
        descriptor = os.open(path, os.O_RDONLY if is_folder else os.O_RDWR)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError:
        if not is_folder:
            raise


def _require_only_export(folder: Path, place: Path) -> None:
    foreign = foreign_entry(place)
    if foreign is not None:
        raise UserError(
            f"output folder {folder} holds {foreign!r}, which no export writes and --force would delete; "
            "give another --output, or move it away"
        )


def _existing_parent(folder: Path) -> Path:
    parent = folder.absolute().parent
    while not parent.exists():
        parent = parent.parent
    return parent


def _write_error(path: Path, error: OSError, option: str = "--output") -> UserError:
    what = "the disk is full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else (error.strerror or str(error))
    return UserError(f"cannot write {path}: {what}; nothing was left behind, give another {option} or make room")
