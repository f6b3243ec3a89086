"""Exports that die, at every single step on the file system, and what the next one makes of it."""

from __future__ import annotations

import errno
import logging
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ptq4vit_onnx.errors import UserError
from ptq4vit_onnx.files import leftovers, outputs
from ptq4vit_onnx.files.outputs import claimed, whole_folder

# A process that writes an export of two files, and dies just before its Nth step on the file system.
EXPORT = """
import os, signal, sys
from pathlib import Path
from ptq4vit_onnx.files import outputs
place, text, last, exchanges = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4] == "exchange"
if not exchanges:
    outputs.exchange = lambda *_: False
def step(function):
    def counted(*arguments, **options):
        global last
        last -= 1
        if last == 0:
            os.kill(os.getpid(), int(sys.argv[5]))
        return function(*arguments, **options)
    return counted
for module, name in ((os, "rename"), (os, "replace"), (os, "unlink"), (os, "rmdir"), (os, "mkdir"), (os, "fsync"),
                     (os, "open"), (outputs, "exchange")):
    setattr(module, name, step(getattr(module, name)))
with outputs.claimed(place, True), outputs.whole_folder(place, True) as staging:
    for name in ("model.onnx", "plan.json"):
        (staging / name).write_text(text)
"""
FORMS = [pytest.param("exchange", marks=pytest.mark.skipif(sys.platform == "win32", reason="none there")), "renames"]


def export(place: Path, text: str, last: int, form: str, number: signal.Signals = signal.SIGKILL) -> int:
    command = [sys.executable, "-c", EXPORT, str(place), text, str(last), form, str(int(number))]
    return subprocess.run(command, check=False, timeout=60).returncode


def texts(place: Path) -> list[str]:
    return [file.read_text() for file in sorted(place.iterdir())]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
@pytest.mark.parametrize("form", FORMS)
def test_whenever_an_export_dies_the_old_or_the_new_folder_is_whole_and_nothing_else_stays(
    form: str, number: signal.Signals, tmp_path: Path
) -> None:
    place, old, new = tmp_path / "out", ["old", "old"], ["new", "new"]
    steps, at_once = 0, []
    while True:
        steps += 1
        assert export(place, "old", 0, form) == 0
        code = export(place, "new", steps, form, number)
        if code == 0:
            break
        assert code == -number
        at_once.append(place.exists())
        assert not place.exists() or texts(place) in (old, new)
        with pytest.raises(UserError, match="exists"), claimed(place, False):  # the next start, which finds it there
            pass
        assert texts(place) in (old, new)
        assert list(tmp_path.iterdir()) == [place]
    assert steps > 12, "the steps were seen"
    dies_between = form == "renames" and number == signal.SIGKILL  # an interrupted process puts it back itself
    assert at_once.count(False) == int(dies_between)


@contextmanager
def as_another(place: Path) -> Iterator[None]:
    """Another export at work on the same place."""
    with claimed(place, True), whole_folder(place, True) as staging:
        (staging / "model.onnx").touch()
        yield


def test_two_exports_into_one_folder_at_once_are_refused_and_disturb_nothing(tmp_path: Path) -> None:
    place, link = tmp_path / "out", tmp_path / "link"
    link.symlink_to(place)
    with as_another(place):
        before = sorted(tmp_path.iterdir())
        for name in (place, link):
            message = f"another export is writing to {name}; wait until it has ended, or give another --output"
            with pytest.raises(UserError, match=re.escape(message)), claimed(name, True):
                pytest.fail("two at once")
        assert sorted(tmp_path.iterdir()) == before
        with claimed(tmp_path / "other", False):
            pass
    assert (place / "model.onnx").exists() and sorted(tmp_path.iterdir()) == [link, place]


def test_nothing_is_deleted_that_no_export_wrote(tmp_path: Path) -> None:
    place = tmp_path / "out"
    kept = [".out.partial-notes", ".out.partial-0123abcd/thesis.txt", ".out.old-0123abcd/deep/plan.json",
            ".out.partial-0123456789/plan.json", ".other.partial-0123abcd/plan.json", ".out.txt"]  # fmt: skip
    gone = [".out.partial-a_b4c9d2/plan.json", ".out.old-ffffffff/model.onnx", ".out.lock",
            ".out.partial-b_b4c9d2/plan.safetensors",
            "..out.resume.jsonl.ptq4vit-partial"]  # fmt: skip
    (tmp_path / ".out.partial-abcdefgh").symlink_to(tmp_path)
    for name in ["out/model.onnx", *kept, *gone]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    with claimed(place, True):
        pass
    assert (tmp_path / ".out.partial-abcdefgh").is_symlink()
    assert all((tmp_path / name).exists() for name in kept)
    assert not any((tmp_path / name).exists() for name in gone)


def test_the_latest_of_the_replaced_folders_is_put_back(tmp_path: Path) -> None:
    for number, name in enumerate((".out.old-ffffffff", ".out.old-00000000")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.onnx").write_text(name)
        os.utime(tmp_path / name, (number, number))
    leftovers.recover(tmp_path / "out")
    assert (tmp_path / "out" / "model.onnx").read_text() == ".out.old-00000000"
    assert list(tmp_path.iterdir()) == [tmp_path / "out"]


def test_folders_made_for_an_export_that_failed_go_again(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="x"), claimed(tmp_path / "deep" / "deeper" / "out", False):
        raise ValueError("x")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "deep").mkdir()
    with pytest.raises(ValueError, match="x"), claimed(tmp_path / "deep" / "deeper" / "out", False):
        raise ValueError("x")
    assert list(tmp_path.iterdir()) == [tmp_path / "deep"]


def test_an_error_of_the_work_is_not_taken_for_one_of_the_output(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="an image"), claimed(tmp_path / "out", False):
        raise OSError(errno.EIO, "an image")


def test_where_there_are_no_locks_nothing_is_collected_and_a_line_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def none(path: Path) -> int:
        path.touch()
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(outputs, "take", none)
    left = tmp_path / ".out.partial-01234567"
    left.mkdir()
    with caplog.at_level(logging.WARNING), claimed(tmp_path / "out", False):
        pass
    assert "has no locks" in caplog.text and list(tmp_path.iterdir()) == [left]
    outputs.write_whole(tmp_path / "result.json", "text")
    assert (tmp_path / "result.json").read_text() == "text"


def test_a_file_that_a_dead_process_began_is_written_over(tmp_path: Path) -> None:
    (tmp_path / ".result.json.ptq4vit-partial").write_text("half of a much longer res")
    outputs.write_whole(tmp_path / "result.json", "whole")
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("result.json", "whole")]
