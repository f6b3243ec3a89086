"""Where figures are kept: benchmarks/results/NAME.json, each with its commit, date, machine and versions."""

from __future__ import annotations

import fcntl
import functools
import json
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from benchmarks.measured_code import FOLDER, ROOT, commits, fingerprints, measured_rooms
from ptq4vit_onnx.files.provenance import versions
from ptq4vit_onnx.runtime.cpu import cpu_features

NOT_RESULTS = ":(exclude)benchmarks/results"  # a run that writes its rows one by one does not change what it measures


@functools.cache  # the code that runs is that of the start, whatever is committed meanwhile
def provenance() -> dict[str, Any]:
    """Of a figure that is measured here; a commit with "+" behind it had uncommitted changes."""
    return {
        "commit": _git("rev-parse", "--short", "HEAD")
        + ("+" if _git("status", "--porcelain", "-uno", "--", ".", NOT_RESULTS) else ""),
        "date": datetime.now(timezone.utc).date().isoformat(),
        "machine": f"{cpu_features()}, {os.cpu_count()} cores",
        "versions": versions(),
    }


def write(name: str, rows: Sequence[Mapping[str, Any]], **settings: Any) -> Path:
    """Keep `rows`, with the settings they were measured with, as NAME.json."""
    FOLDER.mkdir(exist_ok=True)
    path = FOLDER / f"{name}.json"
    data = {**provenance(), "settings": settings, "rows": list(rows)}
    data["code"] = _codes(name, data)
    path.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    return path


def add(name: str, row: Mapping[str, Any], key: Sequence[str], **settings: Any) -> None:
    """Put `row` into NAME.json, in the place of one whose `key` is the same. Processes may take turns at one file.

    The row carries its own commit, date and machine: others of the file may be of other runs.
    """
    own = {key: provenance()[key] for key in ("commit", "date", "machine")}
    with _alone(name):
        rows = [known for known in read(name).get("rows", []) if any(known.get(item) != row.get(item) for item in key)]
        write(name, [*rows, {**row, **own}], **settings)


def has(name: str, row: Mapping[str, Any]) -> bool:
    """Whether NAME.json holds a row of this commit with these values."""
    wanted = {**row, "commit": provenance()["commit"]}
    return any(all(known.get(item) == value for item, value in wanted.items()) for known in read(name).get("rows", []))


def _codes(name: str, data: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """What the rooms that decide these figures were at the commits of the rows: measured_code.py compares them."""
    known = {**read(name).get("code", {}), provenance()["commit"]: _own_code(name)}
    return {commit: known[commit] for commit in commits(data) if commit in known}


@functools.cache  # as the commit: that of the start
def _fingerprints() -> dict[str, str]:
    return fingerprints()


def _own_code(name: str) -> dict[str, str]:
    return {room: _fingerprints()[room] for room in measured_rooms(name)}


@contextmanager
def _alone(name: str) -> Iterator[None]:
    FOLDER.mkdir(exist_ok=True)
    with (FOLDER / f".{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def read(name: str) -> dict[str, Any]:
    """What `write` kept; empty where there is nothing yet."""
    path = FOLDER / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
