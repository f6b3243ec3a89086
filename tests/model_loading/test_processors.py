"""preprocessor_config.json as our Preprocessing: sizes, crops, filters, means; and what it cannot say."""

from __future__ import annotations

import math
from typing import Any

import pytest

from ptq4vit_onnx.errors import UserError
from ptq4vit_onnx.model_loading.huggingface.processors import preprocessing_from

VIT = {"image_processor_type": "ViTImageProcessor", "size": {"height": 224, "width": 224}, "resample": 2,
       "image_mean": [0.5] * 3, "image_std": [0.25] * 3}  # fmt: skip
CROP = {"do_center_crop": True, "crop_size": {"height": 224, "width": 224}}


def rule(data: dict[str, Any] | None, model_type: str = "vit", img_size: Any = None) -> Any:
    return preprocessing_from(data, model_type, (32, 32), 3, img_size)


@pytest.mark.parametrize(
    ("data", "size", "share", "mode"),
    [
        (VIT, (224, 224), 1.0, "squash"),
        ({**VIT, "size": 384}, (384, 384), 1.0, "squash"),
        ({**VIT, "size": {"height": 96, "width": 128}}, (96, 128), 1.0, "squash"),
        ({**VIT, "size": {"shortest_edge": 256}, **CROP}, (224, 224), 0.875, "center"),
        ({**VIT, "size": {"shortest_edge": 224}, "do_center_crop": True, "crop_size": 224}, (224, 224), 1.0, "center"),
        ({**VIT, "size": {"height": 256, "width": 256}, **CROP}, (224, 224), 0.875, "squash"),
        ({**VIT, "size": {"shortest_edge": 224}, "crop_pct": 0.875}, (224, 224), 0.875, "center"),
        ({**VIT, "size": {"shortest_edge": 384}, "crop_pct": 0.875}, (384, 384), 1.0, "squash"),
    ],
)
def test_sizes_and_crops_are_followed(data: dict[str, Any], size: Any, share: float, mode: str) -> None:
    made, remarks = rule(data)
    assert (made.size, made.crop_pct, made.crop_mode, remarks) == ((3, *size), share, mode, ())
    assert rule(data, img_size=(64, 96))[0].size == (3, 64, 96)


def test_the_share_that_is_cropped_gives_the_resized_length_to_the_pixel() -> None:
    for resized in range(224, 1200):
        made, _ = rule({**VIT, "size": {"shortest_edge": resized}, **CROP})
        assert math.floor(224 / made.crop_pct) == resized


@pytest.mark.parametrize(
    ("given", "mean", "std"),
    [
        ({}, 0.5, 0.25),
        ({"rescale_factor": 0.00392156862745098}, 0.5, 0.25),
        ({"rescale_factor": 1 / 127.5}, 0.25, 0.125),
        ({"do_rescale": False, "image_mean": [127.5] * 3, "image_std": [63.75] * 3}, 0.5, 0.25),
        ({"do_normalize": False}, 0.0, 1.0),
        ({"do_normalize": False, "do_rescale": False}, 0.0, 1 / 255),
    ],
)
def test_rescaling_is_part_of_mean_and_std(given: dict[str, Any], mean: float, std: float) -> None:
    made, _ = rule({**VIT, **given})
    assert (made.mean, made.std) == (pytest.approx((mean,) * 3), pytest.approx((std,) * 3))


@pytest.mark.parametrize(("number", "name"), [(0, "nearest"), (1, "lanczos"), (2, "bilinear"), (3, "bicubic")])
def test_filters_have_pillows_numbers(number: int, name: str) -> None:
    assert rule({**VIT, "resample": number})[0].interpolation == name


def test_what_a_file_leaves_out_is_as_its_class_does_it() -> None:
    clip, _ = rule({"feature_extractor_type": "CLIPFeatureExtractor"})
    assert (clip.crop_mode, clip.interpolation, clip.mean[0]) == ("center", "bicubic", 0.48145466)
    assert rule({"size": 32}, "dinov3_vit")[0].mean[0] == 0.485


def test_without_a_file_the_models_own_size_is_taken_and_the_default_is_said() -> None:
    made, remarks = rule(None, "siglip")
    assert (made.size, made.mean) == ((3, 32, 32), (0.5,) * 3)
    assert remarks[0].startswith("there is no preprocessor_config.json, so images are prepared as SiglipImageProcessor")


def test_padding_is_said_not_to_be_done() -> None:
    made, remarks = rule({"image_processor_type": "SamImageProcessor"}, "sam")
    assert (made.size, made.crop_mode) == ((3, 1024, 1024), "squash")
    assert remarks == (
        "the longest side of an image is to be resized to 1024 and the rest padded, which is not done here: images are "
        "resized to 1024 x 1024",
    )


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"do_resize": False}, "images are not resized"),
        ({"size": {"shortest_edge": 224}}, "the shortest edge is resized and nothing cropped, so that sizes vary"),
        ({"size": {"height": 256, "width": 320}, **CROP}, "which is another shape"),
        ({"size": {"height": "tall", "width": 2}}, "is not a height and a width"),
        ({"resample": 5}, "Pillow's filter 5"),
        ({"rescale_offset": True}, "shifted by a rescale_offset"),
    ],
)
def test_what_a_preprocessing_cannot_say_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(
        UserError, match=f"cannot be followed: .*{said}.*; edit a copy of the folder, or give the module"
    ):
        rule({**VIT, **given})
