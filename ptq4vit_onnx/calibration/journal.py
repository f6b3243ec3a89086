"""The journal of a calibration: finished sites, kept next to the output, so that an interrupted run can go on."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from ptq4vit_onnx.files.inputs import read_bytes
from ptq4vit_onnx.files.outputs import write_whole
from ptq4vit_onnx.plan.plan_json import parse_named_site, plain
from ptq4vit_onnx.plan.scale_plan import SitePlan

_ADVICE = "an interrupted run left it behind: delete it, and calibration begins anew"


class Journal:
    """The first line is a hash of the run's inputs; a journal of other inputs is ignored. Each further line is a site.

    A process that is killed may leave an incomplete last line; reading drops it.
    """

    def __init__(self, path: Path, identity: dict[str, Any]) -> None:
        self.path = path
        self.key = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()

    def read(self) -> dict[str, SitePlan]:
        if not os.path.lexists(self.path):
            return {}
        first, *lines = read_bytes(self.path, "journal", _ADVICE).decode(errors="replace").splitlines() or [""]
        if first != self.key:
            return {}
        found = {}
        for line in lines:
            try:
                name, plan = parse_named_site(line)
            except ValueError:  # a torn line, or one that holds something else
                break
            found[name] = plan
        return found

    def start(self, known: dict[str, SitePlan]) -> None:
        lines = [self.key, *(json.dumps([name, plain(plan)]) for name, plan in known.items())]
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(self.path, "\n".join(lines) + "\n")

    def add(self, name: str, plan: SitePlan) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps([name, plain(plan)]) + "\n")
