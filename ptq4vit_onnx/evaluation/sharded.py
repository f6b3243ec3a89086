"""Model files run over shards of the images, several at once; what is kept is joined in the images' order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from ptq4vit_onnx.evaluation.predict import Predictions, predict_readable
from ptq4vit_onnx.graph.model_file import OPENVINO_SUFFIX, ModelFile
from ptq4vit_onnx.graph.model_proto import file_bytes
from ptq4vit_onnx.images.shards import Measured, Part, over_shards, shards
from ptq4vit_onnx.images.stream import ImageSource, unreadable_of
from ptq4vit_onnx.output_kinds.output_kind import Kept
from ptq4vit_onnx.progress import Progress, silent
from ptq4vit_onnx.runtime.engines import EngineName
from ptq4vit_onnx.tasks.task import Task, Tasks, in_order
from ptq4vit_onnx.tasks.travel import here

MEMORY = 1 << 30  # of a worker besides the models: libraries, a chunk of images and what is computed of it
TIMES_FILE = 3  # how much more than its file a model takes once it is open


def predict_in_shards(
    tasks: Tasks, models: Sequence[ModelFile], source: ImageSource, threads: int, batch: int, progress: Progress,
    engine: EngineName = "onnxruntime",
) -> Predictions:  # fmt: skip
    """What `predict` finds, to the last bit."""

    def run(parts: list[Part]) -> Sequence[Measured[Predictions | None]]:
        asked = [_task(models, replace(source, only=part), threads, batch, engine) for part in parts]
        return in_order(tasks, asked, "running shards", progress)

    first = models[0]
    found, unreadable = over_shards(shards(source, first.model, first.preprocessing), run)
    return _joined(models, [part for part in found if part is not None], unreadable)


def _task(models: Sequence[ModelFile], source: ImageSource, threads: int, batch: int, engine: EngineName) -> Task:
    assert source.only is not None
    name = f"images {source.only[0]} .. {source.only[-1]}"
    reads = [*(_read_of(model.path) for model in models), *([] if source.data is None else [source.data])]
    memory = MEMORY + TIMES_FILE * sum(file_bytes(model.path) for model in models)
    arguments = (tuple(models), source, threads, batch, engine)
    return Task(name, shard, arguments, tuple(dict.fromkeys(reads)), max(1, threads), memory)


def shard(
    models: Sequence[ModelFile], source: ImageSource, threads: int, batch: int, engine: EngineName
) -> Measured[Predictions | None]:
    """In a worker: what `predict` finds on one shard, and its images that cannot be read."""
    placed = [replace(model, path=_placed(model.path)) for model in models]
    local = source if source.data is None else replace(source, data=here(source.data))
    found, skipped = predict_readable(placed, local, threads, batch, silent, engine)
    if found is None:
        return None, unreadable_of(local, skipped)
    kept = {model.path: found.kept[place.path] for model, place in zip(models, placed, strict=True)}
    return replace(found, kept=kept), unreadable_of(local, skipped)


def _joined(models: Sequence[ModelFile], parts: Sequence[Predictions], unreadable: int) -> Predictions:
    labelled = [part.labels for part in parts if part.labels is not None]
    labels = np.concatenate(labelled) if labelled else None
    kept = {model.path: _kept([part.kept[model.path] for part in parts]) for model in models}
    first = parts[0]
    return Predictions(
        models[0].kind, {path: join(labels) for path, join in kept.items()}, labels, first.first, unreadable,
        first.measured_on,
    )  # fmt: skip


def _kept(parts: Sequence[Kept]) -> partial[Kept]:
    return partial(Kept, np.concatenate([part.values for part in parts]), parts[0].outputs)


def _read_of(path: Path) -> Path:
    """What has to be there for a model to be opened: its file, or its folder where weights lie next to it."""
    beside = path.with_suffix(".bin") if path.suffix == OPENVINO_SUFFIX else path.with_name(path.name + ".data")
    return path.parent if beside.exists() else path


def _placed(path: Path) -> Path:
    return here(path) if here(path) != path else here(path.parent) / path.name
