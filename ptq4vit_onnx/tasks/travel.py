"""Files on a machine that does not have them.

A task names the files it reads by the paths of whoever asks. Where such a path holds the same content, as on the same
machine or on shared storage, it is read there. Elsewhere its parts come through the object store and are unpacked once
for the whole machine, into a folder named by their content.
"""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from pathlib import Path

from ptq4vit_onnx.files.locks import release, take
from ptq4vit_onnx.files.provenance import data_identity

PART = 64 << 20  # bytes of a part: small enough that several machines read different parts at once
TURN = 0.1  # seconds between two looks at what another process of this machine is unpacking
_places: ContextVar[Mapping[str, Path] | None] = ContextVar("places", default=None)


def here(path: Path) -> Path:
    """Where this machine has a file or folder of the caller's; the same path, where nothing travelled."""
    return (_places.get() or {}).get(str(path), path)


@contextmanager
def placed(places: Mapping[str, Path]) -> Iterator[None]:
    """While it is open, `here` answers with these places."""
    token = _places.set(places)
    try:
        yield
    finally:
        _places.reset(token)


def content_of(path: Path) -> str:
    """Names the content of a file, or of a folder by its names, sizes and labels.csv; empty where there is nothing."""
    try:
        state = path.stat()
        return _content(str(path.absolute()), state.st_mtime_ns, state.st_size)
    except OSError:
        return ""


@cache
def _content(path: str, _modified: int, _size: int) -> str:
    if Path(path).is_dir():
        return str((data_identity(Path(path)) or [""])[-1])
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def parts_of(path: Path) -> Iterator[bytes]:
    """A file or folder as parts that `unpacked` takes."""
    buffer = _Parts()
    with tarfile.open(fileobj=buffer, mode="w|", bufsize=1 << 20) as archive:
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if file.is_file():
                name = file.relative_to(path) if path.is_dir() else Path(path.name)
                archive.add(os.path.realpath(file), arcname=str(name), recursive=False)
                yield from buffer.whole()
    yield from buffer.whole()
    yield buffer.rest()


class _Parts(io.RawIOBase):
    """What is written, cut into parts."""

    def __init__(self) -> None:
        super().__init__()
        self.held = bytearray()

    def writable(self) -> bool:
        return True

    def write(self, data: bytes) -> int:  # type: ignore[override]
        self.held += data
        return len(data)

    def whole(self) -> Iterator[bytes]:
        while len(self.held) >= PART:
            part, self.held = bytes(self.held[:PART]), self.held[PART:]
            yield part

    def rest(self) -> bytes:
        return bytes(self.held)


def kept_place(path: Path, content: str) -> Path:
    """Where this machine keeps what travelled, by content; in a folder that is this user's alone."""
    owner = os.getuid() if hasattr(os, "getuid") else 0
    folder = Path(tempfile.gettempdir()) / f"ptq4vit_onnx_travelled_{owner}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if hasattr(os, "getuid") and folder.lstat().st_uid != owner:
        raise PermissionError(f"{folder} belongs to somebody else")
    return folder / content[:32] / path.name


def unpacked(path: Path, content: str, parts: Iterable[bytes], is_folder: bool) -> Path:
    """The place of what travelled, unpacked unless this machine has it; one process at a time does that."""
    place = kept_place(path, content)
    lock = place.parent.with_suffix(".lock")
    while not place.exists():
        descriptor = take(lock)
        if descriptor is None:
            time.sleep(TURN)
            continue
        try:
            if not place.exists():
                _unpack(place, parts, is_folder)
        finally:
            release(lock, descriptor)
    return place


def _unpack(place: Path, parts: Iterable[bytes], is_folder: bool) -> None:
    """Under a name of its own first, so that what has the name is whole."""
    with tempfile.TemporaryDirectory(dir=place.parent.parent) as scratch:
        with tarfile.open(fileobj=_Reader(parts), mode="r|") as archive:
            archive.extractall(Path(scratch) / "all", filter="data")
        found = Path(scratch) / "all" if is_folder else Path(scratch) / "all" / place.name
        place.parent.mkdir(exist_ok=True)
        found.rename(place)


class _Reader(io.RawIOBase):
    """Parts one after the other, each fetched when the one before is read."""

    def __init__(self, parts: Iterable[bytes]) -> None:
        super().__init__()
        self.parts, self.held = iter(parts), b""

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        while size < 0 or len(self.held) < size:
            part = next(self.parts, None)
            if part is None:
                break
            self.held += part
        size = len(self.held) if size < 0 else size
        found, self.held = self.held[:size], self.held[size:]
        return found
