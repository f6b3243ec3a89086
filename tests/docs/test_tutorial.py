"""The cheap blocks of docs/tutorial.md run one after the other, as a reader would, and print what the page shows."""

from __future__ import annotations

import re
import runpy
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from ptq4vit_onnx.cli import main as cli

ROOT = Path(__file__).resolve().parents[2]
TUTORIAL = ROOT / "docs" / "tutorial.md"
BLOCK = re.compile(
    r"<!-- run (?:command|script) -->\n```(sh|python)\n(.*?)```\n"
    r"(?:\n<!-- output of the run command -->\n```text\n(.*?)```\n)?",
    re.DOTALL,
)
LEFT_OUT = "..."


@dataclass(frozen=True)
class Block:
    """language: sh or python. shown: the output on the page; empty where it shows none."""

    language: str
    text: str
    shown: str


def blocks() -> list[Block]:
    return [Block(*found) for found in BLOCK.findall(TUTORIAL.read_text(encoding="utf-8"))]


def run(block: Block) -> None:
    """In this process, which has torch already; examples in one of their own, as they stand."""
    if block.language == "python":
        script = Path("script.py")
        script.write_text(block.text, encoding="utf-8")
        with torch.random.fork_rng():
            torch.manual_seed(0)
            runpy.run_path(str(script))
        return
    for line in block.text.splitlines():
        program, *arguments = shlex.split(line)
        if program == "ptq4vit-onnx":
            assert cli.main(arguments) == 0, line
        else:
            assert program == "python", line
            done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=60)
            assert done.returncode == 0, done.stderr
            sys.stdout.write(done.stdout)


def first_missing(shown: str, printed: str) -> str | None:
    """The first line of a shown output that was not printed, or not in this order; spaces do not count."""
    left = iter([" ".join(line.split()) for line in printed.splitlines()])
    for line in shown.splitlines():
        wanted = re.compile(".*".join(map(re.escape, " ".join(line.split()).split(LEFT_OUT))))
        if line.strip() != LEFT_OUT and not any(wanted.fullmatch(found) for found in left):
            return line
    return None


def test_the_marked_blocks_run_and_print_what_the_tutorial_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    found = blocks()
    assert len(found) >= 6, "the marks of the blocks have changed"
    for block in found:
        run(block)
        printed = capsys.readouterr().out
        assert first_missing(block.shown, printed) is None, printed


def test_every_mark_belongs_to_a_block_that_is_run() -> None:
    text = TUTORIAL.read_text(encoding="utf-8")
    assert len(re.findall(r"<!-- run ", text)) == len(blocks())
    assert text.count("<!-- output of ") == sum(bool(block.shown) for block in blocks())


@pytest.mark.parametrize(
    ("shown", "missing"),
    [
        ("one  line\n...\nsize 0.4 MB\n", None),
        ("size ... MB\n", None),
        ("size 0.5 MB\n", "size 0.5 MB"),
        ("size 0.4 MB\none line\n", "one line"),
        ("one\n", "one"),
    ],
)
def test_an_output_that_has_changed_is_seen(shown: str, missing: str | None) -> None:
    assert first_missing(shown, "one line\nanother\nsize     0.4 MB\n") == missing
