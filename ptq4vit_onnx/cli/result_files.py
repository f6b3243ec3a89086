"""Files that a command writes its result to, beside what it prints."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ptq4vit_onnx.errors import UserError

STANDARD_OUTPUT = ("-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1")


@dataclass(frozen=True)
class ResultFile:
    """option: the option that named it, as --json."""

    option: str
    path: Path

    @property
    def is_printed(self) -> bool:
        """Whether the path is standard output; then the result is the only thing that is printed."""
        return str(self.path) in STANDARD_OUTPUT


def named_results(**paths: Path | None) -> list[ResultFile]:
    """json=Path("a.json") -> the result that --json names; None is left out."""
    return [ResultFile(f"--{name}", path) for name, path in paths.items() if path is not None]


def require_apart(results: Sequence[ResultFile], inputs: Mapping[str, Path | None]) -> None:
    """Refuse a result that would replace an input or another result. inputs: description -> path."""
    taken = {name: path for name, path in inputs.items() if path is not None}
    for result in results:
        for name, path in taken.items():
            if _same(result.path, path):
                raise UserError(f"{result.option} {result.path} is {name} as well; give another {result.option}")
        taken[result.option] = result.path


def _same(one: Path, other: Path) -> bool:
    """Whether both are one file, links followed; files that do not exist are compared by their real paths."""
    try:
        return one.samefile(other)
    except OSError:
        return os.path.realpath(one) == os.path.realpath(other)
