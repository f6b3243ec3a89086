"""Results of finished tasks on disk, so that a driver that was killed goes on where it stopped."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from ptq4vit_onnx.files.inputs import read_bytes

_ADVICE = "an interrupted run left it behind: delete it, and its tasks are done anew"


class KeptResults:
    """A line for each: a key that names all that the result depends on, and the result as JSON.

    A process that is killed may leave an incomplete last line; reading drops it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.known: dict[str, Any] = dict(self._lines()) if os.path.lexists(path) else {}

    def _lines(self) -> list[tuple[str, Any]]:
        found = []
        for line in read_bytes(self.path, "journal", _ADVICE).decode(errors="replace").splitlines():
            try:
                key, result = json.loads(line)
            except (ValueError, TypeError):
                continue
            found.append((key, result))
        return found

    def add(self, key: str, result: Any) -> None:
        self.known[key] = result
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write("\n" * self._is_torn() + json.dumps([key, result]) + "\n")

    def _is_torn(self) -> bool:
        """Whether the last line has no end, so that another must not go on in it."""
        if not self.path.stat().st_size:
            return False
        with self.path.open("rb") as file:
            file.seek(-1, os.SEEK_END)
            return file.read(1) != b"\n"

    def clear(self) -> None:
        self.path.unlink(missing_ok=True)
