"""Images and labels as numpy writes them: .npy and .npz, whose headers are believed as far as the file bears them out.

A header may promise more numbers than there is memory for; it is held against the bytes that are there before any are
asked for. Pickled objects are refused, never loaded.
"""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, TypeAlias

import numpy as np

from ptq4vit_onnx.errors import UserError, one_line
from ptq4vit_onnx.files.inputs import unfit

Array: TypeAlias = np.ndarray[Any, Any]
MOST_INFLATED = 2**28  # bytes that a member of an .npz may grow to, however small it is
MOST_GROWTH = 50  # times beyond that; preprocessed photographs hardly shrink


def read_arrays(source: Path) -> tuple[Array, Array | None]:
    """`images` and, where there are some, `labels`."""
    with _refused(source):
        labels = _read(source, "labels") if has_array(source, "labels") else None
        return _read(source, "images"), labels


def images_shape(source: Path) -> tuple[int, ...]:
    """What the header says of the images; none is read."""
    with _refused(source), _member(source, "images") as (stream, size):
        return _header(stream, size, "images")[0]


def has_array(source: Path, name: str) -> bool:
    """Whether an .npz has an array of this name; an .npy has images alone."""
    if source.suffix == ".npy":
        return False
    with _refused(source), zipfile.ZipFile(source) as archive:
        return _info(archive, name) is not None


@contextmanager
def _refused(source: Path) -> Iterator[None]:
    """A UserError for whatever is wrong with the file: readers of zip archives and headers raise nearly anything."""
    reason = unfit(source)
    if reason is not None:
        raise _not_arrays(source, reason)
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        raise _not_arrays(source, one_line(error).strip("'\"")) from error


def _not_arrays(source: Path, reason: str) -> UserError:
    return UserError(f"cannot read {source}: {reason}; expected `images` as float32 [n, C, H, W]")


@contextmanager
def _member(source: Path, name: str) -> Iterator[tuple[IO[bytes], int]]:
    """An array of the file as (stream, how many bytes it has)."""
    if source.suffix == ".npy":
        with source.open("rb") as file:
            yield file, source.stat().st_size
        return
    with zipfile.ZipFile(source) as archive:
        found = _info(archive, name)
        if found is None:
            raise ValueError(f"{name} is not a file in the archive")
        if found.file_size > max(MOST_INFLATED, MOST_GROWTH * found.compress_size):
            raise ValueError(f"its {name} would grow from {found.compress_size} to {found.file_size} bytes")
        with archive.open(found) as member:
            yield member, found.file_size


def _info(archive: zipfile.ZipFile, name: str) -> zipfile.ZipInfo | None:
    """Of an array in an archive; numpy adds .npy to its name, and others may not."""
    return next((item for item in archive.infolist() if item.filename in (f"{name}.npy", name)), None)


def _read(source: Path, name: str) -> Array:
    with _member(source, name) as (stream, size):
        shape, by_columns, kind = _header(stream, size, name)
        values = np.frombuffer(_bytes(stream, math.prod(shape) * kind.itemsize), kind)
    return np.ascontiguousarray(values.reshape(shape, order="F" if by_columns else "C"))


def _bytes(stream: IO[bytes], count: int) -> bytearray:
    found = bytearray(count)  # an array of it can be written to
    read, view = 0, memoryview(found)
    while read < count:
        more = stream.readinto(view[read:])  # type: ignore[attr-defined]
        if not more:
            raise ValueError(f"it ends after {read} of {count} bytes")
        read += more
    return found


def _header(stream: IO[bytes], size: int, name: str) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """(shape, whether columns come first, type); the stream is afterwards where the numbers begin."""
    try:
        version = np.lib.format.read_magic(stream)
    except ValueError as error:
        raise ValueError(f"its {name} is not an array") from error
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"it is of version {version} of numpy's format, expected 1.0 or 2.0")
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, by_columns, kind = read(stream)
    if kind.hasobject:
        raise ValueError("it holds pickled objects, which are not loaded")
    if not all(length >= 0 for length in shape):
        raise ValueError(f"its header says {list(shape)!r:.60}")
    needed, there = math.prod(shape) * kind.itemsize, size - stream.tell()
    if needed > there:
        raise ValueError(f"its header says {kind} {list(shape)!r:.60}, which is {needed:.4g} bytes; it has {there}")
    return shape, by_columns, kind
