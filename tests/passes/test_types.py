"""`Any` is rare in the signatures of passes: whoever reads one knows what goes in and out."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

PASSES = Path(__file__).resolve().parents[2] / "passes"
MOST = 0.15  # of the signatures


def signatures(folder: Path) -> Iterator[tuple[str, bool]]:
    """(file:function, whether Any stands in an annotation of a parameter or of the result)."""
    for path in sorted(folder.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                given = [item for item in ast.walk(node.args) if isinstance(item, ast.arg)]
                annotations = [item.annotation for item in given] + [node.returns]
                names = [name for item in annotations if item is not None for name in ast.walk(item)]
                yield f"{path.name}:{node.name}", any(isinstance(n, ast.Name) and n.id == "Any" for n in names)


def test_any_is_rare_in_the_signatures_of_passes() -> None:
    found = dict(signatures(PASSES))
    vague = [name for name, is_vague in found.items() if is_vague]
    assert len(found) > 80 and len(vague) <= MOST * len(found), vague


def test_any_is_found_in_parameters_and_results(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("def f(x: list[Any]) -> int: ...\ndef g(*, y) -> Any: ...\ndef h(z: int): ...\n")
    assert dict(signatures(tmp_path)) == {"a.py:f": True, "a.py:g": True, "a.py:h": False}
