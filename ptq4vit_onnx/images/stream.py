"""Images to measure on, a few at a time: a validation set need not fit into memory."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from ptq4vit_onnx.errors import UserError
from ptq4vit_onnx.images.choice import unseen_photos
from ptq4vit_onnx.images.embedded import embedded_digits
from ptq4vit_onnx.images.listing import Listing, list_folder
from ptq4vit_onnx.images.loading import Array, ImageSet, load_images, pick, read_images, require_readable
from ptq4vit_onnx.images.preprocessing import Preprocessing
from ptq4vit_onnx.limits import require_whole
from ptq4vit_onnx.models.specs import is_embedded
from ptq4vit_onnx.plan.scale_plan import ScalePlan
from ptq4vit_onnx.progress import Progress

logger = logging.getLogger(__name__)
AT_ONCE = 64  # images in memory: 40 MB at 224 x 224
MOST_AT_ONCE = 2**26  # numbers of them: fewer images, where they are large


@dataclass(frozen=True)
class Where:
    """Keeps the rows of a labels.csv whose `column` is `value`."""

    column: str
    value: str

    @classmethod
    def parse(cls, text: str) -> Where:
        column, equals, value = text.partition("=")
        if not (column and equals):
            raise UserError(f"where is {text!r}; expected COLUMN=VALUE, as fold=3")
        return cls(column, value)

    def __call__(self, row: dict[str, str]) -> bool:
        if self.column not in row:
            raise UserError(f"labels.csv has no column {self.column!r} for --where; its columns are {', '.join(row)}")
        return row[self.column] == self.value


@dataclass(frozen=True)
class ImageSource:
    """Which images. data None: the test split that ships with an embedded model, else crops of built-in photos that
    none of `plans` was calibrated on. count None: all of them, in order, else as many, picked with `seed`.
    skip_unreadable: measure on the others, where a file is damaged or missing; without it that is an error, since a
    figure on half a set looks like one on the whole. plans: of the files that are measured, None for an unknown one.
    only: a shard, by number, of the files of a folder or of the images that were picked; see `shards`, which also says
    what becomes of the unreadable among them."""

    data: Path | None = None
    count: int | None = None
    where: Where | None = None
    seed: int = 0
    skip_unreadable: bool = False
    plans: tuple[ScalePlan | None, ...] = (None,)
    only: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if self.count is not None:
            require_whole("images", self.count, 1)
        if self.where is not None and not (self.data is not None and (self.data / "labels.csv").is_file()):
            raise UserError(f"--where needs a labels.csv, {self} has none; leave it out")

    def __str__(self) -> str:
        return "the set of built-in images" if self.data is None else str(self.data)


@dataclass(frozen=True)
class ImageStream:
    """labels: of every image that may come, known before the first is read; None without labels. skipped: files that
    could not be read, by now, with the reason. measured_on: a sentence on built-in photos; None for other images."""

    labels: Array | None
    chunks: Iterable[ImageSet]
    skipped: Mapping[str, str] = field(default_factory=dict)
    measured_on: str | None = None


def open_images(source: ImageSource, model: str, preprocessing: Preprocessing, progress: Progress) -> ImageStream:
    """The images of `source`, prepared for the model of this name."""
    data = source.data
    if data is None and is_embedded(model):
        return _held(source, embedded_digits(preprocessing, "test", source.count, source.seed), progress)
    if data is None:
        photos = unseen_photos(source.plans, preprocessing, model, source.count)
        return replace(_held(source, photos.images, progress), measured_on=str(photos))
    if not data.is_dir():
        return _held(source, load_images(data, preprocessing, source.count, source.seed), progress)
    listing = list_folder(data, source.where)
    labels = None if listing.labels is None else np.asarray(listing.labels, np.int64)
    skipped: dict[str, str] = {}
    return ImageStream(labels, _folder_chunks(source, data, listing, preprocessing, skipped, progress), skipped)


def at_once(size: tuple[int, ...]) -> int:
    """How many images of this size, [C, H, W], a chunk has."""
    return max(1, min(AT_ONCE, MOST_AT_ONCE // math.prod(size)))


def _held(source: ImageSource, held: ImageSet, progress: Progress) -> ImageStream:
    if source.only is not None:
        held = held.part(slice(source.only[0], source.only[-1] + 1))

    def chunks() -> Iterator[ImageSet]:
        for start in progress(range(0, len(held), AT_ONCE), "running"):
            part = slice(start, start + AT_ONCE)
            labels = None if held.labels is None else held.labels[part]
            yield ImageSet(held.images[part], labels, held.names[part], held.source)

    return ImageStream(held.labels, chunks())


def _folder_chunks(
    source: ImageSource,
    folder: Path,
    listing: Listing,
    preprocessing: Preprocessing,
    skipped: dict[str, str],
    progress: Progress,
) -> Iterator[ImageSet]:
    """Images as they are read; unreadable ones are summed up at the end, in one warning or as an error.

    Once it will be an error nothing more is handed out: the rest is read only to count.
    """
    files, only = len(listing.files), source.only
    order = pick(files, None if source.count is None else files, source.seed) if only is None else only
    waiting: dict[int, Array] = {}
    total = 0
    reader = read_images(listing, order, source.count if only is None else None, preprocessing, skipped, progress)
    for index, pixels in reader:
        waiting[index] = pixels
        total += 1
        if skipped and not source.skip_unreadable:
            waiting.clear()
        elif len(waiting) == at_once(preprocessing.size):
            yield _image_set(waiting, listing, folder)
            waiting.clear()
    if only is None:
        _require_enough(source, folder, total, skipped)
    if waiting:
        yield _image_set(waiting, listing, folder)
    if skipped and only is None:
        logger.warning("skipped %d unreadable images, %s", len(skipped), _first(skipped))


def _require_enough(source: ImageSource, folder: Path, readable: int, skipped: Mapping[str, str]) -> None:
    require_readable(folder, readable, 1, skipped)
    if skipped and not source.skip_unreadable:
        raise UserError(
            f"cannot read {len(skipped)} images, {_first(skipped)}; mend them, or give --skip-unreadable to do without "
            "them"
        )


def finish_reading(source: ImageSource, readable: int, unreadable: Mapping[int, str]) -> None:
    """What one run over all images says at its end of those it could not read. unreadable: by number, in order."""
    if source.data is None or not source.data.is_dir():
        return
    files = list_folder(source.data, source.where).files
    skipped = {str(files[number]): reason for number, reason in unreadable.items()}
    _require_enough(source, source.data, readable, skipped)
    if skipped:
        logger.warning("skipped %d unreadable images, %s", len(skipped), _first(skipped))


def unreadable_of(source: ImageSource, skipped: Mapping[str, str]) -> dict[int, str]:
    """Of a shard: the images that could not be read by number, from what its stream says of them by name."""
    if not skipped or source.data is None:
        return {}
    files = list_folder(source.data, source.where).files
    return {number: skipped[str(files[number])] for number in source.only or () if str(files[number]) in skipped}


def _first(skipped: Mapping[str, str]) -> str:
    file, reason = next(iter(skipped.items()))
    return f"the first is {file}: {' '.join(reason.split())}"


def _image_set(read: dict[int, Array], listing: Listing, folder: Path) -> ImageSet:
    labels = None if listing.labels is None else np.asarray([listing.labels[n] for n in read], np.int64)
    names = tuple(listing.files[index].name for index in read)
    return ImageSet(np.stack(list(read.values())), labels, names, str(folder))
