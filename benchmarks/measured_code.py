"""Which code a figure measures: a fingerprint of every room of the package, so that one that is older is known as such.

    python benchmarks/measured_code.py            # which results are older than the code they measure, room by room
    python benchmarks/measured_code.py COMMIT     # the fingerprints of that commit

Comments, docstrings and line breaks do not count: they compute nothing. Nor do rooms that a benchmark does not measure:
a changed table of the command line leaves the speed of a file as it was.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import io
import json
import subprocess
import tarfile
import tokenize
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "benchmarks" / "results"
PACKAGE, OUTSIDE = "ptq4vit_onnx", ("passes", "models")
FILES = ("float_export", "passes", "plan", "graph")  # what decides which file is written for a given plan
PLANS = ("calibration", "images", "model_loading", "network", "output_kinds", "planning", "plan")
# The rooms that decide a figure, by the longest beginning of its file's name.
MEASURES: Mapping[str, tuple[str, ...]] = {
    "": (*dict.fromkeys((*PLANS, *FILES, "simulation")),),
    "engines": FILES,
    "file_size": FILES,
    "kills": ("files",),
    "large_model": FILES,
    "many_machines": ("tasks",),
    "method": ("calibration", "images", "model_loading", "network", "output_kinds", "plan"),
    "mutations": ("proof", "passes"),
    "speed": FILES,
    "threads": (*PLANS, "threads"),
    "two_threads": FILES,
}


def measured_rooms(result: str) -> tuple[str, ...]:
    return MEASURES[max((start for start in MEASURES if result.startswith(start)), key=len)]


def fingerprints(commit: str | None = None) -> dict[str, str]:
    """Of each room, as it lies here or as it was at `commit`."""
    rooms: dict[str, list[str]] = defaultdict(list)
    for name, text in sorted(_sources() if commit is None else _sources_at(commit)):
        rooms[_room(name)].append(f"{name}\0{what_computes(text)}")
    return {room: hashlib.sha256("\n".join(files).encode()).hexdigest()[:12] for room, files in sorted(rooms.items())}


def what_computes(text: str) -> str:
    """The source without comments, docstrings and white space."""
    lines = text.splitlines(keepends=True)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column] + "\n"
    for node in ast.walk(ast.parse(text)):
        for statement in getattr(node, "body", [])[:1] if isinstance(getattr(node, "body", None), list) else []:
            if isinstance(statement, ast.Expr) and isinstance(getattr(statement.value, "value", None), str):
                for row in range(statement.lineno, (statement.end_lineno or statement.lineno) + 1):
                    lines[row - 1] = "\n"
    return "".join("".join(lines).split())


def commits(data: Mapping[str, Any]) -> list[str]:
    """Of all rows: a row names its own where it is not that of the file."""
    return sorted({row.get("commit") or data["commit"] for row in data["rows"]})


def older_rooms(data: Mapping[str, Any], result: str, known: Mapping[str, str]) -> list[str]:
    """The rooms that have changed since any row of `data` was measured, of those that decide its figures.

    data["code"]: the rooms' fingerprints, by the commit that a row was measured at.
    """
    codes = [data.get("code", {}).get(commit, {}) for commit in commits(data)]
    return [room for room in measured_rooms(result) if any(code.get(room) != known[room] for code in codes)]


def _room(name: str) -> str:
    parts = name.removeprefix(f"{PACKAGE}/").split("/")
    return parts[0].removesuffix(".py")


def _sources() -> Iterable[tuple[str, str]]:
    for top in (PACKAGE, *OUTSIDE):
        for path in (ROOT / top).rglob("*.py"):
            yield path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")


def _sources_at(commit: str) -> Iterable[tuple[str, str]]:
    command = ["git", "archive", "--format=tar", commit, PACKAGE, *OUTSIDE]
    packed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        for member in archive:
            file = archive.extractfile(member) if member.isfile() and member.name.endswith(".py") else None
            if file is not None:
                yield member.name, file.read().decode()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit", nargs="?")
    commit = parser.parse_args().commit
    known = fingerprints(commit)
    if commit is not None:
        print(json.dumps(known, indent=1))
        return
    for path in sorted(FOLDER.glob("*.json")):
        data = json.loads(path.read_text(encoding="utf-8"))
        older = older_rooms(data, path.stem, known)
        print(f"{path.stem}: " + (f"older than {', '.join(older)}" if older else "of the code as it is"))


if __name__ == "__main__":
    main()
