"""Sites already searched, kept next to the output: an interrupted calibration goes on where it stopped."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from ptq4vit_onnx.files.outputs import write_whole
from ptq4vit_onnx.plan.scale_plan import SitePlan, parse_site, plain


class Journal:
    """One line per finished site, behind a first line that says what it belongs to; another run's is ignored.

    A line is appended whole, and a torn last line (a killed process) is dropped on reading.
    """

    def __init__(self, path: Path, identity: dict[str, Any]) -> None:
        self.path = path
        self.key = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()

    def read(self) -> dict[str, SitePlan]:
        try:
            first, *lines = self.path.read_text(encoding="utf-8").splitlines()
        except (OSError, ValueError):
            return {}
        if first != self.key:
            return {}
        found = {}
        for line in lines:
            try:
                name, data = json.loads(line)
                found[name] = parse_site(data)
            except (ValueError, TypeError):  # a torn line, or one that holds something else
                break
        return found

    def start(self, known: dict[str, SitePlan]) -> None:
        lines = [self.key, *(json.dumps([name, plain(plan)]) for name, plan in known.items())]
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(self.path, "\n".join(lines) + "\n")

    def add(self, name: str, plan: SitePlan) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps([name, plain(plan)]) + "\n")
