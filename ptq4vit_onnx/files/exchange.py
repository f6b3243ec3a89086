"""Two names exchanged in one step, where the system can: each name is there at every instant."""

from __future__ import annotations

import ctypes
import errno
import os
from pathlib import Path

_HERE = -100  # AT_FDCWD: paths are as anywhere else
_EXCHANGE, _SWAP = 2, 2  # RENAME_EXCHANGE of Linux's renameat2, RENAME_SWAP of macOS' renamex_np
_UNSUPPORTED = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP)


def exchange(one: Path, other: Path) -> bool:
    """Give each of two folders on one file system the other's name; False where system or file system cannot."""
    try:
        library = ctypes.CDLL(None, use_errno=True)
    except TypeError:  # Windows
        return False
    names = os.fsencode(one), os.fsencode(other)
    if hasattr(library, "renameat2"):
        result = library.renameat2(_HERE, names[0], _HERE, names[1], ctypes.c_uint(_EXCHANGE))
    elif hasattr(library, "renamex_np"):
        result = library.renamex_np(*names, ctypes.c_uint(_SWAP))
    else:  # an older C library
        return False
    if result == 0:
        return True
    number = ctypes.get_errno()
    if number in _UNSUPPORTED:
        return False
    raise OSError(number, os.strerror(number), str(other))
