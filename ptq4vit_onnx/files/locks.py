"""Locks between processes: files that only one process holds, and that the system lets go of when it dies."""

from __future__ import annotations

import errno
import os
import stat
import sys
from pathlib import Path

_FAR = 1 << 40  # on Windows a locked byte can be read by nobody else: one that no file has
_UNSUPPORTED = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)


def take(path: Path, create: bool = True) -> int | None:
    """The descriptor of the lock file `path`; None while another process (or another descriptor) holds it.

    Whoever lets go of a lock removes or renames its file, so what was opened may not be what has the name by the time
    it is locked; then this starts over. FileNotFoundError where the file is not there and `create` is off.
    """
    flags = os.O_RDWR | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0)
    while True:
        descriptor = os.open(path, flags | (os.O_CREAT if create else 0), 0o666)
        try:
            if not _lock(descriptor):
                os.close(descriptor)
                return None
            if _is_named(descriptor, path):
                _require_file(descriptor, path)
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def release(path: Path, descriptor: int) -> None:
    """Remove the file, and let go of it: in this order, or the next holder's file would be removed."""
    if sys.platform == "win32":  # an open file cannot be removed there, not even by another process that waits for it
        os.close(descriptor)
        descriptor = -1
    try:
        path.unlink(missing_ok=True)
    except PermissionError:
        if sys.platform != "win32":
            raise
    finally:
        if descriptor >= 0:
            os.close(descriptor)


def is_unsupported(error: OSError) -> bool:
    """Whether it says that this file system has no locks, as some network file systems."""
    return error.errno in _UNSUPPORTED


def _is_named(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    except FileNotFoundError:
        return False


def _require_file(descriptor: int, path: Path) -> None:
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        raise FileExistsError(errno.EEXIST, "something else has this name", str(path))


if sys.platform == "win32":
    import msvcrt

    def _lock(descriptor: int) -> bool:
        os.lseek(descriptor, _FAR, os.SEEK_SET)
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        finally:
            os.lseek(descriptor, 0, os.SEEK_SET)
        return True

else:
    import fcntl

    def _lock(descriptor: int) -> bool:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
