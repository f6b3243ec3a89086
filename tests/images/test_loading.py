"""Images from folders, tables and arrays: which are picked, what is skipped, what is refused."""

from __future__ import annotations

import logging
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from ptq4vit_onnx.errors import UserError
from ptq4vit_onnx.images.embedded import embedded_digits
from ptq4vit_onnx.images.loading import ImageSet, count_images, load_images
from ptq4vit_onnx.images.preprocessing import Preprocessing

RULE = Preprocessing((3, 8, 8), 1.0, "center", "bilinear", (0.0,) * 3, (1.0,) * 3)
GREY = Preprocessing((1, 32, 32), 1.0, "squash", "bicubic", (0.5,), (0.5,))


def paint(path: Path, value: int) -> None:
    """A grey square whose pixels are `value` / 255 wherever they are looked at."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (10, 10), (value,) * 3).save(path)


def values(images: ImageSet) -> list[int]:
    """Which of the painted squares these are."""
    return [round(float(image[0, 0, 0]) * 255) for image in images.images]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for value in range(20):
        paint(tmp_path / "set" / f"{value:02}.png", value)
    return tmp_path / "set"


def refusal(source: Path, count: int | None = None, minimum: int = 1) -> str:
    with pytest.raises(UserError) as caught:
        load_images(source, RULE, count, minimum=minimum)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_folder_is_read_in_order_when_all_are_wanted(folder: Path) -> None:
    images = load_images(folder, RULE)
    assert values(images) == list(range(20))
    assert images.labels is None and not images.built_in
    assert images.names[3] == "03.png"
    assert images.images.shape == (20, 3, 8, 8) and images.images.dtype == np.float32


def test_a_folder_is_searched_to_its_depth_and_other_files_are_left(tmp_path: Path) -> None:
    paint(tmp_path / "only" / "deep" / "a.JPEG", 1)
    paint(tmp_path / "b.webp", 2)
    (tmp_path / "notes.txt").write_text("not an image")
    assert sorted(load_images(tmp_path, RULE).names) == ["a.JPEG", "b.webp"]


def test_the_pick_is_the_seeds(folder: Path) -> None:
    first, again, other = (values(load_images(folder, RULE, 6, seed)) for seed in (1, 1, 2))
    assert first == again != other
    assert len(set(first)) == 6


def test_a_larger_pick_begins_with_the_smaller(folder: Path) -> None:
    assert values(load_images(folder, RULE, 9, 1))[:4] == values(load_images(folder, RULE, 4, 1))


def test_an_unreadable_file_is_named_and_the_next_pick_takes_its_place(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    picked = values(load_images(folder, RULE, 5, 1))
    (folder / f"{picked[2]:02}.png").write_bytes(b"no image")
    with caplog.at_level(logging.WARNING):
        images = load_images(folder, RULE, 5, 1, minimum=5)
    assert len(images) == 5
    assert values(images)[:4] == picked[:2] + picked[3:]
    assert images.skipped == (str(folder / f"{picked[2]:02}.png"),)
    assert f"{picked[2]:02}.png" in caplog.text


@pytest.mark.parametrize("suffix", [".png", ".jpg", ".gif", ".bmp", ".webp", ".tiff", ".ppm"])
def test_a_truncated_file_of_any_format_is_skipped(suffix: str, tmp_path: Path) -> None:
    random = np.random.default_rng(0).integers(0, 256, (40, 40, 3), dtype=np.uint8)
    whole = tmp_path / f"whole{suffix}"
    Image.fromarray(random).save(whole)
    data = whole.read_bytes()
    for part in range(0, len(data) - 1, max(1, len(data) // 12)):
        (tmp_path / f"cut{part}{suffix}").write_bytes(data[:part])
    images = load_images(tmp_path, RULE)
    assert f"whole{suffix}" in images.names
    assert len(images.skipped) >= 1
    assert len(images) + len(images.skipped) == len(list(tmp_path.iterdir()))


def test_too_few_readable_images_are_refused_with_the_first_bad_one(folder: Path) -> None:
    (folder / "05.png").write_bytes(b"")
    message = refusal(folder, 20, minimum=20)
    assert "has 19 readable images, 20 are needed (1 could not be read" in message
    assert "05.png" in message and "lower --images" in message


def test_too_few_images_of_a_usable_range_are_refused_with_the_reason(tmp_path: Path) -> None:
    Image.fromarray(np.full((8, 8), -3, np.float32)).save(tmp_path / "depth.tif")
    assert "depth.tif: its float pixels reach from -3 to -3, expected 0 to 1 or 0 to 255" in refusal(tmp_path)


@pytest.mark.parametrize("name", ["absent", "empty", "text.txt"])
def test_a_source_without_images_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.txt").write_text("x")
    said = {"absent": "does not exist", "empty": "holds no image files", "text.txt": "neither a folder nor"}
    assert said[name] in refusal(tmp_path / name)


def write_csv(folder: Path, text: str) -> None:
    (folder / "labels.csv").write_text(text, encoding="utf-8")


def test_a_labels_table_gives_files_and_labels_and_can_be_filtered(folder: Path) -> None:
    write_csv(folder, "\ufefffile,index,fold\n03.png,7,a\n01.png,5,b\n02.png,6,a\n")
    images = load_images(folder, RULE)
    assert values(images) == [3, 1, 2]
    assert images.labels is not None and images.labels.tolist() == [7, 5, 6]
    kept = load_images(folder, RULE, where=lambda row: row["fold"] == "a")
    assert values(kept) == [3, 2]


def test_labels_follow_their_images_through_the_pick_and_past_skipped_files(folder: Path) -> None:
    write_csv(folder, "file,index\n" + "".join(f"{value:02}.png,{value}\n" for value in range(20)))
    (folder / "04.png").write_bytes(b"")
    (folder / "05.png").unlink()
    images = load_images(folder, RULE, 18, 3)
    assert images.labels is not None and images.labels.dtype == np.int64
    assert images.labels.tolist() == values(images)
    assert len(images.skipped) == 2


def arrays(path: Path, **entries: Any) -> Path:
    np.savez(path, **entries)
    return path


def stack(count: int) -> Any:
    return np.arange(count, dtype=np.float32)[:, None, None, None] / 255 * np.ones((1, 3, 8, 8), np.float32)


def test_arrays_are_taken_as_they_are_with_their_labels(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", stack(6))
    assert values(load_images(tmp_path / "x.npy", RULE)) == list(range(6))
    source = arrays(tmp_path / "x.npz", images=stack(6), labels=np.arange(6, dtype=np.int32) * 2)
    images = load_images(source, RULE, 4, 1)
    assert images.labels is not None and images.labels.tolist() == [2 * value for value in values(images)]
    assert load_images(arrays(tmp_path / "y.npz", images=stack(2)), RULE).labels is None


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        ({"images": np.zeros((2, 8, 8, 3), np.float32)}, r"float32 [2, 8, 8, 3]; expected preprocessed float32 [n"),
        ({"images": np.zeros((2, 3, 8, 8))}, "float64"),
        ({"images": np.zeros((0, 3, 8, 8), np.float32)}, "holds 0 images, 1 are needed"),
        ({"images": np.full((2, 3, 8, 8), np.nan, np.float32)}, "NaN"),
        ({"pixels": stack(2)}, "images is not a file in the archive"),
        ({"images": stack(2), "labels": np.arange(3)}, "expected one whole number per image"),
        ({"images": stack(2), "labels": np.array([0.5, 1.5])}, "expected one whole number per image"),
        ({"images": np.array([{}], object)}, "cannot read"),
    ],
    ids=["layout", "dtype", "none", "nan", "key", "count", "fraction", "pickled objects"],
)
def test_wrong_arrays_are_refused(entries: dict[str, Any], said: str, tmp_path: Path) -> None:
    assert said in refusal(arrays(tmp_path / "x.npz", **entries))


@pytest.mark.parametrize("name", ["images", "labels"])
def test_an_archive_whose_members_are_not_arrays_is_refused(name: str, tmp_path: Path) -> None:
    source = arrays(tmp_path / "x.npz", **{"images": stack(2)} if name == "labels" else {})
    with zipfile.ZipFile(source, "a") as archive:
        archive.writestr(name, "text")
    assert f"its {name} is not an array; expected `images` as float32" in refusal(source)


@pytest.mark.parametrize("suffix", [".npy", ".npz"])
def test_damaged_arrays_are_refused(suffix: str, tmp_path: Path) -> None:
    source = tmp_path / f"x{suffix}"
    np.save(source, stack(4)) if suffix == ".npy" else np.savez_compressed(source, images=stack(4))
    data = source.read_bytes()
    for part in (0, 5, 100, len(data) // 2, len(data) - 3):
        source.write_bytes(data[:part])
        assert "cannot read" in refusal(source)
    if suffix == ".npz":  # it has a checksum
        middle = len(data) // 3
        source.write_bytes(data[:middle] + b"\xff" * 8 + data[middle + 8 :])
        assert "cannot read" in refusal(source)


def test_fewer_arrays_than_needed_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", stack(3))
    assert "holds 3 images, 4 are needed" in refusal(tmp_path / "x.npy", 4, minimum=4)


def test_the_fingerprint_is_of_the_pixels(folder: Path) -> None:
    first, again = load_images(folder, RULE, 5), load_images(folder, RULE, 5)
    other = load_images(folder, RULE, 5, seed=9)
    assert first.fingerprint == again.fingerprint != other.fingerprint


def test_images_are_counted_without_being_read(folder: Path, tmp_path: Path) -> None:
    (folder / "00.png").write_text("damaged")
    assert count_images(folder) == 20
    np.save(tmp_path / "x.npy", stack(5))
    np.savez(tmp_path / "x.npz", images=stack(6))
    np.savez_compressed(tmp_path / "y.npz", images=stack(7))
    np.save(tmp_path / "number.npy", np.float32(1))
    assert [count_images(tmp_path / name) for name in ("x.npy", "x.npz", "y.npz", "number.npy")] == [5, 6, 7, 1]


@pytest.mark.parametrize("name", ["x.npy", "x.npz", "other.npz"])
def test_arrays_that_cannot_be_counted_are_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("no array")
    np.savez(tmp_path / "other.npz", pictures=stack(2))
    with pytest.raises(UserError, match=r"cannot read .* expected `images` as float32"):
        count_images(tmp_path / name)


def test_a_part_of_a_set_keeps_images_labels_and_names_together(folder: Path) -> None:
    whole = load_images(folder, RULE)
    labelled = ImageSet(whole.images, np.arange(20), whole.names, whole.source)
    part = labelled.part(slice(5, 7))
    assert part.labels is not None and values(part) == part.labels.tolist() == [5, 6]
    assert (part.names, part.source) == (("05.png", "06.png"), whole.source)


def test_the_embedded_digits_are_split_once_and_for_all() -> None:
    splits = {split: embedded_digits(GREY, split) for split in ("train", "calibration", "test")}
    assert {split: len(images) for split, images in splits.items()} == {
        "train": 1197, "calibration": 100, "test": 500,
    }  # fmt: skip
    assert len({name for images in splits.values() for name in images.names}) == 1797
    labels = splits["test"].labels
    assert labels is not None and set(labels.tolist()) == set(range(10))
    assert splits["test"].images.shape == (500, 1, 32, 32)


def test_more_embedded_digits_than_there_are_are_refused() -> None:
    with pytest.raises(UserError, match="the embedded calibration split has 100 images, 101 are asked for"):
        embedded_digits(GREY, "calibration", 101)


def test_progress_is_told_how_many_images_will_be_read(folder: Path) -> None:
    lengths: list[int] = []

    def progress(items: Any, _title: str) -> Any:
        lengths.append(len(items))
        return items

    load_images(folder, RULE, 4, progress=progress)
    load_images(folder, RULE, progress=progress)
    assert lengths == [4, 20]
