"""What is no file to read is refused before it is opened, and JSON that says two things at once is refused."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptq4vit_onnx.errors import UserError
from ptq4vit_onnx.files.inputs import parse_json, read_json, read_text, require_path, unfit

plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


@given(plain)
def test_json_is_read_as_it_was_written(data: object) -> None:
    assert parse_json(json.dumps(data)) == data


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[" * 100_000, "nested too deeply"),
        ('{"a":' * 100_000, "nested too deeply"),
        ('{"a": 1, "b": 2, "a": 1}', "it has the key 'a' twice"),
        ('[{"inner": {"a": 1, "a": 2}}]', "it has the key 'a' twice"),
        ("{", "Expecting property name"),
        ("1" * 5000, "4300"),
    ],
)
def test_json_that_cannot_be_followed_is_a_value_error(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse_json(text)


def test_a_pipe_a_device_a_folder_and_a_loop_are_refused_without_being_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    for path, said in (
        (tmp_path / "pipe", "it is a pipe"),  # opening it would wait for a writer
        (Path("/dev/zero"), "it is a device"),
        (tmp_path, "it is a folder"),
        (tmp_path / "loop", "Too many levels of symbolic links"),
        (tmp_path / "absent", "No such file or directory"),
        (tmp_path / "null\0byte", "null byte"),
    ):
        reason = unfit(path)
        assert reason is not None and said in reason
        with pytest.raises(UserError, match=f"cannot read plan .*{said}.*; give another"):
            read_text(path, "plan", "give another")


def test_a_link_to_a_file_is_a_file_and_a_file_beyond_the_limit_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("12345")
    (tmp_path / "link").symlink_to("file")
    assert unfit(tmp_path / "link", most=5) is None
    assert unfit(tmp_path / "link", most=4) == "it has 5 bytes, expected at most 4"


def test_text_is_utf_8_with_or_without_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    for data in (b'{"a": 1}', b'\xef\xbb\xbf{"a": 1}'):
        path.write_bytes(data)
        assert read_json(path, "config", "") == {"a": 1}
    path.write_bytes(b'{"\xff": 1}')
    with pytest.raises(UserError, match="byte 2 is not UTF-8; mend it"):
        read_json(path, "config", "mend it")
    path.write_bytes(b"{}}")
    with pytest.raises(UserError, match=r"is not JSON: Extra data.*; mend it"):
        read_json(path, "config", "mend it")


def test_paths_that_no_report_can_name_or_no_file_can_have_are_refused(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    for name, said in (
        (os.fsdecode(b"\xff"), "is not UTF-8"),
        ("loop", "Too many levels"),
        ("loop/inside", "Too many levels"),
        ("x" * 300, "File name too long"),
        ("null\0byte", "null byte"),
    ):
        with pytest.raises(UserError, match=f"--output .*{said}"):
            require_path(tmp_path / name, "output")
    require_path(tmp_path / "there is nothing yet" / "é", "output")
    require_path(tmp_path, "output")
