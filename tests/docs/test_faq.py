"""docs/faq.md quotes error messages as the source has them."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FAQ = ROOT / "docs" / "faq.md"
OURS = ("ptq4vit_onnx", "passes", "models")  # ptq4vit_onnx/passes and ptq4vit_onnx/models are links, not followed
QUOTED = re.compile(r"^### `(.+)`$", re.MULTILINE)
OTHERS = {"operator torchvision::nms does not exist"}  # what other libraries say
LEAVES_OUT = "…"  # what the message fills in
HOLE = "\0"
LEAST = 15  # letters of fixed text; less would be found by chance


def quoted() -> list[str]:
    return QUOTED.findall(FAQ.read_text(encoding="utf-8"))


@cache
def texts() -> tuple[str, ...]:
    """Every string of our source; what an f-string fills in is a hole."""
    files = [file for folder in OURS for file in sorted((ROOT / folder).rglob("*.py"))]
    trees = [ast.parse(file.read_text(encoding="utf-8")) for file in files]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    return tuple(filter(None, map(text_of, nodes)))


def text_of(node: ast.AST) -> str:
    """Of an f-string or a plain string; "" of anything else."""
    if isinstance(node, ast.JoinedStr):
        return "".join(map(text_of, node.values))
    if isinstance(node, ast.FormattedValue):
        return HOLE
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def is_said(message: str) -> bool:
    """Whether one string of the source has all fixed parts of a message in their order, with holes between them.

    At the end of a message, what is left out may be fixed text as well.
    """
    parts = [part.strip() for part in message.removesuffix(LEAVES_OUT).split(LEAVES_OUT)]
    pattern = re.compile(f"[^{HOLE}]*{HOLE}.*?".join(map(re.escape, parts)), re.DOTALL)
    return sum(map(len, parts)) >= LEAST and any(pattern.search(text) for text in texts())


@pytest.mark.parametrize("message", [message for message in quoted() if message not in OTHERS])
def test_a_quoted_message_is_one_that_the_source_has(message: str) -> None:
    assert is_said(message), "the message has other words; quote it as it is, and check the advice below it"


def test_there_are_many_quoted_messages() -> None:
    assert len(quoted()) >= 20


@pytest.mark.parametrize(
    "message",
    [
        "no model called …; closest are",  # other words
        "output folder … exists; give another --output, … or --force to replace it",  # a hole that is none
        "give a folder, an ImageFolder tree, .npy or .npz … no images at",  # the other way round
        "no model",  # too little to tell
    ],
)
def test_a_message_that_nobody_says_is_found_out(message: str) -> None:
    assert not is_said(message)
