"""Two folders take each other's names in one step, or it is said that the system cannot."""

from __future__ import annotations

import ctypes
import errno
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ptq4vit_onnx.files.exchange import exchange


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).touch()
    return tmp_path / "one", tmp_path / "other"


def library(monkeypatch: pytest.MonkeyPatch, **functions: Any) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: SimpleNamespace(**functions))


@pytest.mark.skipif(sys.platform == "win32", reason="no folders are exchanged there")
def test_each_folder_has_the_others_name(folders: tuple[Path, Path]) -> None:
    one, other = folders
    assert exchange(one, other)
    assert (one / "other").exists() and (other / "one").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="no folders are exchanged there")
def test_a_name_that_is_not_there_is_an_error_and_not_a_missing_ability(folders: tuple[Path, Path]) -> None:
    with pytest.raises(FileNotFoundError):
        exchange(folders[0], folders[1].with_name("absent"))
    assert (folders[0] / "one").exists()


@pytest.mark.parametrize("name", ["renameat2", "renamex_np"])
@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EINVAL, errno.ENOTSUP])
def test_a_file_system_without_it_changes_nothing(
    name: str, number: int, folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> int:
        ctypes.set_errno(number)
        return -1

    library(monkeypatch, **{name: refuse})
    assert not exchange(*folders)


def test_macos_swaps(folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def swap(*arguments: Any) -> int:
        asked.append(arguments)
        return 0

    library(monkeypatch, renamex_np=swap)
    assert exchange(*folders)
    assert asked[0][:2] == tuple(str(folder).encode() for folder in folders) and asked[0][2].value == 2


def test_a_library_without_it_is_no_error(folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    library(monkeypatch)
    assert not exchange(*folders)
