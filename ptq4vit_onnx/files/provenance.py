"""What a result came from: versions of the libraries, and the identity of input files and folders."""

from __future__ import annotations

import hashlib
import platform
from importlib import metadata
from pathlib import Path
from typing import TypeAlias

from ptq4vit_onnx import __version__

Identity: TypeAlias = list[str | int] | None


def file_identity(path: Path | None) -> Identity:
    """Path, size and modification time, of which at least one changes if the file is replaced."""
    return None if path is None else [str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns]


def data_identity(path: Path | None) -> Identity:
    """Of a folder, a hash of the names and sizes of its files and of the text of labels.csv."""
    if path is None or not path.is_dir():
        return file_identity(path)
    digest = hashlib.sha256()
    for file in sorted(item for item in path.rglob("*") if item.is_file()):
        digest.update(f"{file.relative_to(path)}\0{file.stat().st_size}\n".encode())
        if file.name == "labels.csv":
            digest.update(file.read_bytes())
    return [str(path.resolve()), digest.hexdigest()]


def versions() -> dict[str, str]:
    names = ("torch", "timm", "onnx", "onnxruntime", "onnx-graphsurgeon", "numpy")
    return {
        "ptq4vit-onnx": __version__, "python": platform.python_version(),
        **{name: metadata.version(name) for name in names},
    }  # fmt: skip
