"""Locks: one holder at a time, and none once its process is dead."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ptq4vit_onnx.files import locks
from ptq4vit_onnx.files.locks import is_unsupported, release, take


def test_a_lock_is_held_by_one_and_leaves_no_file(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    held = take(path)
    assert held is not None and take(path) is None
    release(path, held)
    again = take(path)
    assert again is not None
    release(path, again)
    assert list(tmp_path.iterdir()) == []


def test_a_dead_process_holds_nothing(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    hold = f"import os; from ptq4vit_onnx.files.locks import take; from pathlib import Path; take(Path({str(path)!r}))"
    subprocess.run([sys.executable, "-c", f"{hold}; os.kill(os.getpid(), 9)"], check=False)
    assert path.exists()
    held = take(path, create=False)
    assert held is not None
    release(path, held)


def test_a_file_that_was_renamed_while_one_waited_is_not_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "lock"
    lock = locks._lock

    def meanwhile(descriptor: int) -> bool:
        if not (tmp_path / "renamed").exists():
            path.rename(tmp_path / "renamed")
        return lock(descriptor)

    monkeypatch.setattr(locks, "_lock", meanwhile)
    held = take(path)
    assert held is not None and os.path.samestat(os.fstat(held), path.stat())
    release(path, held)


def test_only_what_is_there_is_taken_without_creating(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        take(tmp_path / "lock", create=False)


def test_a_pipe_is_no_lock(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "lock")
    with pytest.raises(FileExistsError):
        take(tmp_path / "lock")


def test_a_file_system_without_locks_is_told_from_one_that_fails() -> None:
    assert is_unsupported(OSError(errno.ENOLCK, "No locks available"))
    assert not is_unsupported(OSError(errno.EIO, "Input/output error"))
