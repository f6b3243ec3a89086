"""Files that a user gives: looked at before they are opened, and read up to a limit.

Nobody vouches for these files. A pipe or a device would keep its reader waiting, or never end; JSON may be nested more
deeply than its reader can follow, or name a field twice, of which a person sees one and a program takes the other.
"""

from __future__ import annotations

import errno
import json
import stat
from pathlib import Path
from typing import Any

from ptq4vit_onnx.errors import UserError

MOST_TEXT = 2**26  # bytes; the plan of a model of 1.8 billion weights has 20 million
_KINDS = {
    stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}  # fmt: skip


def unfit(path: Path, most: int | None = None) -> str | None:
    """Why a path is no file to read, as a clause; None for a regular file of at most `most` bytes. It is not opened."""
    try:
        found = path.stat()
    except (OSError, ValueError) as error:  # ValueError: a null byte
        return getattr(error, "strerror", None) or str(error)
    if not stat.S_ISREG(found.st_mode):
        return f"it is {_KINDS.get(stat.S_IFMT(found.st_mode), 'no file')}, expected a file"
    if most is not None and found.st_size > most:
        return f"it has {found.st_size} bytes, expected at most {most}"
    return None


def require_file(path: Path, what: str, advice: str, most: int | None = None) -> None:
    """Refuse what is no file to read. what: it is to be, as "plan"; advice: what to do next."""
    reason = unfit(path, most)
    if reason is not None:
        raise UserError(f"cannot read {what} {path}: {reason}; {advice}")


def read_bytes(path: Path, what: str, advice: str, most: int = MOST_TEXT) -> bytes:
    """All of a file; arguments as of `require_file`."""
    require_file(path, what, advice, most)
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read {what} {path}: {error.strerror}; {advice}") from error


def read_text(path: Path, what: str, advice: str, most: int = MOST_TEXT) -> str:
    """All of a file in UTF-8; a byte order mark, which spreadsheets and editors put first, is left out."""
    try:
        return read_bytes(path, what, advice, most).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"cannot read {what} {path}: byte {error.start} is not UTF-8; {advice}") from error


def read_json(path: Path, what: str, advice: str) -> Any:
    text = read_text(path, what, advice)
    try:
        return parse_json(text)
    except ValueError as error:
        raise UserError(f"{what} {path} is not JSON: {error}; {advice}") from error


def parse_json(text: str | bytes) -> Any:
    """What a JSON text holds; a ValueError also where it is nested too deeply or has a key twice."""
    try:
        return json.loads(text, object_pairs_hook=_without_repeats)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"it has the key {key!r:.60} twice")
        found[key] = value
    return found


def require_path(path: Path, option: str) -> None:
    """Refuse a path that no file can have, or that no report can name; there need be nothing at it."""
    try:
        str(path).encode()
        path.stat()
    except UnicodeEncodeError as error:
        raise UserError(f"--{option} {str(path)!r} is not UTF-8; give a path that is") from error
    except ValueError as error:
        raise UserError(f"cannot use --{option} {str(path)!r}: {error}; give another path") from error
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENAMETOOLONG):
            raise UserError(f"cannot use --{option} {path}: {error.strerror}; give another path") from error
