"""The photos that ship with the package: small, licensed, cropped by a seed, and held out by whole photos."""

from __future__ import annotations

import re

import numpy as np
import pytest
from PIL import Image

from ptq4vit_onnx.errors import UserError
from ptq4vit_onnx.images.builtin import PHOTOS, Split, built_in_photos, photos_of
from ptq4vit_onnx.images.preprocessing import Preprocessing
from ptq4vit_onnx.models.specs import PHOTOS_FOLDER

RULE = Preprocessing((3, 32, 32), 0.9, "center", "bicubic", (0.5,) * 3, (0.5,) * 3)
SPLITS: tuple[Split, ...] = ("calibration", "held out")
MOST_BYTES = 1_500_000


def test_the_photos_are_eight_or_more_in_colour_and_small_together() -> None:
    files = sorted(PHOTOS_FOLDER.glob("*.jpg"))
    assert tuple(file.stem for file in files) == PHOTOS and len(PHOTOS) >= 8
    assert sum(file.stat().st_size for file in files) <= MOST_BYTES
    for file in files:
        with Image.open(file) as photo:
            assert (photo.format, photo.mode) == ("JPEG", "RGB")
            assert min(photo.size) >= 300 and max(photo.size) <= 800


def test_every_photo_has_an_author_a_licence_that_allows_copies_and_a_source() -> None:
    text = (PHOTOS_FOLDER / "LICENSE-photos.txt").read_text(encoding="utf-8")
    entries = dict(re.findall(r"^(\w+)\.jpg +(.*?)(?=^\w+\.jpg|\Z)", text, re.MULTILINE | re.DOTALL))
    assert tuple(entries) == PHOTOS
    for entry in entries.values():
        assert re.search(r"Licence +(public domain|CC0 1\.0|CC BY 2\.0)", entry)
        assert all(re.search(rf"^ +{what} +\S", entry, re.MULTILINE) for what in ("Author", "Taken from", "Changes"))


def test_crops_are_those_of_the_seed_and_a_larger_count_begins_with_them() -> None:
    first, again, other = (built_in_photos(RULE, "calibration", 4, seed) for seed in (1, 1, 2))
    assert first.built_in and first.labels is None and first.images.shape == (4, 3, 32, 32)
    assert first.fingerprint == again.fingerprint != other.fingerprint
    assert np.array_equal(built_in_photos(RULE, "calibration", 9, 1).images[:4], first.images)


@pytest.mark.parametrize("seed", range(5))
def test_no_photo_is_both_calibrated_on_and_held_out_and_none_is_left(seed: int) -> None:
    calibration, held_out = (photos_of(split, seed) for split in SPLITS)
    assert sorted(calibration + held_out) == list(PHOTOS)
    assert len(held_out) == 3


@pytest.mark.parametrize("split", SPLITS)
def test_every_photo_of_a_split_has_its_share_of_unlike_crops(split: Split) -> None:
    names = photos_of(split, 0)
    images = built_in_photos(RULE, split, 4 * len(names), 0)
    drawn = [name.partition(",")[0] for name in images.names]
    assert {name: drawn.count(name) for name in names} == dict.fromkeys(names, 4)
    assert images.source == f"the built-in photos ({', '.join(names)}), cropped at random"
    assert len({image.tobytes() for image in images.images}) == len(images)
    assert all(image.std() > 0.05 for image in images.images)


def test_crops_differ_in_size_place_and_direction(monkeypatch: pytest.MonkeyPatch) -> None:
    slope = np.tile(np.linspace(0, 255, 400, dtype=np.uint8), (400, 1))  # grey tells the column
    monkeypatch.setattr("ptq4vit_onnx.images.builtin._open", lambda _: Image.fromarray(slope).convert("RGB"))
    squashed = Preprocessing((3, 8, 8), 1.0, "squash", "nearest", (0.0,) * 3, (1.0,) * 3)
    rows = built_in_photos(squashed, "calibration", 32, 0).images[:, 0, 0]
    widths = np.abs(rows[:, -1] - rows[:, 0]) * 8 / 7  # as a share of the photo's width
    assert 8 <= int((rows[:, -1] < rows[:, 0]).sum()) <= 24, "about half are mirrored"
    assert widths.min() < 0.6 and widths.max() > 0.85
    assert rows.mean(axis=1).std() > 0.05, "not all around the middle"


def test_a_model_of_other_channels_is_referred_to_data() -> None:
    grey = Preprocessing((1, 32, 32), 1.0, "squash", "bicubic", (0.5,), (0.5,))
    with pytest.raises(UserError, match="it takes 1 channels and the built-in photos have 3; give --data"):
        built_in_photos(grey, "calibration", 2, 0)
