"""Files on a machine that does not have them: sent in parts, kept once by their content."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ptq4vit_onnx.tasks import travel, worker
from ptq4vit_onnx.tasks.task import Task
from ptq4vit_onnx.tasks.travel import content_of, here, parts_of, placed, unpacked
from tests.tasks import small_tasks


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Another machine's place for temporary files."""
    place = tmp_path / "machine"
    place.mkdir()
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(place))
    return place


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "photos"
    (made / "cats").mkdir(parents=True)
    (made / "cats" / "1.jpg").write_bytes(b"a cat" * 1000)
    (made / "labels.csv").write_text("file,index\ncats/1.jpg,3\n")
    return made


def test_a_folder_arrives_as_it_was(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(travel, "PART", 999)
    parts = list(parts_of(folder))
    assert len(parts) > 5 and {len(part) for part in parts[:-1]} == {999}
    place = unpacked(folder, content_of(folder), parts, is_folder=True)
    assert place.name == "photos" and place != folder
    assert content_of(place) == content_of(folder)
    assert (place / "cats" / "1.jpg").read_bytes() == b"a cat" * 1000


def test_what_a_machine_has_is_not_fetched_again(folder: Path) -> None:
    file = folder / "labels.csv"
    first = unpacked(file, content_of(file), parts_of(file), is_folder=False)

    def fetched() -> Iterator[bytes]:
        raise AssertionError("it is there")
        yield b""

    assert unpacked(file, content_of(file), fetched(), is_folder=False) == first
    assert first.read_text() == file.read_text()


def test_what_ends_too_soon_gets_no_name(folder: Path) -> None:
    whole = b"".join(parts_of(folder))
    with pytest.raises(Exception, match=r"unexpected end|end of|truncated|empty"):
        unpacked(folder, content_of(folder), [whole[:700]], is_folder=True)
    assert unpacked(folder, content_of(folder), [whole], is_folder=True).is_dir()


def test_content_is_told_apart(folder: Path) -> None:
    file, before, whole = folder / "labels.csv", content_of(folder / "labels.csv"), content_of(folder)
    file.write_text("file,index\ncats/1.jpg,4\n")
    assert content_of(file) != before
    (folder / "2.jpg").touch()
    assert content_of(folder) != whole and content_of(folder / "absent") == ""


def test_a_file_is_here_where_nothing_travelled() -> None:
    path = Path("weights.safetensors")
    assert here(path) == path
    with placed({str(path): Path("/elsewhere")}):
        assert here(path) == Path("/elsewhere")
    assert here(path) == path


def test_a_worker_asks_for_what_it_does_not_have_and_reads_it_where_it_was_put(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("of the caller")
    call = worker.Call.of(Task("reads", small_tasks.read, (file,), (file,)), 1)
    parts = list(parts_of(file))
    assert worker.run(call).result == (str(file), "of the caller"), "the same machine"
    file.write_text("of another machine")
    assert worker.run(call).missing == (str(file),)
    place, text = worker.run(call, {str(file): lambda: parts}).result
    assert text == "of the caller" and place != str(file)
    assert worker.run(call).result == (place, text), "kept"


def test_another_set_of_libraries_is_refused_before_any_work() -> None:
    call = worker.Call.of(Task("squares", small_tasks.square, (3,)), 1)
    answer = worker.run(replace(call, versions={**call.versions, "torch": "1.0"}))
    assert answer.failure is not None and answer.failure.kind == "user"
    assert "(here 1.0); results may differ, install the same set on all machines" in answer.failure.line
