"""docs/architecture.md says of every room what the room says of itself, and names what is there."""

from __future__ import annotations

import re

import pytest

from tools import room_table
from tools.rooms import LEVELS, ROOT, modules

TEXT = room_table.PAGE.read_text(encoding="utf-8")


def test_the_table_of_rooms_is_what_the_rooms_say() -> None:
    assert room_table.written(TEXT) == TEXT, "run python tools/room_table.py"


def test_every_room_has_a_line() -> None:
    table = room_table.table(modules())
    assert re.findall(r"^\| \d+ \| `(\w+)`", table, re.MULTILINE) == [room for line in LEVELS[::-1] for room in line]


def test_a_line_that_was_changed_by_hand_is_seen() -> None:
    changed = TEXT.replace("Does the quantised file compute", "Maybe the file computes")
    assert changed != TEXT and room_table.written(changed) == TEXT


PAGES = pytest.mark.parametrize("page", ["docs/architecture.md", "docs/method.md", "CONTRIBUTING.md"])


@PAGES
def test_every_file_and_folder_that_a_page_names_is_there(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    named = [name for name in re.findall(r"`((?:\w+/)+(?:[\w.-]+\.\w+)?)`", text) if "NAME" not in name]
    assert len(named) >= 5
    missing = {name for name in named if not any((place / name).exists() for place in (ROOT, ROOT / "ptq4vit_onnx"))}
    assert not missing


@PAGES
def test_every_class_and_constant_that_a_page_names_is_in_the_source(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    source = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("*.py"))
    source += "\n".join(module.path.read_text(encoding="utf-8") for module in modules().values())
    named = set(re.findall(r"`([A-Z]\w{3,})`", text)) - {"NAME"}
    assert {name for name in named if not re.search(rf"\b{name}\b", source)} == set()
