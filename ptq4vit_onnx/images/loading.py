"""Images to calibrate and to measure on, from wherever the user has them.

A source is one of
    a folder of images, of images with labels.csv, or an ImageFolder tree (see image_listing)
    .npy  [n, C, H, W] float32, preprocessed already
    .npz  with `images` as above and, optionally, `labels`
"""

from __future__ import annotations

import hashlib
import logging
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from ptq4vit_onnx.errors import UserError
from ptq4vit_onnx.files.inputs import unfit
from ptq4vit_onnx.images.arrays import has_array, images_shape, read_arrays
from ptq4vit_onnx.images.listing import Listing, list_folder
from ptq4vit_onnx.images.preprocessing import Preprocessing
from ptq4vit_onnx.limits import MAX_PIXELS
from ptq4vit_onnx.progress import Progress, silent

logger = logging.getLogger(__name__)
Array = np.ndarray[Any, Any]
# What Pillow raises for damaged files, by format; EOFError, SyntaxError and struct.error among them.
_UNREADABLE = (
    OSError, ValueError, EOFError, SyntaxError, struct.error, zlib.error, Image.DecompressionBombError
)  # fmt: skip


@dataclass(frozen=True)
class ImageSet:
    """images: float32 [n, C, H, W], preprocessed. labels: int64 [n], or None where the source has none.

    built_in: crops of the photos that ship with the package. skipped: files that could not be read. warnings: what is
    odd about them as images to calibrate on (see inspection).
    """

    images: Array
    labels: Array | None
    names: tuple[str, ...]
    source: str
    built_in: bool = False
    skipped: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.images)

    def part(self, which: slice) -> ImageSet:
        labels = None if self.labels is None else self.labels[which]
        return replace(self, images=self.images[which], labels=labels, names=self.names[which])

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the pixels as the network sees them."""
        digest = hashlib.sha256(str(self.images.shape).encode())
        digest.update(np.ascontiguousarray(self.images).tobytes())
        return digest.hexdigest()


def require_source(source: Path) -> None:
    """Refuse a path where nothing is: cheap enough to ask before a model is loaded."""
    if not source.exists():
        raise UserError(f"no images at {source}: it does not exist; give a folder, an ImageFolder tree, .npy or .npz")


def count_images(source: Path) -> int:
    """How many images a source has, without reading one: files that may be damaged, or what an array's header says."""
    if source.suffix not in (".npy", ".npz"):
        return len(list_folder(source).files)
    shape = images_shape(source)
    return shape[0] if shape else 1  # a single number has no axis; how an array should look is said when it is read


def has_labels(source: Path, where: Callable[[dict[str, str]], bool] | None = None) -> bool:
    """Whether the images of a source are labelled, without reading them."""
    if source.suffix not in (".npy", ".npz"):
        return list_folder(source, where).labels is not None
    return has_array(source, "labels")


def load_images(
    source: Path,
    preprocessing: Preprocessing,
    count: int | None = None,
    seed: int = 0,
    minimum: int = 1,
    where: Callable[[dict[str, str]], bool] | None = None,
    progress: Progress = silent,
) -> ImageSet:
    """`count` images picked with `seed` from the source (all of them, in order, where count is None).

    Unreadable files are named in a warning and replaced by the next pick; fewer than `minimum` left is an
    error.
    `where` keeps only some rows of a labels.csv.
    """
    require_source(source)
    if source.suffix in (".npy", ".npz"):
        return _load_array(source, preprocessing, count, seed, minimum)
    listing = list_folder(source, where)
    order = pick(len(listing.files), None if count is None else len(listing.files), seed)
    skipped: dict[str, str] = {}
    read = dict(read_images(listing, order, count, preprocessing, skipped, progress))
    require_readable(source, len(read), minimum, skipped)
    for file, reason in skipped.items():
        logger.warning("skipped unreadable image %s: %s", file, reason)
    labels = None if listing.labels is None else np.asarray([listing.labels[n] for n in read], np.int64)
    names = tuple(listing.files[index].name for index in read)
    return ImageSet(np.stack(list(read.values())), labels, names, str(source), skipped=tuple(skipped))


def read_images(
    listing: Listing, order: Sequence[int], count: int | None, preprocessing: Preprocessing,
    skipped: dict[str, str], progress: Progress,
) -> Iterator[tuple[int, Array]]:  # fmt: skip
    """(index, preprocessed image) in `order` until there are `count`.

    An unreadable file is put into `skipped` with its reason, and the next one takes its place.
    """
    wanted = len(order) if count is None else min(count, len(order))
    kept: list[int] = []
    for index in progress(_until(order, kept, wanted), "reading images"):
        try:
            pixels = _read_image(listing.files[index], preprocessing)
        except _UNREADABLE as error:
            skipped[str(listing.files[index])] = str(error)
            continue
        kept.append(index)
        yield index, pixels


def _read_image(file: Path, preprocessing: Preprocessing) -> Array:
    reason = unfit(file)
    if reason is not None:
        raise ValueError(reason)
    with Image.open(file) as image:
        if image.width * image.height > MAX_PIXELS:
            raise ValueError(f"it has {image.width} x {image.height} pixels, expected at most {MAX_PIXELS}")
        return preprocessing.apply(image)


def require_readable(source: Path, readable: int, minimum: int, skipped: Mapping[str, str]) -> None:
    needed = max(minimum, 1)
    if readable < needed:
        file, reason = next(iter(skipped.items()), ("", ""))
        first = f", the first is {file}: {' '.join(reason.split())}" if skipped else ""
        raise UserError(
            f"{source} has {readable} readable images, {needed} are needed "
            f"({len(skipped)} could not be read{first}); give more images or lower --images"
        )


def _until(order: Sequence[int], kept: list[int], wanted: int) -> list[int] | Iterable[int]:
    """The order, ended once `wanted` images were kept (unreadable ones are replaced by later picks)."""
    if wanted == len(order):
        return list(order)
    return _Until(order, kept, wanted)


class _Until:
    def __init__(self, order: Sequence[int], kept: list[int], wanted: int) -> None:
        self.order, self.kept, self.wanted = order, kept, wanted

    def __len__(self) -> int:
        return self.wanted

    def __iter__(self) -> Any:
        for index in self.order:
            if len(self.kept) >= self.wanted:
                return
            yield index


def pick(available: int, count: int | None, seed: int) -> list[int]:
    """`count` of the numbers below `available`, drawn with `seed`; all of them, in order, without a count."""
    if count is None:
        return list(range(available))
    return [int(index) for index in np.random.default_rng(seed).permutation(available)[:count]]


def _load_array(source: Path, preprocessing: Preprocessing, count: int | None, seed: int, minimum: int) -> ImageSet:
    images, labels = read_arrays(source)
    if images.ndim != 4 or images.shape[1:] != preprocessing.size or images.dtype != np.float32:
        raise UserError(
            f"{source} holds {images.dtype} {list(images.shape)}; expected preprocessed float32 "
            f"[n, {', '.join(map(str, preprocessing.size))}]"
        )
    if len(images) < max(minimum, 1):
        raise UserError(
            f"{source} holds {len(images)} images, {max(minimum, 1)} are needed; give more images or lower --images"
        )
    if not np.isfinite(images).all():
        raise UserError(f"{source} holds NaN or infinite pixels; expected preprocessed images")
    if labels is not None and (labels.shape != images.shape[:1] or labels.dtype.kind not in "iu"):
        raise UserError(
            f"{source} holds {len(images)} images and labels as {labels.dtype} {list(labels.shape)}; "
            "expected one whole number per image"
        )
    order = pick(len(images), None if count is None else min(count, len(images)), seed)
    return ImageSet(
        images[order],
        None if labels is None else labels[order].astype(np.int64),
        tuple(f"{source.name}[{index}]" for index in order),
        str(source),
    )
