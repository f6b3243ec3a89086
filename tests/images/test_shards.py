"""Shards: whole chunks in order, and what becomes of images that cannot be read."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ptq4vit_onnx.errors import UserError
from ptq4vit_onnx.images import stream
from ptq4vit_onnx.images.preprocessing import Preprocessing
from ptq4vit_onnx.images.shards import MOST_CHUNKS, Measured, Part, cut, over_shards, shards
from ptq4vit_onnx.images.stream import ImageSource, open_images, unreadable_of
from ptq4vit_onnx.progress import silent

RULE = Preprocessing((1, 32, 32), 1.0, "center", "bilinear", (0.5,), (0.5,))
Chunk = tuple[str, ...]  # names of the images that are run together


@pytest.fixture(autouse=True)
def five_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "AT_ONCE", 5)


@pytest.fixture
def damaged(digit_files: Path, tmp_path: Path) -> Path:
    """24 digits, of which the third, the fourth and the twentieth cannot be read."""
    folder = Path(shutil.copytree(digit_files, tmp_path / "damaged"))
    for name in ("02.png", "03.png", "19.png"):
        (folder / name).write_bytes(b"no image")
    return folder


def chunks_of(source: ImageSource) -> list[Chunk]:
    return [chunk.names for chunk in open_images(source, "some", RULE, silent).chunks]


def in_shards(source: ImageSource, seen: list[Part]) -> tuple[list[Chunk], int]:
    def run(parts: list[Part]) -> Sequence[Measured[list[Chunk]]]:
        seen.extend(parts)
        return [measured(replace(source, only=part)) for part in parts]

    found, unreadable = over_shards(shards(source, "some", RULE), run)
    return [chunk for part in found for chunk in part], unreadable


def measured(source: ImageSource) -> Measured[list[Chunk]]:
    opened = open_images(source, "some", RULE, silent)
    return [chunk.names for chunk in opened.chunks], unreadable_of(source, opened.skipped)


@pytest.mark.parametrize("count", [None, 7, 20, 24])
def test_shards_in_order_have_the_chunks_of_one_run(digit_files: Path, count: int | None) -> None:
    source = ImageSource(digit_files, count)
    seen: list[Part] = []
    assert in_shards(source, seen) == (chunks_of(source), 0)
    assert sum(len(part) for part in seen) == (count or 24)


@pytest.mark.parametrize("count", [None, 7, 20, 24])
def test_images_that_cannot_be_read_leave_the_same_chunks_as_in_one_run(damaged: Path, count: int | None) -> None:
    source = ImageSource(damaged, count, skip_unreadable=True)
    names, unreadable = in_shards(source, [])
    assert names == chunks_of(source)
    assert 0 < unreadable <= 3


def test_only_shards_from_the_damage_on_are_run_again(damaged: Path) -> None:
    (damaged / "02.png").write_bytes((damaged / "00.png").read_bytes())
    (damaged / "03.png").write_bytes((damaged / "00.png").read_bytes())
    seen: list[Part] = []
    in_shards(ImageSource(damaged, skip_unreadable=True), seen)
    assert len(seen) == 5 + 2 and len(set(seen)) == 7, "24 images make five shards, of which two change"


def test_damage_is_said_as_in_one_run(damaged: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        in_shards(ImageSource(damaged, skip_unreadable=True), [])
        chunks_of(ImageSource(damaged, skip_unreadable=True))
    together, alone = (record.getMessage() for record in caplog.records)
    assert together == alone and together.startswith("skipped 3 unreadable images, the first is ")
    with pytest.raises(UserError) as shared:
        in_shards(ImageSource(damaged), [])
    with pytest.raises(UserError) as one:
        chunks_of(ImageSource(damaged))
    assert str(shared.value) == str(one.value)


def test_arrays_are_cut_as_well(tmp_path: Path) -> None:
    path = tmp_path / "images.npz"
    np.savez(path, images=np.zeros((12, 1, 32, 32), np.float32), labels=np.arange(12))
    source = ImageSource(path, 11)
    assert in_shards(source, []) == (chunks_of(source), 0)


def test_parts_are_whole_chunks_not_too_few_and_not_too_large() -> None:
    assert cut(range(7), 64) == [tuple(range(7))]
    assert [len(part) for part in cut(range(200), 64)] == [64, 64, 64, 8]
    parts = cut(range(1_000_000), 64)
    assert {len(part) for part in parts[:-1]} == {64 * MOST_CHUNKS}
    assert [number for part in parts for number in part] == list(range(1_000_000))
    assert cut([], 64) == []
