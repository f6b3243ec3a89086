"""Preprocessing is timm's own evaluation transform, pixel for pixel."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from ptq4vit_onnx.errors import UserError
from ptq4vit_onnx.images.preprocessing import Preprocessing
from ptq4vit_onnx.model_loading.load import load, resolve
from ptq4vit_onnx.model_loading.timm_compat import import_timm
from ptq4vit_onnx.models import digits_arch
from ptq4vit_onnx.models.specs import DIGITS_FOLDER, SPECS

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
RULES = {
    "vit": Preprocessing((3, 224, 224), 0.9, "center", "bicubic", (0.5,) * 3, (0.5,) * 3),
    "deit": Preprocessing((3, 224, 224), 0.9, "center", "bicubic", MEAN, STD),
    "deit 384": Preprocessing((3, 384, 384), 1.0, "center", "bicubic", MEAN, STD),
    "bilinear": Preprocessing((3, 224, 224), 0.875, "center", "bilinear", MEAN, STD),
    "squash": Preprocessing((3, 224, 224), 0.95, "squash", "bicubic", MEAN, STD),
}
GREY = Preprocessing((1, 32, 32), 1.0, "squash", "bicubic", (0.5,), (0.5,))
SIZES = [(224, 224), (500, 375), (375, 500), (249, 248), (1000, 240), (31, 400), (8, 8)]


def picture(width: int, height: int, mode: str = "RGB") -> Image.Image:
    """Blocks of random colour: edges everywhere, so that a wrong filter or offset shows."""
    random = np.random.default_rng(width * 1000 + height)
    coarse = random.integers(0, 256, (height // 7 + 1, width // 5 + 1, 4), dtype=np.uint8)
    pixels = np.repeat(np.repeat(coarse, 7, 0), 5, 1)[:height, :width]
    return Image.fromarray(np.ascontiguousarray(pixels)).convert("RGB" if mode == "P" else mode).convert(mode)


def by_timm(rule: Preprocessing, image: Image.Image) -> Any:
    import_timm()
    from timm.data import create_transform

    transform = create_transform(
        rule.size, interpolation=rule.interpolation, mean=rule.mean, std=rule.std, crop_pct=rule.crop_pct,
        crop_mode=rule.crop_mode, is_training=False,
    )  # fmt: skip
    return transform(image.convert("RGB")).numpy()


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_equals_timms_transform_bit_for_bit(rule: Preprocessing, size: tuple[int, int]) -> None:
    image = picture(*size)
    ours = rule.apply(image)
    assert ours.dtype == np.float32 and ours.flags.c_contiguous
    assert np.array_equal(ours, by_timm(rule, image))


@pytest.mark.parametrize("mode", ["L", "RGBA", "P", "CMYK", "1", "LA"])
def test_every_mode_becomes_rgb_as_timms_loader_does(mode: str) -> None:
    image = picture(300, 260, mode)
    assert np.array_equal(RULES["deit"].apply(image), by_timm(RULES["deit"], image))


@pytest.mark.parametrize("suffix", [".png", ".tif"])
@pytest.mark.parametrize("rule", [RULES["squash"], GREY], ids=["RGB", "grey"])
def test_grey_of_sixteen_bits_is_scaled_and_not_clipped(rule: Preprocessing, suffix: str, tmp_path: Path) -> None:
    eight = np.asarray(picture(224, 224, "L"))
    Image.fromarray(eight.astype(np.uint16) * 257).save(tmp_path / f"deep{suffix}")
    with Image.open(tmp_path / f"deep{suffix}") as deep:
        assert deep.mode.startswith("I")
        assert np.array_equal(rule.apply(deep), rule.apply(Image.fromarray(eight)))


def test_grey_of_wider_pixels_is_taken_as_sixteen_bits_or_refused() -> None:
    eight = np.asarray(picture(32, 32, "L"))
    wide = eight.astype(np.int32) * 257
    assert np.array_equal(GREY.apply(Image.fromarray(wide)), GREY.apply(Image.fromarray(eight)))
    for wrong in (wide - 1 - wide.min(), wide + 65536):
        with pytest.raises(ValueError, match="expected 16 bits"):
            GREY.apply(Image.fromarray(wrong))


@pytest.mark.parametrize("highest", [1.0, 255.0])
@pytest.mark.parametrize("rule", [RULES["squash"], GREY], ids=["RGB", "grey"])
def test_grey_of_floats_is_scaled_by_its_range(rule: Preprocessing, highest: float, tmp_path: Path) -> None:
    eight = np.asarray(picture(224, 224, "L"))
    Image.fromarray((eight / 255 * highest).astype(np.float32)).save(tmp_path / "float.tif")
    with Image.open(tmp_path / "float.tif") as stored:
        assert stored.mode == "F"
        assert np.array_equal(rule.apply(stored), rule.apply(Image.fromarray(eight)))


@pytest.mark.parametrize("wrong", [-1.0, 4095.0, float("nan"), float("inf")])
def test_grey_of_floats_in_another_range_is_refused_and_never_black(wrong: float) -> None:
    values = np.full((32, 32), 0.5, np.float32)
    values[3, 4] = wrong
    with pytest.raises(ValueError, match=f"float pixels reach from .*{wrong:g}.*, expected 0 to 1 or 0 to 255"):
        GREY.apply(Image.fromarray(values))


def test_transparency_is_dropped_and_the_colour_below_it_kept() -> None:
    image = picture(224, 224)
    clear = image.copy()
    clear.putalpha(0)
    palette = Image.new("P", (224, 224), 1)
    palette.putpalette([0, 0, 0, 200, 10, 30])
    palette.info["transparency"] = 1
    assert np.array_equal(RULES["squash"].apply(clear), RULES["squash"].apply(image))
    assert np.array_equal(
        RULES["squash"].apply(palette), RULES["squash"].apply(Image.new("RGB", (224, 224), (200, 10, 30)))
    )


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("target", [(192, 320), (320, 192)])
def test_images_that_are_not_square_equal_timms_transform_bit_for_bit(
    target: tuple[int, int], size: tuple[int, int]
) -> None:
    """Bilinear only: for targets that are not square timm forgets the filter of the model."""
    rule, image = Preprocessing((3, *target), 0.9, "center", "bilinear", MEAN, STD), picture(*size)
    assert np.array_equal(rule.apply(image), by_timm(rule, image))


def test_each_model_brings_the_rule_timm_would_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all specs, from timm's own table of its tags; building the larger ones would take minutes."""
    timm = import_timm()
    from ptq4vit_onnx.model_loading.timm_models import preprocessing_of

    class Configured:
        def __init__(self, config: Any) -> None:
            self.pretrained_cfg = config.to_dict()

    for spec in SPECS:
        if not spec.embedded:
            config = timm.models.get_pretrained_cfg(spec.timm)
            rule = preprocessing_of(spec, Configured(config))  # type: ignore[arg-type]
            assert rule.size == (3, spec.size, spec.size)
            assert (rule.crop_pct, rule.interpolation) == (config.crop_pct, config.interpolation)
            assert (rule.mean, rule.std) == (tuple(config.mean), tuple(config.std))


def test_the_embedded_models_rule_is_the_one_they_were_trained_with() -> None:
    rule = load(resolve("vit_digits")).preprocessing
    with np.load(DIGITS_FOLDER / "digits.npz") as data:
        raw = data["images"][0]
    grey = Image.fromarray(np.round(raw * np.float32(255 / 16)).astype(np.uint8))
    resized = np.asarray(grey.resize((32, 32), Image.Resampling.BICUBIC), np.float32)
    expected = (resized / np.float32(255) - np.float32(digits_arch.DIGITS_MEAN)) / np.float32(digits_arch.DIGITS_STD)
    assert np.array_equal(rule.apply(grey), expected[None])


def test_the_rule_survives_json() -> None:
    for rule in RULES.values():
        assert Preprocessing.from_data(json.loads(rule.to_json())) == rule


def test_a_file_on_disk_and_the_same_image_in_memory_agree(tmp_path: Path) -> None:
    image = picture(300, 200)
    image.save(tmp_path / "image.png")
    with Image.open(tmp_path / "image.png") as stored:
        assert np.array_equal(RULES["vit"].apply(stored), RULES["vit"].apply(image))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"interpolation": "random"}, "interpolation 'random'"),
        ({"crop_mode": "border"}, "crop mode 'border'"),
        ({"crop_pct": 0}, "crop_pct 0 is not usable"),
        ({"crop_pct": -0.9}, "crop_pct -0.9"),
        ({"crop_pct": float("nan")}, "crop_pct nan"),
        ({"std": [0]}, r"std \[0.0\] is not usable; expected numbers above 0"),
        ({"std": [0.5, 0.5]}, r"std \[0.5, 0.5\] is not usable; expected 3 finite numbers"),
        ({"mean": []}, r"mean \[\] is not usable"),
        ({"mean": [float("inf")] * 3}, "mean .* is not usable"),
        ({"size": [3, 0, 224]}, r"image size \[3, 0, 224\]"),
        ({"size": [3, 10**9, 224]}, "image size"),
    ],
    ids=str,
)
def test_a_rule_we_cannot_follow_is_refused(change: dict[str, Any], said: str) -> None:
    data = {**json.loads(RULES["vit"].to_json()), **change}
    with pytest.raises(UserError, match=said):
        Preprocessing.from_data(data)


def test_an_image_too_long_to_be_resized_is_refused_before_memory_is_taken() -> None:
    rule = Preprocessing((3, 224, 224), 0.9, "center", "bicubic", (0.5,) * 3, (0.5,) * 3)
    with pytest.raises(ValueError, match="60000 x 2 would become 7440000 x 248 pixels"):
        rule.apply(Image.new("1", (60000, 2)))
