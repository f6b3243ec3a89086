"""Where figures are kept: benchmarks/results/NAME.json, each with its commit, date, machine and versions."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from ptq4vit_onnx.files.provenance import versions
from ptq4vit_onnx.runtime.cpu import cpu_features

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "benchmarks" / "results"
NOT_RESULTS = ":(exclude)benchmarks/results"  # a run that writes its rows one by one does not change what it measures


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
    path.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    return path


def read(name: str) -> dict[str, Any]:
    """What `write` kept; empty where there is nothing yet."""
    path = FOLDER / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
