"""What an export calibrates on and what it measures on: others wherever there are others, and it knows which."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ptq4vit_onnx.errors import UserError
from ptq4vit_onnx.images.choice import (
    BUILT_IN_HELD_OUT,
    LEAST_HELD_OUT,
    MOST_HELD_OUT,
    ChosenImages,
    choose_images,
    most_held_out,
    require_images,
)
from ptq4vit_onnx.images.loading import load_images
from ptq4vit_onnx.images.preprocessing import Preprocessing
from ptq4vit_onnx.models.specs import ModelSpec

COLOUR = Preprocessing((3, 8, 8), 1.0, "center", "bilinear", (0.0,) * 3, (1.0,) * 3)
GREY = Preprocessing((1, 8, 8), 1.0, "center", "bilinear", (0.0,), (1.0,))
DIGITS = Preprocessing((1, 32, 32), 1.0, "squash", "bicubic", (0.5,), (0.5,))
PHOTO_MODEL = ModelSpec("some_vit", "some_vit", 8, "takes photos")
DIGIT_MODEL = ModelSpec("vit_digits", "", 32, "takes digits", embedded=True)
COUNT = 4


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "set"


def fill(folder: Path, images: int) -> None:
    folder.mkdir()
    for number in range(images):
        Image.new("RGB", (8, 8), (number % 256, number // 256, 0)).save(folder / f"{number:03}.png")


def choose(
    data: Path | None, rule: Preprocessing = COLOUR, spec: ModelSpec = PHOTO_MODEL, rounding: int = 0
) -> ChosenImages:
    return choose_images(spec, data, rule, COUNT, seed=0, rounding=rounding)


@pytest.mark.parametrize(
    ("side", "count"), [(224, MOST_HELD_OUT), (512, MOST_HELD_OUT), (1024, 64), (8192, LEAST_HELD_OUT)]
)
def test_fewer_large_images_are_held_out(side: int, count: int) -> None:
    assert most_held_out(Preprocessing((3, side, side), 1.0, "center", "bilinear", (0.0,) * 3, (1.0,) * 3)) == count


@pytest.mark.parametrize(("files", "measured"), [(12, 8), (40, 36), (COUNT + MOST_HELD_OUT + 30, MOST_HELD_OUT)])
def test_images_that_calibration_leaves_are_measured_on(files: int, measured: int, folder: Path) -> None:
    fill(folder, files)
    chosen = choose(folder)
    assert (len(chosen.calibration), len(chosen.measured), chosen.held_out) == (COUNT, measured, True)
    assert not set(chosen.calibration.names) & set(chosen.measured.names)
    assert chosen.calibration.fingerprint == load_images(folder, COLOUR, COUNT, 0).fingerprint
    assert str(chosen.measured_on) == f"{measured} images of {folder}, not calibrated on"


def test_labels_go_with_the_images_that_are_measured_on(tmp_path: Path) -> None:
    images = np.arange(20, dtype=np.float32)[:, None, None, None] * np.ones(COLOUR.size, np.float32)
    np.savez(tmp_path / "x.npz", images=images, labels=np.arange(20))
    chosen = choose(tmp_path / "x.npz")
    assert chosen.measured.labels is not None and len(chosen.measured) == 16
    assert chosen.measured.labels.tolist() == chosen.measured.images[:, 0, 0, 0].tolist()


@pytest.mark.parametrize("others", [0, 7])
def test_where_few_others_are_left_the_built_in_photos_are_measured_on(others: int, folder: Path) -> None:
    fill(folder, COUNT + others)
    chosen = choose(folder)
    assert chosen.calibration.source == str(folder) and len(chosen.calibration) == COUNT
    assert (chosen.measured.built_in, len(chosen.measured), chosen.held_out) == (True, BUILT_IN_HELD_OUT, True)


def test_other_channels_are_measured_on_few_others_or_on_what_was_calibrated_on_and_that_is_said(
    folder: Path, tmp_path: Path
) -> None:
    fill(folder, COUNT + 2)
    few = choose(folder, GREY)
    assert (len(few.measured), few.held_out) == (2, True)
    fill(tmp_path / "all", COUNT)
    same = choose(tmp_path / "all", GREY)
    assert same.measured.names == same.calibration.names and same.held_out is False
    assert "also calibrated on" in str(same.measured_on)


def test_without_data_crops_of_other_photos_are_measured_on() -> None:
    chosen = choose(None)
    assert chosen.calibration.built_in and chosen.measured.built_in and chosen.held_out
    used, held_out = ({name.partition(",")[0] for name in part.names} for part in (chosen.calibration, chosen.measured))
    assert not used & held_out


def test_an_embedded_model_is_measured_on_its_test_split_unless_the_data_has_others(folder: Path) -> None:
    fill(folder, COUNT)
    for data in (None, folder):
        assert choose(data, DIGITS, DIGIT_MODEL).measured.source == "embedded digits (test)"


def test_whether_a_given_plan_saw_the_images_is_known_by_their_fingerprint() -> None:
    chosen = choose(None)
    assert chosen.for_plan(chosen.calibration.fingerprint) is chosen
    assert chosen.for_plan("0" * 64).measured_on.held_out is None


@pytest.mark.parametrize(
    ("files", "rounding", "rounded", "measured"),
    [
        (COUNT + 40, 16, 16, 28),  # as many as are asked for, of what is left
        (COUNT + 40, 400, COUNT + 20, 20),  # half of that at most
        (COUNT + 41, 400, COUNT + 20, 21),
        (COUNT + MOST_HELD_OUT + 30, 16, 16, MOST_HELD_OUT),
        (COUNT + 40, 0, COUNT, 40),
        (COUNT + 40, COUNT - 1, COUNT, 40),  # never fewer than are searched on
        (COUNT, 16, COUNT, BUILT_IN_HELD_OUT),
        (COUNT + 12, 16, COUNT + 6, BUILT_IN_HELD_OUT),  # too few are left to measure on
    ],
)
def test_weights_are_rounded_on_what_is_calibrated_on_and_on_others_that_nothing_is_measured_on(
    files: int, rounding: int, rounded: int, measured: int, folder: Path
) -> None:
    fill(folder, files)
    chosen = choose(folder, rounding=rounding)
    used = chosen.rounded_on
    assert (len(chosen.calibration), len(used), len(chosen.measured)) == (COUNT, rounded, measured)
    assert chosen.calibration.fingerprint == choose(folder).calibration.fingerprint
    assert used.names[:COUNT] == chosen.calibration.names
    assert np.array_equal(used.images[:COUNT], chosen.calibration.images)
    assert len(set(used.names)) == len(used.names) == len(used.images)
    assert not set(used.names) & set(chosen.measured.names) and chosen.held_out


def test_digits_are_rounded_on_as_far_as_there_are_any() -> None:
    few, more, all_of_them = (choose(None, DIGITS, DIGIT_MODEL, rounding) for rounding in (0, 30, 400))
    assert [len(item.rounded_on) for item in (few, more, all_of_them)] == [COUNT, 30, 100]
    for chosen in (few, more, all_of_them):
        assert chosen.calibration.fingerprint == few.calibration.fingerprint
        assert np.array_equal(chosen.rounded_on.images[:COUNT], few.calibration.images)
        assert chosen.measured.source == "embedded digits (test)"


def test_built_in_photos_are_rounded_on_that_are_not_measured_on() -> None:
    few, more = (choose(None, rounding=rounding) for rounding in (0, 30))
    assert (len(few.rounded_on), len(more.rounded_on)) == (COUNT, 30)
    assert more.calibration.fingerprint == few.calibration.fingerprint
    assert more.measured.fingerprint == few.measured.fingerprint
    assert np.array_equal(more.rounded_on.images[:COUNT], few.calibration.images)
    used, held_out = ({name.partition(",")[0] for name in part.names} for part in (more.rounded_on, more.measured))
    assert not used & held_out


def test_a_model_of_other_channels_without_data_is_refused_by_its_name() -> None:
    with pytest.raises(UserError, match="no images for some_vit: it takes 1 channels"):
        choose(None, GREY)
    with pytest.raises(UserError, match="no images for some_vit: it takes 5 channels"):
        require_images(PHOTO_MODEL, None, 32, 5)
    require_images(PHOTO_MODEL, None, 32, None)


def test_more_digits_than_there_are_are_refused_before_a_model_is_loaded() -> None:
    require_images(DIGIT_MODEL, None, 100, None)
    with pytest.raises(UserError, match="the embedded calibration split has 100 images, 101 are asked for"):
        require_images(DIGIT_MODEL, None, 101, None)
