"""A source of images cut into shards, so that several workers measure each a part of it.

Images are prepared and run a chunk at a time, and the last bits of what a model computes may depend on what else is in
a chunk. So shards are whole chunks of the images in their order, and results joined in this order are those of one run
over all. An image that cannot be read moves those behind it into other chunks: then the shards from there on are run
again without it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import TypeVar

from ptq4vit_onnx.images.listing import list_folder
from ptq4vit_onnx.images.loading import pick
from ptq4vit_onnx.images.preprocessing import Preprocessing
from ptq4vit_onnx.images.stream import ImageSource, at_once, finish_reading, open_images
from ptq4vit_onnx.progress import silent

Result = TypeVar("Result")
Part = tuple[int, ...]  # images of a source by their number: see ImageSource.only
Measured = tuple[Result, Mapping[int, str]]  # of a part, and those of its images that cannot be read, with the reason
Shards = Generator[list[Part], Sequence[Measured[Result]], tuple[list[Result], int]]
SHARDS = 256  # of a source that is large enough: so that many workers end at about the same time
MOST_CHUNKS = 16  # of a shard: a worker that dies loses no more


def shards(source: ImageSource, model: str, preprocessing: Preprocessing) -> Shards[Result]:
    """Asks for parts to be measured, is sent what was found of each, and returns the results of all shards in order,
    and how many images could not be read."""
    order, wanted = _order(source, model, preprocessing)
    unreadable: dict[int, str] = {}
    known: dict[Part, Measured[Result]] = {}
    while True:
        readable = [number for number in order if number not in unreadable][:wanted]
        parts = cut(readable, at_once(preprocessing.size))
        missing = [part for part in parts if part not in known]
        known.update(zip(missing, (yield missing), strict=True))
        found = {number: reason for part in parts for number, reason in known[part][1].items()}
        unreadable |= found
        if not (found and source.skip_unreadable):
            break
    finish_reading(source, len(readable), {number: unreadable[number] for number in order if number in unreadable})
    return [known[part][0] for part in parts], len(unreadable)


def over_shards(
    asking: Shards[Result], run: Callable[[list[Part]], Sequence[Measured[Result]]]
) -> tuple[list[Result], int]:
    """Its results, where all parts are measured before the next are asked for."""
    parts = next(asking)
    while True:
        try:
            parts = asking.send(run(parts))
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]


def cut(order: Sequence[int], chunk: int) -> list[Part]:
    """Into parts of whole chunks, the same for any number of workers."""
    chunks = -(-len(order) // chunk)
    size = chunk * max(1, min(MOST_CHUNKS, chunks // SHARDS))
    return [tuple(order[start : start + size]) for start in range(0, len(order), size)]


def _order(source: ImageSource, model: str, preprocessing: Preprocessing) -> tuple[list[int], int]:
    """The images in the order in which they are tried, and how many are wanted."""
    if source.data is not None and source.data.is_dir():
        files = len(list_folder(source.data, source.where).files)
        order = pick(files, None if source.count is None else files, source.seed)
        return order, files if source.count is None else min(source.count, files)
    held = sum(len(chunk) for chunk in open_images(source, model, preprocessing, silent).chunks)
    return list(range(held)), held
