"""The table of rooms in docs/architecture.md, written from the docstrings of the rooms and the rules of tools/rooms.py.

    python tools/room_table.py            # writes it
    python tools/room_table.py --check    # ends with 1 where the page and the rooms disagree

The page says where the table stands:  <!-- rooms -->  ...  <!-- end of rooms -->
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Mapping
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tools.rooms import LEVELS, MAY_ONNX, MAY_SAFETENSORS, MAY_TORCH, ROOT, Module, modules

PAGE = ROOT / "docs" / "architecture.md"
PLACE = re.compile(r"(<!-- rooms -->\n).*?(<!-- end of rooms -->)", re.DOTALL)
LIBRARIES = {"torch": MAY_TORCH, "ONNX": MAY_ONNX, "safetensors": MAY_SAFETENSORS}


def table(known: Mapping[str, Module]) -> str:
    """A line for every room, the highest level first: a room imports only from rows with a smaller level."""
    lines = ["| level | room | what it is for | may import |", "|---|---|---|---|"]
    for level in reversed(range(len(LEVELS))):
        for room in LEVELS[level]:
            libraries = ", ".join(name for name, rooms in LIBRARIES.items() if room in rooms)
            lines.append(f"| {level} | `{room}` | {purpose(known[room])} | {libraries} |")
    return "\n".join(lines)


def purpose(room: Module) -> str:
    """The first paragraph of its docstring, on one line."""
    described = ast.get_docstring(room.tree)
    assert described, f"{room.name} does not say its purpose"
    return described.partition("\n\n")[0].replace("\n", " ").replace("|", "\\|")


def written(text: str) -> str:
    """The page with its table as the rooms say."""
    return PLACE.sub(lambda found: f"{found[1]}\n{table(modules())}\n\n{found[2]}", text)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    before = PAGE.read_text(encoding="utf-8")
    after = written(before)
    if before == after:
        return 0
    print(f"{PAGE.relative_to(ROOT)}: {'differs from the rooms' if check else 'written'}")
    if not check:
        PAGE.write_text(after, encoding="utf-8")
    return 1 if check else 0


if __name__ == "__main__":
    sys.exit(main())
