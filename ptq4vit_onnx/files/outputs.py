"""Output folders and files that appear whole or not at all."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from ptq4vit_onnx.errors import UserError

# All that an export writes; --force replaces a folder of these and no other.
EXPORT_FILES = (
    "model.onnx", "model.onnx.data", "float.onnx", "float.onnx.data", "plan.json", "report.json", "report.html"
)  # fmt: skip


def require_free(folder: Path, force: bool) -> None:
    """Refuse, before any work, a folder that exists or cannot be written.

    With force a folder may exist, unless it holds more than an export: replacing it would delete that.
    """
    if Path.cwd().is_relative_to(folder.resolve()):
        raise UserError(f"output {str(folder)!r} is the folder you are in, or above it; name one below it")
    if folder.exists() and not folder.is_dir():
        raise UserError(f"output {folder} exists and is not a folder; give another --output")
    if folder.exists() and any(folder.iterdir()) and not force:
        raise UserError(f"output folder {folder} exists; give another --output, or --force to replace it")
    foreign = _foreign_entry(folder)
    if foreign is not None:
        raise UserError(
            f"output folder {folder} holds {foreign!r}, which no export writes and --force would delete; "
            "give another --output, or move it away"
        )
    parent = _existing_parent(folder)
    if not parent.is_dir():
        raise UserError(f"cannot write {folder}: {parent} is not a folder; give another --output")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise UserError(f"cannot write {folder}: no permission in {parent}; give another --output")


def require_outside(folder: Path, inputs: Mapping[str, Path | None]) -> None:
    """Refuse an input inside the folder that is about to be replaced. inputs: option -> path."""
    for option, path in inputs.items():
        if path is not None and path.resolve().is_relative_to(folder.resolve()):
            raise UserError(f"{option} {path} lies in the output folder {folder}; give another --output")


@contextmanager
def whole_folder(folder: Path, force: bool) -> Iterator[Path]:
    """A staging folder next to `folder`: renamed to `folder` if the block succeeds, deleted if it raises.

    An earlier folder is replaced only on success. A killed process leaves at most a hidden staging folder.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=f".{folder.name}.partial-", dir=folder.parent))
    except OSError as error:
        raise _write_error(folder, error) from error
    try:
        staging.chmod(0o755)
        yield staging
        require_free(folder, force)
        _swap(staging, folder)
    except OSError as error:
        raise _write_error(folder, error) from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)


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
    staging = path.with_name(f".{path.name}.partial-{os.getpid()}")
    try:
        staging.write_text(text, encoding="utf-8")
        staging.replace(path)
    finally:
        staging.unlink(missing_ok=True)


def _swap(staging: Path, folder: Path) -> None:
    if not folder.exists():
        staging.rename(folder)
        return
    old = Path(tempfile.mkdtemp(prefix=f".{folder.name}.old-", dir=folder.parent))
    folder.rename(old / "was")
    try:
        staging.rename(folder)
    except OSError:
        (old / "was").rename(folder)
        raise
    finally:
        if folder.exists():
            shutil.rmtree(old, ignore_errors=True)


def _foreign_entry(folder: Path) -> str | None:
    """The first entry of a folder that no export writes."""
    entries = sorted(folder.iterdir()) if folder.is_dir() else []
    return next((entry.name for entry in entries if entry.name not in EXPORT_FILES or entry.is_dir()), None)


def _existing_parent(folder: Path) -> Path:
    parent = folder.absolute().parent
    while not parent.exists():
        parent = parent.parent
    return parent


def _write_error(path: Path, error: OSError, option: str = "--output") -> UserError:
    what = "the disk is full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else (error.strerror or str(error))
    return UserError(f"cannot write {path}: {what}; nothing was left behind, give another {option} or make room")
