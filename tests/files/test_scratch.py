"""Temporary folders: gone at the end, and those of dead processes with the next."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from ptq4vit_onnx.files.scratch import marked, scratch_folder


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_a_folder_is_private_and_gone_at_the_end(place: Path) -> None:
    with scratch_folder() as folder:
        (folder / "model.onnx").touch()
        assert folder.stat().st_mode & 0o777 == 0o700
    assert list(place.iterdir()) == []


def test_what_a_dead_process_left_goes_and_what_a_living_one_needs_stays(place: Path) -> None:
    leave = "with scratch_folder() as folder: (folder / 'model.onnx').touch(); os.kill(os.getpid(), 9)"
    command = f"import os; from ptq4vit_onnx.files.scratch import scratch_folder\n{leave}"
    subprocess.run([sys.executable, "-c", command], env={**os.environ, "TMPDIR": str(place)}, check=False)
    (dead,) = (entry for entry in place.iterdir() if entry.is_dir())
    (place / "ptq4vit_onnx_notes.lock").touch()
    (place / "ptq4vit_onnx_notes").mkdir()
    with scratch_folder() as one:
        assert not dead.exists() and not dead.with_suffix(".lock").exists()
        with scratch_folder() as other:
            assert one.is_dir() and other.is_dir()
    assert sorted(entry.name for entry in place.iterdir()) == ["ptq4vit_onnx_notes", "ptq4vit_onnx_notes.lock"]


def test_a_link_in_place_of_a_folder_is_not_followed(place: Path) -> None:
    (place / "mine").mkdir()
    (place / "mine" / "thesis.txt").touch()
    (place / "ptq4vit_onnx_0123456789ab").symlink_to(place / "mine")
    (place / "ptq4vit_onnx_0123456789ab.lock").touch()
    with scratch_folder():
        pass
    assert (place / "mine" / "thesis.txt").exists()


def test_a_mark_lies_next_to_its_place_while_it_is_needed(place: Path) -> None:
    output, stale = place / "new" / "out", place / "new" / ".out.seen-0123abcd"
    stale.parent.mkdir()
    stale.touch()
    with marked([output]) as (mark,):
        assert list(output.parent.iterdir()) == [mark], "what a dead run left is gone"
    assert list(place.iterdir()) == [output.parent], "it was there before"
    with marked([place / "other" / "deep" / "out"]) as (mark,):
        assert mark.exists()
    assert list(place.iterdir()) == [output.parent]
