"""What is odd about calibration images is said, and images that no scale can be measured on are refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from PIL import Image

from benchmarks import real_data
from ptq4vit_onnx.errors import UserError
from ptq4vit_onnx.images.embedded import embedded_digits
from ptq4vit_onnx.images.inspection import inspect_images, require_usable
from ptq4vit_onnx.images.loading import load_images
from ptq4vit_onnx.images.preprocessing import Preprocessing

Array = np.ndarray[Any, Any]
IMAGENET = Preprocessing((3, 48, 50), 1.0, "squash", "bicubic", (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
HALF = Preprocessing((3, 48, 50), 1.0, "squash", "bicubic", (0.5,), (0.5,))
RULES = {"imagenet": IMAGENET, "half": HALF}


@pytest.fixture
def pixels() -> Array:
    """32 images as 0 to 1, [n, 3, 48, 50]: patches of colour that reach from black to white, with some noise."""
    random = np.random.default_rng(0)
    patches = random.choice([0, 30, 90, 130, 200, 255], (32, 6, 5, 3)).astype(np.uint8)
    smooth = [np.asarray(Image.fromarray(patch).resize((50, 48)), np.float64).transpose(2, 0, 1) for patch in patches]
    return np.clip(np.round(np.stack(smooth) + random.normal(0, 3, (32, 3, 48, 50))), 0, 255) / 255


def normalised(pixels: Array, rule: Preprocessing) -> Array:
    mean, std = (np.asarray(values).reshape(-1, 1, 1) for values in (rule.mean, rule.std))
    return np.asarray((pixels - mean) / std, np.float32)


def found(pixels: Array, rule: Preprocessing = IMAGENET) -> dict[str, str]:
    return {finding.kind: str(finding) for finding in inspect_images(normalised(pixels, rule), rule)}


GOOD: dict[str, Callable[[Array], Array]] = {
    "as they are": lambda pixels: pixels,
    "eight": lambda pixels: pixels[:8],
    "grey": lambda pixels: np.repeat(pixels.mean(1, keepdims=True), 3, 1),
    "a little beyond white": lambda pixels: pixels * 1.08 - 0.04,
    "noise": lambda pixels: np.asarray(np.random.default_rng(1).random(pixels.shape)),
}


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
@pytest.mark.parametrize("change", GOOD.values(), ids=GOOD)
def test_lively_images_of_the_models_own_scale_are_not_remarked_on(
    change: Callable[[Array], Array], rule: Preprocessing, pixels: Array
) -> None:
    assert found(change(pixels), rule) == {}


def test_the_embedded_digits_are_not_remarked_on() -> None:
    rule = Preprocessing((1, 32, 32), 1.0, "squash", "bicubic", (0.5,), (0.5,))
    for seed in range(20):
        assert inspect_images(embedded_digits(rule, "calibration", 32, seed).images, rule) == ()


def test_random_photographs_are_not_remarked_on() -> None:
    folder = real_data.folder()
    if folder is None:
        pytest.skip("no photos here: set PTQ4VIT_DATA to a folder as benchmarks/real_data.py describes")
    for seed in range(5):
        for rule in RULES.values():
            images = load_images(folder / "calibration", rule, 32, seed).images
            assert inspect_images(images, rule) == () == inspect_images(images[:8], rule)


USELESS: dict[str, tuple[Callable[[Array], Array], str]] = {
    "two black": (lambda pixels: 0 * pixels[:2], "all 2 calibration images are of one colour"),
    "one grey": (lambda pixels: 0 * pixels[:1] + 0.5, "the only calibration image is of one colour"),
    "of many colours": (lambda pixels: 0 * pixels + pixels[:, :, :1, :1], "all 32 .* of one colour"),
    "black with noise": (lambda pixels: 0.02 * pixels, "all 32 .* of one colour"),
    "one image 32 times": (lambda pixels: np.repeat(pixels[:1], 32, 0), "all 32 calibration images are the same"),
}


@pytest.mark.parametrize(("change", "said"), USELESS.values(), ids=USELESS)
def test_images_without_anything_to_measure_are_refused_unless_forced(
    change: Callable[[Array], Array], said: str, pixels: Array, caplog: pytest.LogCaptureFixture
) -> None:
    for rule in RULES.values():
        findings = inspect_images(normalised(change(pixels), rule), rule)
        with pytest.raises(UserError, match=f"^{said}.*; give .*, or --force-data"):
            require_usable(findings)
        assert not caplog.records
        warnings = require_usable(findings, force=True)
        assert len(warnings) == 1 and [record.getMessage() for record in caplog.records] == list(warnings)
        assert "--force-data" not in warnings[0]
        caplog.clear()


ODD: dict[str, tuple[Callable[[Array], Array], str, str]] = {
    "one black": (lambda pixels: np.concatenate([pixels[1:], 0 * pixels[:1]]), "constant", "of 32 .* 1 have one"),
    "half copies": (lambda pixels: np.concatenate([pixels[:16]] * 2), "copies", "only 16 of 32"),
    "copies, a little changed": (
        lambda pixels: np.concatenate([pixels[:16], np.clip(pixels[:16] + 0.005, 0, 1)]), "copies", "only 16 of 32"),
    "two, often": (lambda pixels: np.concatenate([pixels[:2]] * 8), "few", "2 different images .*at least 8"),
    "nearly one": (lambda pixels: np.concatenate([pixels[:1], pixels[:1] * 0.995 + 0.005] * 16), "few", "1 image"),
    "seven": (lambda pixels: pixels[:7], "few", "7 different images"),
    "one": (lambda pixels: pixels[:1], "few", "1 image to calibrate on leaves"),
    "no blue": (lambda pixels: pixels * np.array([1, 1, 0])[:, None, None], "channels", "channel 2 of 3"),
    "dark": (lambda pixels: pixels / 8, "statistics", "dark .*unlike photographs"),
    "on white": (lambda pixels: 1 - pixels / 8, "statistics", "bright"),
    "dull": (lambda pixels: 0.4 + pixels / 8, "statistics", "low in contrast"),
}  # fmt: skip


@pytest.mark.parametrize(("change", "kind", "said"), ODD.values(), ids=ODD)
def test_odd_images_are_one_warning_and_no_refusal(
    change: Callable[[Array], Array], kind: str, said: str, pixels: Array
) -> None:
    for rule in RULES.values():
        findings = inspect_images(normalised(change(pixels), rule), rule)
        assert [finding.kind for finding in findings] == [kind]
        (warning,) = require_usable(findings)
        assert re.search(said, warning), warning


@pytest.mark.parametrize(
    ("rule", "change", "looks"),
    [
        (IMAGENET, lambda pixels: pixels * 255, "bytes, 0 to 255"),
        (HALF, lambda pixels: pixels * 255, "bytes, 0 to 255"),
        (IMAGENET, lambda pixels: pixels, "look like 0 to 1"),
        (HALF, lambda pixels: pixels, "look like 0 to 1"),
        (IMAGENET, lambda pixels: normalised(pixels, HALF), "look like -1 to 1"),
        (HALF, lambda pixels: normalised(pixels, IMAGENET), "by another rule"),
        (IMAGENET, lambda pixels: normalised(normalised(pixels, IMAGENET), IMAGENET), "normalised twice"),
        (HALF, lambda pixels: normalised(normalised(pixels, HALF), HALF), "normalised twice"),
    ],
)
def test_arrays_prepared_in_another_way_are_recognised(
    rule: Preprocessing, change: Callable[[Array], Array], looks: str, pixels: Array
) -> None:
    (finding,) = inspect_images(change(pixels).astype(np.float32), rule)
    assert finding.kind == "values" and not finding.refused
    assert looks in finding.what and "(black)" in finding.what


def test_a_model_that_takes_0_to_1_is_given_0_to_1(pixels: Array) -> None:
    rule = Preprocessing((3, 48, 50), 1.0, "squash", "bicubic", (0.0,), (1.0,))
    assert found(pixels, rule) == {}
    assert "bytes, 0 to 255" in found(pixels * 255, rule)["values"]


def test_images_smaller_than_the_grid_are_compared_too(pixels: Array) -> None:
    small = pixels[:, :, :5, :3]
    assert found(np.concatenate([small[:16]] * 2))["copies"].startswith("only 16 of 32")
