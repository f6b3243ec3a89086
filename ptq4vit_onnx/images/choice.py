"""Which images an export calibrates on, which it measures on, and which its files are measured on later."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ptq4vit_onnx.errors import UserError
from ptq4vit_onnx.images.builtin import BUILT_IN, CHANNELS, IMAGES_FROM, built_in_photos, require_rgb
from ptq4vit_onnx.images.embedded import count_digits, embedded_digits, require_digits
from ptq4vit_onnx.images.loading import ImageSet, count_images, load_images, require_source
from ptq4vit_onnx.images.preprocessing import Preprocessing
from ptq4vit_onnx.limits import require_whole
from ptq4vit_onnx.models.specs import ModelSpec
from ptq4vit_onnx.plan.scale_plan import ScalePlan
from ptq4vit_onnx.progress import Progress, silent

MOST_HELD_OUT = 256  # of the user's images
MOST_PIXELS = MOST_HELD_OUT * 512 * 512  # of all held out: 800 MB of colours, 64 images of 1024 x 1024 pixels
MOST_CHOOSING = 4  # times as many images as are measured on; a drop of top-1 needs many
LEAST_HELD_OUT = 8  # fewer of the user's tell less than crops of the built-in photos
BUILT_IN_HELD_OUT = 64
MOST_CROPS = 1024  # more of three photos say nothing new, and all are held in memory
_CALIBRATED = {True: "not calibrated on", False: "also calibrated on, so the figure flatters",
               None: "perhaps also calibrated on"}  # fmt: skip


@dataclass(frozen=True)
class MeasuredOn:
    """The images that a quantised model was compared with the float one on.

    held_out: none of them was calibrated on; None where the user's plan was calibrated on images that are not known.
    """

    count: int
    source: str
    held_out: bool | None

    def __str__(self) -> str:
        return f"{self.count} images of {self.source}, {_CALIBRATED[self.held_out]}"

    def to_data(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class ChosenImages:
    """calibration: what scales are fitted to. measured: what their cost is measured on. held_out: as in MeasuredOn.

    rounding: what weights are rounded on: the images of `calibration`, and more that are not measured on. choosing:
    what a budget's choice is made on, if there are so many: neither calibrated nor measured on.
    """

    calibration: ImageSet
    measured: ImageSet
    held_out: bool | None
    rounding: ImageSet | None = None
    choosing: ImageSet | None = None

    @property
    def chosen_on(self) -> ImageSet:
        return self.measured if self.choosing is None else self.choosing

    @property
    def rounded_on(self) -> ImageSet:
        return self.calibration if self.rounding is None else self.rounding

    @property
    def measured_on(self) -> MeasuredOn:
        return MeasuredOn(len(self.measured), self.measured.source, self.held_out)

    def with_warnings(self, warnings: tuple[str, ...]) -> ChosenImages:
        """warnings: what is odd about the images to calibrate on."""
        return replace(self, calibration=replace(self.calibration, warnings=warnings))

    def for_plan(self, fingerprint: str) -> ChosenImages:
        """For a plan that is applied instead of calibrating. fingerprint: of the images that it was calibrated on."""
        return self if fingerprint == self.calibration.fingerprint else replace(self, held_out=None)


def require_images(spec: ModelSpec, data: Path | None, count: int, channels: int | None) -> None:
    """Refuse what can be known before a model is loaded. channels: the model's, None where they are not known yet."""
    if data is not None:
        require_source(data)
        found = count_images(data)
        if found < count:
            raise UserError(f"{data} has {found} images, {count} are needed; give more images or lower --images")
    elif spec.embedded:
        require_digits("calibration", count)
    elif channels is not None:
        require_rgb(channels, spec.name)


def choose_images(
    spec: ModelSpec, data: Path | None, preprocessing: Preprocessing, count: int, seed: int,
    progress: Progress = silent, rounding: int = 0, choosing: int = 0,
) -> ChosenImages:  # fmt: skip
    """`count` images to calibrate on, and others to measure on wherever there are others.

    rounding: how many weights are rounded on; fewer where half of the images that calibration leaves are fewer, or
    where an embedded model has no more. choosing: how many a budget's choice is made on; where there are fewer, it is
    made on those that are measured on.

    Those are, in this order: images of `data` that are not calibrated on, the test split of an embedded model, crops of
    built-in photos that are not calibrated on. A model of other channels with no more images than `count` is measured
    on what it was calibrated on.
    """
    if data is None and not spec.embedded:
        require_rgb(preprocessing.size[0], spec.name)
        photos = built_in_photos(preprocessing, "calibration", max(count, rounding), seed)
        unseen = built_in_photos(preprocessing, "held out", BUILT_IN_HELD_OUT + choosing, seed)
        measured, others = unseen.part(slice(BUILT_IN_HELD_OUT)), unseen.part(slice(BUILT_IN_HELD_OUT, None))
        return ChosenImages(photos.part(slice(count)), measured, True, photos, others if choosing else None)
    if data is None:
        most = min(max(count, rounding), count_digits("calibration"))
        digits = embedded_digits(preprocessing, "calibration", max(count, most), seed)
        measured, chosen_on = embedded_digits(preprocessing, "test"), min(choosing, count_digits("train"))
        trained_on = embedded_digits(preprocessing, "train", chosen_on, seed) if chosen_on else None
        return ChosenImages(digits.part(slice(count)), measured, True, digits, trained_on)
    more, most = max(0, rounding - count), most_held_out(preprocessing)
    choosing = min(choosing, MOST_CHOOSING * most)
    read = load_images(data, preprocessing, count + most + more + choosing, seed, count, progress=progress)
    calibration, rest = read.part(slice(count)), read.part(slice(count, None))
    to_measure, to_choose = _shares(len(rest), more, choosing)
    others, unseen = rest.part(slice(to_measure)), rest.part(slice(to_measure, to_measure + to_choose))
    rounding_set = _joined(calibration, rest.part(slice(to_measure + to_choose, None)))
    chosen = ChosenImages(calibration, others, True, rounding_set, unseen if len(unseen) else None)
    if len(others) >= LEAST_HELD_OUT:
        return chosen
    if spec.embedded:
        return replace(chosen, measured=embedded_digits(preprocessing, "test"))
    if preprocessing.size[0] == CHANNELS:
        return replace(chosen, measured=_held_out_photos(preprocessing, seed))
    return replace(chosen, measured=others if len(others) else calibration, held_out=len(others) > 0)


def most_held_out(preprocessing: Preprocessing) -> int:
    """How many of the user's images are measured on: all are in memory at once, so fewer of large ones."""
    _, height, width = preprocessing.size
    return max(LEAST_HELD_OUT, min(MOST_HELD_OUT, MOST_PIXELS // (height * width)))


def _shares(left: int, rounding: int, choosing: int) -> tuple[int, int]:
    """(how many of the images that calibration leaves are measured on, how many a choice is made on); others serve
    rounding. Where there are too few, half are measured on, and half of the others are chosen on."""
    measured = max(left - rounding - choosing, (left + 1) // 2)
    others = left - measured
    chosen = min(choosing, max(others - rounding, (others + 1) // 2))
    return measured, chosen if chosen >= LEAST_HELD_OUT else 0


def _joined(images: ImageSet, more: ImageSet) -> ImageSet:
    """Without the labels, which nobody asks for."""
    if not len(more):
        return images
    both = np.concatenate([images.images, more.images])
    return replace(images, images=both, labels=None, names=images.names + more.names)


def _held_out_photos(preprocessing: Preprocessing, seed: int) -> ImageSet:
    return built_in_photos(preprocessing, "held out", BUILT_IN_HELD_OUT, seed)


@dataclass(frozen=True)
class UnseenPhotos:
    """Crops of built-in photos that quantised files are measured on, without labels. held_out: as in MeasuredOn."""

    images: ImageSet
    held_out: bool | None

    def __str__(self) -> str:
        measured = MeasuredOn(len(self.images), self.images.source, self.held_out)
        return f"{measured}; they have no labels, so there is no accuracy"


def unseen_photos(
    plans: Sequence[ScalePlan | None], preprocessing: Preprocessing, model: str, count: int | None = None
) -> UnseenPhotos:
    """The crops that an export of this model measures on, or the first `count`, a larger count going on from there.

    plans: of the quantised files, None where a file's is not known. The seed of a plan that was calibrated on built-in
    photos decides which photos are left; plans of several seeds would not leave the same, and are refused.
    """
    require_rgb(preprocessing.size[0], model)
    require_whole("images", BUILT_IN_HELD_OUT if count is None else count, 1, MOST_CROPS)
    known = [plan for plan in plans if plan is not None]
    seeds = {_option(plan, "seed") for plan in known if plan.options.get(IMAGES_FROM) == BUILT_IN}
    if len(seeds) > 1:
        raise UserError(
            f"the files were calibrated on built-in photos by the seeds {', '.join(map(str, sorted(seeds)))}, which "
            "leave different photos to measure on; give --data, or measure one file at a time"
        )
    seed = next(iter(seeds or [_option(plan, "seed") for plan in known] or [0]))
    images = built_in_photos(preprocessing, "held out", count or BUILT_IN_HELD_OUT, seed)
    return UnseenPhotos(images, True if all(_left_out(plan, preprocessing) for plan in plans) else None)


def _left_out(plan: ScalePlan | None, preprocessing: Preprocessing) -> bool:
    """Whether the plan was surely calibrated on other images than the held-out photos of its seed.

    The fingerprint tells a plan of other built-in photos, as another version of the package may have them.
    """
    if plan is None or IMAGES_FROM not in plan.options:
        return False
    if plan.options[IMAGES_FROM] != BUILT_IN:
        return True
    count = min(max(_option(plan, "images"), 1), MOST_CROPS)
    return built_in_photos(preprocessing, "calibration", count, _option(plan, "seed")).fingerprint == plan.images


def _option(plan: ScalePlan, name: str) -> int:
    """A whole number among a plan's options; 0 for what a hand-written plan lacks."""
    value = plan.options.get(name)
    return value if isinstance(value, int) and value >= 0 else 0
