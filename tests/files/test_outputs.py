"""Output folders: whole or nothing, whatever happens half-way."""

from __future__ import annotations

import errno
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ptq4vit_onnx.errors import ParityError, UserError
from ptq4vit_onnx.files import outputs
from ptq4vit_onnx.files.exchange import exchange
from ptq4vit_onnx.files.outputs import EXPORT_FILES, require_free, require_writable, whole_folder, write_whole

needs_exchange = pytest.mark.skipif(sys.platform == "win32", reason="no folders are exchanged there")


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A folder of an earlier run."""
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "model.onnx").write_text("old")
    return folder


@pytest.fixture
def no_exchange(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system that cannot exchange two names."""
    monkeypatch.setattr(outputs, "exchange", lambda *_: False)


def contents(place: Path) -> dict[str, str]:
    return {str(file.relative_to(place)): file.read_text() for file in place.rglob("*") if file.is_file()}


def refusal(action: Callable[[], Any]) -> str:
    with pytest.raises(UserError) as caught:
        action()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def write(folder: Path, force: bool = False, failure: BaseException | None = None) -> None:
    with whole_folder(folder, force) as staging:
        (staging / "model.onnx").write_text("new")
        if failure is not None:
            raise failure


def test_a_folder_appears_with_all_its_files_and_nothing_beside_it(tmp_path: Path) -> None:
    write(tmp_path / "deep" / "out")
    assert contents(tmp_path) == {"deep/out/model.onnx": "new"}
    assert list(tmp_path.iterdir()) == [tmp_path / "deep"]
    assert (tmp_path / "deep" / "out").stat().st_mode & 0o777 == 0o755


def test_nothing_stands_under_the_final_name_before_the_end(tmp_path: Path) -> None:
    with whole_folder(tmp_path / "out", False) as staging:
        assert not (tmp_path / "out").exists()
        assert staging.parent == tmp_path, "the same file system, so that the rename is one step"
        assert staging.name.startswith(".out.partial-")
    assert (tmp_path / "out").is_dir()


@pytest.mark.parametrize("failure", [ValueError("x"), ParityError("x"), KeyboardInterrupt(), SystemExit(3)])
def test_whatever_is_raised_leaves_nothing_and_comes_through(failure: BaseException, tmp_path: Path) -> None:
    with pytest.raises(type(failure)):
        write(tmp_path / "out", failure=failure)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("failure", [ValueError("x"), KeyboardInterrupt()])
def test_what_was_there_survives_a_failed_replacement(failure: BaseException, old: Path) -> None:
    with pytest.raises(type(failure)):
        write(old, True, failure)
    assert contents(old.parent) == {"out/model.onnx": "old"}


def test_force_replaces_all_of_what_was_there(old: Path) -> None:
    for name in EXPORT_FILES:
        (old / name).write_text("old")
    write(old, force=True)
    assert contents(old.parent) == {"out/model.onnx": "new"}
    assert list(old.parent.iterdir()) == [old]


def test_an_existing_folder_is_refused_without_force(old: Path) -> None:
    message = refusal(lambda: require_free(old, False))
    assert message == f"output folder {old} exists; give another --output, or --force to replace it"
    require_free(old, True)


@pytest.mark.parametrize("name", ["thesis.txt", ".git/config", "plan.json/deeper"])
def test_force_never_deletes_what_no_export_writes(name: str, old: Path) -> None:
    (old / name).parent.mkdir(exist_ok=True)
    (old / name).write_text("mine")
    message = refusal(lambda: require_free(old, True))
    assert f"holds '{name.partition('/')[0]}', which no export writes" in message and "another --output" in message
    assert "no export writes" in refusal(lambda: write(old, True)), "it may have appeared meanwhile"
    assert contents(old.parent) == {"out/model.onnx": "old", f"out/{name}": "mine"}


def test_an_empty_folder_is_free(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    require_free(tmp_path / "out", False)
    write(tmp_path / "out")
    assert contents(tmp_path) == {"out/model.onnx": "new"}


def test_a_folder_that_appeared_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    def run() -> None:
        with whole_folder(tmp_path / "out", False) as staging:
            (staging / "model.onnx").write_text("new")
            (tmp_path / "out").mkdir()
            (tmp_path / "out" / "theirs").write_text("theirs")

    assert "exists" in refusal(run)
    assert contents(tmp_path) == {"out/theirs": "theirs"}


@needs_exchange
def test_a_replaced_folder_is_never_away_from_its_name(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "rename", lambda *_: pytest.fail("a rename leaves a moment without the folder"))
    write(old, force=True)
    assert contents(old.parent) == {"out/model.onnx": "new"}
    assert list(old.parent.iterdir()) == [old]


@needs_exchange
def test_a_file_that_comes_in_at_the_last_moment_is_given_back(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def late(one: Path, other: Path) -> bool:
        monkeypatch.undo()
        (other / "thesis.txt").write_text("mine")
        return exchange(one, other)

    monkeypatch.setattr(outputs, "exchange", late)
    assert "'thesis.txt', which no export writes" in refusal(lambda: write(old, True))
    assert contents(old.parent) == {"out/model.onnx": "old", "out/thesis.txt": "mine"}


@pytest.mark.usefixtures("no_exchange")
def test_without_an_exchange_a_folder_is_replaced_all_the_same(old: Path) -> None:
    write(old, force=True)
    assert contents(old.parent) == {"out/model.onnx": "new"}
    assert list(old.parent.iterdir()) == [old]


@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells which file a descriptor is of")
def test_what_gets_a_name_is_on_the_disk_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each file, the folder that lists them, and, once the name is given, the folder that lists that."""
    flushed: list[tuple[str, bool]] = []
    out, fsync = tmp_path / "out", os.fsync

    def noted(descriptor: int) -> None:
        flushed.append((Path(f"/proc/self/fd/{descriptor}").readlink().name, out.exists()))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    write(out)
    staging = flushed[1][0]
    assert staging.startswith(".out.partial-")
    assert flushed == [("model.onnx", False), (staging, False), (tmp_path.name, True)]
    flushed.clear()
    write_whole(tmp_path / "result.json", "text")
    assert flushed == [(".result.json.ptq4vit-partial", True)]


@pytest.mark.usefixtures("no_exchange")
def test_a_failing_swap_puts_the_old_folder_back(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rename = Path.rename

    def fail_for_staging(self: Path, target: Path) -> Path:
        if ".partial-" in self.name:
            raise OSError(errno.EIO, "Input/output error")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fail_for_staging)
    assert "Input/output error" in refusal(lambda: write(old, True))
    assert contents(old.parent) == {"out/model.onnx": "old"}
    assert list(old.parent.iterdir()) == [old]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_one_line_and_leaves_nothing(number: int, tmp_path: Path) -> None:
    message = refusal(lambda: write(tmp_path / "out", failure=OSError(number, "No space left on device")))
    assert message.startswith(f"cannot write {tmp_path / 'out'}: the disk is full")
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_fills_while_a_model_is_saved_leaves_nothing(
    float_export: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import onnx

    from ptq4vit_onnx.graph.model_proto import save_model

    def half(_model: Any, path: Path, **_: Any) -> None:
        Path(path).write_bytes(b"half a mod")
        raise OSError(errno.ENOSPC, "No space left on device")

    def run() -> None:
        with whole_folder(tmp_path / "out", False) as staging:
            save_model(float_export("vit_digits").proto, staging / "float.onnx")

    monkeypatch.setattr(onnx, "save", half)
    assert "the disk is full" in refusal(run)
    assert list(tmp_path.iterdir()) == []


def test_a_place_without_permission_is_refused_before_any_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Path] = []

    def deny(place: Path, _mode: int) -> bool:
        asked.append(place)
        return False

    monkeypatch.setattr(os, "access", deny)
    message = refusal(lambda: require_free(tmp_path / "not" / "yet" / "there", False))
    assert f"no permission in {tmp_path}" in message and "give another --output" in message
    assert asked == [tmp_path], "the nearest folder that exists is what counts"


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def deny(**_: Any) -> str:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(tempfile, "mkdtemp", deny)
    assert "Permission denied" in refusal(lambda: write(tmp_path / "out"))


def test_a_file_in_the_way_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    assert "is not a folder" in refusal(lambda: require_free(tmp_path / "file", True))
    assert "is not a folder" in refusal(lambda: require_free(tmp_path / "file" / "out", True))
    assert contents(tmp_path) == {"file": "mine"}


@pytest.mark.parametrize("name", [".", "..", ""])
def test_the_folder_one_stands_in_is_never_replaced(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert "is the folder you are in, or above it" in refusal(lambda: require_free(Path(name), True))


def test_a_file_without_permission_is_refused_before_any_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Path] = []
    monkeypatch.setattr(os, "access", lambda place, _mode: asked.append(place))
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "deep" / "there")
    (tmp_path / "deep").mkdir()
    for name in ("result.json", "pipe", "link"):
        message = refusal(lambda name=name: require_writable(tmp_path / name, "--json"))  # type: ignore[misc]
        assert "no permission in" in message and message.endswith("give another --json")
    refusal(lambda: require_writable(tmp_path / "new" / "newer" / "table.csv", makes_folder=True))
    assert asked == [tmp_path, tmp_path / "pipe", tmp_path / "deep", tmp_path]


def test_a_file_that_can_be_written_is_not_written_by_asking(tmp_path: Path) -> None:
    require_writable(tmp_path / "result.json", "--json")
    require_writable(tmp_path / "new" / "table.csv", makes_folder=True)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("mine")
    assert "there is no folder" in refusal(lambda: require_writable(tmp_path / "file" / "table.csv", makes_folder=True))


def test_a_text_file_appears_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "plan.json"
    write_whole(path, "old")
    monkeypatch.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(OSError(errno.ENOSPC, "full")))
    assert "the disk is full" in refusal(lambda: write_whole(path, "new"))
    assert contents(tmp_path) == {"plan.json": "old"}


def test_a_link_stays_and_its_target_is_replaced_whole(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    target, link = tmp_path / "real" / "result.json", tmp_path / "link.json"
    link.symlink_to(target)
    for text in ("first", "second"):  # the first time it points to nothing
        write_whole(link, text)
        assert link.is_symlink() and target.read_text() == text
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["link.json", "real", "result.json"]


@pytest.mark.parametrize("is_there", [True, False])
def test_an_output_that_is_a_link_stays_one_and_its_folder_is_replaced(is_there: bool, tmp_path: Path) -> None:
    target, link = tmp_path / "disk" / "real", tmp_path / "out"
    link.symlink_to(target)
    if is_there:
        target.mkdir(parents=True)
        (target / "model.onnx").write_text("old")
        assert "exists; give another" in refusal(lambda: require_free(link, False))
    write(link, force=True)
    assert link.is_symlink() and contents(tmp_path / "disk") == {"real/model.onnx": "new"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["disk", "out"], (
        "staged next to the folder, not the link"
    )


def test_a_link_that_leads_to_itself_is_refused(tmp_path: Path) -> None:
    (tmp_path / "one").symlink_to(tmp_path / "two")
    (tmp_path / "two").symlink_to(tmp_path / "one")
    assert "leads back to itself" in refusal(lambda: require_free(tmp_path / "one", True))


def test_a_mount_point_is_refused_before_any_work(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os.path, "ismount", lambda place: place == old)
    assert "is a mount point" in refusal(lambda: require_free(old, True))


def test_a_pipe_is_written_to_and_stays_a_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_whole(pipe, "result")
        assert os.read(reader, 100) == b"result"
    finally:
        os.close(reader)
    assert pipe.is_fifo() and list(tmp_path.iterdir()) == [pipe]


def test_a_file_that_cannot_be_written_is_refused_by_the_name_of_its_option(tmp_path: Path) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    for path in (tmp_path / "absent" / "a.json", tmp_path, loop):
        message = refusal(lambda path=path: write_whole(path, "text", "--json"))  # type: ignore[misc]
        assert message.startswith(f"cannot write {path}: ") and "give another --json" in message
    assert list(tmp_path.iterdir()) == [loop]
