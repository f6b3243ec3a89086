"""What lies next to an output while an export runs, and how the next run finds what a dead one left there.

Next to the folder `out` there may be, all hidden:
    .out.lock               held by the one export that writes to `out`; the system lets go of it when that dies
    .out.resume.jsonl       the journal of a calibration, which the same command goes on from
    .out.partial-xxxxxxxx   the files of an export that is not complete, or those that it has replaced
    .out.old-xxxxxxxx       the folder that is being replaced, where names cannot be exchanged in one step
Whoever holds the lock knows that the others' owners are dead. A folder of such a name that holds anything but an
export's files is somebody else's, and stays.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
from pathlib import Path

# All that an export or a study of budgets writes; --force replaces a folder of these and no other.
EXPORT_FILES = (
    "model.onnx", "model.onnx.data", "float.onnx", "float.onnx.data", "plan.json", "plan.safetensors", "report.json",
    "report.html", "pareto.csv", "pareto.html", "pareto.svg", "pareto.json",
)  # fmt: skip
OF_A_SIZE = re.compile(r"\d+\.\d+MB\.(onnx|onnx\.data|json|safetensors)")  # a budget's file and plan


def real_place(folder: Path) -> Path:
    """Where a folder lies or will lie, links followed: a link that names the output stays, its target is replaced."""
    return Path(os.path.realpath(folder))


def lock_of(place: Path) -> Path:
    return _beside(place, "lock")


def journal_of(place: Path) -> Path:
    return _beside(place, "resume.jsonl")


def partial_of(file: Path) -> Path:
    """Where a file is written before it gets its name; locked meanwhile (see `write_whole`)."""
    return _beside(file, "ptq4vit-partial")


def fresh_name(place: Path, what: str) -> Path:
    """.out.old-0f4c9ab2"""
    return _beside(place, f"{what}-{secrets.token_hex(4)}")


def foreign_entry(folder: Path) -> str | None:
    """The first entry of a folder that no export writes."""
    entries = sorted(folder.iterdir()) if folder.is_dir() else []
    return next((entry.name for entry in entries if not _is_ours(entry)), None)


def _is_ours(entry: Path) -> bool:
    return (entry.name in EXPORT_FILES or OF_A_SIZE.fullmatch(entry.name) is not None) and not entry.is_dir()


def recover(place: Path) -> None:
    """Put a folder back that was about to be replaced, and delete what else dead runs left; only under the lock."""
    old = sorted(_left(place, "old"), key=lambda folder: folder.stat().st_mtime_ns)
    if old and not os.path.lexists(place):
        old.pop().rename(place)
    for folder in (*old, *_left(place, "partial")):
        shutil.rmtree(folder)
    partial_of(journal_of(place)).unlink(missing_ok=True)


def _left(place: Path, what: str) -> list[Path]:
    name = re.compile(re.escape(f".{place.name}.{what}-") + "[a-z0-9_]{8}")
    with os.scandir(place.parent) as entries:
        found = [Path(entry) for entry in entries if name.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False)]
    return [folder for folder in found if foreign_entry(folder) is None]


def _beside(place: Path, what: str) -> Path:
    return place.with_name(f".{place.name}.{what}")
