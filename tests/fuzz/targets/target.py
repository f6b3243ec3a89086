"""What a fuzzed kind of file is to a test: how one is changed, and who reads it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from random import Random


class Target(ABC):
    """examples: in the default suite. attack: writes a changed file below `folder` and has it read."""

    examples = 100

    @abstractmethod
    def attack(self, random: Random, folder: Path) -> None: ...
