"""Whether images can be calibrated on: what is odd about them, in sentences, before any scale is measured on them.

Images are judged as pixels, 0 (black) to 1 (white), by undoing the model's normalisation. The limits stand well apart
from photographs: of a thousand ImageNet training photos, none of 20,000 random sets of 8 or of 32 reaches one.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ptq4vit_onnx.errors import UserError
from ptq4vit_onnx.images.preprocessing import Preprocessing

logger = logging.getLogger(__name__)
Array = np.ndarray[Any, Any]
Kind = Literal["constant", "copies", "few", "values", "channels", "statistics"]

LEAST_CONTRAST = 0.01  # standard deviation of the liveliest channel; the flattest of the photos has 0.088
GRID = 8  # images are compared by their means over 8 x 8 fields
SAME_FIELDS = 0.01  # images whose fields all differ by less look alike; the two photos most alike differ by 0.18
LEVEL = 1 / 255  # images of which no pixel differs by more are equal
FEW = 8  # different images; with fewer, what one image happens to show decides the scales
# Resizing with overshoot, as tensors are resized, leaves a few pixels beyond black and white.
OVERSHOOT, OVERSHOT_SHARE = 0.1, 0.01
MEANS = (0.15, 0.85)  # of a channel; sets of 8 photos lie in 0.22 .. 0.69, of 32 in 0.30 .. 0.58
LEAST_SPREAD = 0.1  # standard deviation of a channel over all images; sets of 8 photos have at least 0.17, of 32 0.21


@dataclass(frozen=True)
class Finding:
    """Something odd about calibration images. refused: on them no scale means anything. It prints as a sentence."""

    kind: Kind
    what: str
    advice: str
    refused: bool = False

    def __str__(self) -> str:
        return f"{self.what}; {self.advice}"


def inspect_images(images: Array, preprocessing: Preprocessing) -> tuple[Finding, ...]:
    """What is odd about images [n, C, H, W] that are preprocessed, finite, and at least one."""
    seen = _Seen.of(images, preprocessing)
    checks = (_flat(seen), _alike(seen), _scaled(seen), _still(seen), _far_off(seen))
    return tuple(finding for finding in checks if finding is not None)


def require_usable(findings: Sequence[Finding], force: bool = False) -> tuple[str, ...]:
    """The findings as warnings; refuses images that are useless to calibrate on, unless that is forced."""
    refusal = next((finding for finding in findings if finding.refused), None)
    if refusal is not None and not force:
        raise UserError(f"{refusal}, or --force-data to calibrate on them all the same")
    warnings = tuple(map(str, findings))
    for warning in warnings:
        logger.warning("%s", warning)
    return warnings


@dataclass(frozen=True)
class _Seen:
    """Figures of images. flat: how many are nearly constant. distinct: how many are left of those that look alike.
    equal: whether all are the same image.

    mean, spread: of every channel over all images, as pixels. outside: share of values that no pixel can have.
    values: the lowest and the highest as the network sees them. expected: what they are for black and white; twice: the
    same if it were normalised once more.
    """

    count: int
    flat: int
    distinct: int
    equal: bool
    mean: Array
    spread: Array
    outside: float
    values: tuple[float, float]
    expected: tuple[float, float]
    twice: tuple[float, float]

    @classmethod
    def of(cls, images: Array, preprocessing: Preprocessing) -> _Seen:
        mean, std = (np.asarray(values).reshape(-1, 1, 1) for values in (preprocessing.mean, preprocessing.std))
        flat, apart, outside, moments, fields = 0, 0.0, 0.0, [], []
        for image in images:
            pixels = image.astype(np.float64) * std + mean
            moments.append((pixels.mean((1, 2)), pixels.std((1, 2))))
            apart = max(apart, float((np.abs(image - images[0]) * std).max()))
            flat += bool(moments[-1][1].max() < LEAST_CONTRAST)
            outside += float(((pixels < -OVERSHOOT) | (pixels > 1 + OVERSHOOT)).mean()) / len(images)
            fields.append(_fields(pixels))
        means, deviations = (np.stack(values) for values in zip(*moments, strict=True))
        black, white = ((pixel - mean) / std for pixel in (0.0, 1.0))
        return cls(
            count=len(images),
            flat=flat,
            distinct=_distinct(fields),
            equal=len(images) > 1 and apart <= LEVEL,
            mean=means.mean(0),
            spread=np.sqrt((deviations**2).mean(0) + means.var(0)),
            outside=outside,
            values=(float(images.min()), float(images.max())),
            expected=(float(black.min()), float(white.max())),
            twice=(float(((black - mean) / std).min()), float(((white - mean) / std).max())),
        )


def _fields(pixels: Array) -> Array:
    """Means of [C, H, W] over a grid of fields, flat."""
    for axis in (1, 2):
        size = pixels.shape[axis]
        edges = np.linspace(0, size, min(GRID, size) + 1).astype(int)
        widths = np.diff(edges).reshape((-1, 1) if axis == 1 else (-1,))
        pixels = np.add.reduceat(pixels, edges[:-1], axis) / widths
    return pixels.ravel()


def _distinct(fields: Sequence[Array]) -> int:
    kept = np.empty((len(fields), len(fields[0])))
    count = 0
    for field in fields:
        if not (np.abs(kept[:count] - field).max(1, initial=0) < SAME_FIELDS).any():
            kept[count] = field
            count += 1
    return count


def _flat(seen: _Seen) -> Finding | None:
    if not seen.flat:
        return None
    if seen.flat == seen.count:
        every = f"all {seen.count} calibration images are" if seen.count > 1 else "the only calibration image is"
        what = f"{every} of one colour or nearly so, and scales measured on that mean nothing"
        return Finding("constant", what, "give images like those the model will see", refused=True)
    what = f"of {seen.count} calibration images, {seen.flat} have one colour or nearly so"
    return Finding("constant", what, "remove them from --data")


def _alike(seen: _Seen) -> Finding | None:
    """Copies, or too few images; images of one colour have a finding of their own."""
    if seen.flat == seen.count:
        return None
    if seen.equal:
        what = f"all {seen.count} calibration images are the same, and one image cannot stand for all"
        return Finding("copies", what, "give different images", refused=True)
    if seen.distinct < FEW:
        images = "image" if seen.distinct == 1 else "different images"
        what = f"{seen.distinct} {images} to calibrate on leave{'s' if seen.distinct == 1 else ''} the scales to chance"
        return Finding("few", what, f"give at least {FEW}, best 32 (--images)")
    if seen.distinct < seen.count:
        what = f"only {seen.distinct} of {seen.count} calibration images are different, the others look like copies"
        return Finding("copies", what, "remove copies from --data")
    return None


def _scaled(seen: _Seen) -> Finding | None:
    """Values that look prepared in another way than the model's; only arrays can be."""
    looks = _looks(seen)
    if looks is None:
        return None
    (low, high), (black, white) = seen.values, seen.expected
    what = (
        f"the calibration images' values reach from {low:.3g} to {high:.3g} and {looks}; this model's reach from "
        f"{black:.3g} (black) to {white:.3g} (white)"
    )
    return Finding("values", what, "prepare the arrays as the model does, or give image files")


def _looks(seen: _Seen) -> str | None:
    """In which other way the values look prepared; None where they look right.

    Photographs reach from black to white: among a thousand, every set of eight does.
    """
    (low, high), (black, white) = seen.values, seen.expected
    if seen.flat == seen.count:
        return None
    if seen.outside > OVERSHOT_SHARE:
        if low >= 0:
            return "look like bytes, 0 to 255, never normalised"
        is_twice = seen.twice[0] - LEVEL <= low and high <= seen.twice[1] + LEVEL
        return "look normalised twice or by another rule" if is_twice else "look normalised by another rule"
    if 0 <= low < 0.1 and abs(high - 1) < 0.1 and black < -0.5:
        return "look like 0 to 1, never normalised"
    if abs(low + 1) < 0.1 and abs(high - 1) < 0.1 and black < -1.5 and white > 1.5:
        return "look like -1 to 1, normalised by another rule"
    return None


def _still(seen: _Seen) -> Finding | None:
    still = [number for number, spread in enumerate(seen.spread) if spread < LEAST_CONTRAST]
    if not still or len(still) == len(seen.spread):
        return None
    names = ", ".join(map(str, still))
    what = f"channel {names} of {len(seen.spread)} has the same value in all calibration images"
    return Finding("channels", what, "give images in full colour, or grey in all channels")


def _far_off(seen: _Seen) -> Finding | None:
    """Brightness or contrast unlike that of photographs; a handful of images may be so by chance."""
    moving = seen.spread >= LEAST_CONTRAST
    if seen.distinct < FEW or not moving.any() or _looks(seen) is not None:
        return None
    means, spread = seen.mean[moving], seen.spread[moving].min()
    far = means[np.abs(means - 0.5).argmax()]
    if not MEANS[0] <= far <= MEANS[1]:
        odd = f"{'dark' if far < 0.5 else 'bright'} ({far:.0%} of white on average)"
    elif spread < LEAST_SPREAD:
        odd = f"low in contrast (standard deviation {spread:.1%} of white)"
    else:
        return None
    what = f"the calibration images are {odd}, unlike photographs"
    return Finding("statistics", what, "that is right if the model will see such images, otherwise give others")
