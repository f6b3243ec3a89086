"""How good models are on the same images: accuracy, and what a replacement of the reference costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from ptq4vit_onnx.errors import UserError
from ptq4vit_onnx.evaluation.predict import Predictions, not_finite, predict
from ptq4vit_onnx.evaluation.sharded import predict_in_shards
from ptq4vit_onnx.graph.model_file import ModelFile
from ptq4vit_onnx.images.listing import require_same_classes
from ptq4vit_onnx.images.stream import ImageSource
from ptq4vit_onnx.output_kinds.kinds import KINDS, OutputKind
from ptq4vit_onnx.progress import Progress, silent
from ptq4vit_onnx.runtime.engines import EngineName
from ptq4vit_onnx.tasks.task import Tasks


@dataclass(frozen=True)
class Evaluation:
    """One model on some images.

    Each figure is also an attribute: `evaluation.kl`. Rates are in percent, KL in nats. Figures that need labels are
    None without them. Figures against the reference are None for the reference itself.

    Attributes:
        path: The file.
        images: How many were measured on.
        figures: What the model's output kind measures. Logits: top1, top5, agreement, kl, drop. Embedding: knn, drop,
            cosine, worst_cosine, agreement (same nearest neighbour), neighbours (of the ten nearest). Features: cosine,
            worst_cosine, relative_error, worst_relative_error, and outputs, the same by name. drop is in points of
            accuracy, image by image, and drop_error is its standard error.
        skipped: How many images could not be read; they are not among `images`.
        integer_products: How many products run in integers, "44 of 44"; None for ONNX Runtime, which `check_parity`
            audits.
    """

    path: str
    images: int
    figures: Mapping[str, Any] = field(default_factory=dict)
    skipped: int = 0
    integer_products: str | None = None

    def __getattr__(self, name: str) -> Any:
        figures = self.__dict__.get("figures", {})  # not there yet while a copy is made
        if name in figures:
            return figures[name]
        raise AttributeError(f"no figure {name!r}; this kind of output has {', '.join(figures)}")

    def to_data(self) -> dict[str, Any]:
        known = {} if self.integer_products is None else {"integer_products": self.integer_products}
        return {"path": self.path, "images": self.images, **self.figures, "skipped": self.skipped, **known}


@dataclass(frozen=True)
class Evaluations:
    """Several models on the same images.

    Attributes:
        models: In the order they were given.
        reference: What they are compared with, one of them or not.
        measured_on: A sentence on the images where they are built-in photos, else None.
        kind: Of what all of them return.
        engine: That ran all of them.
    """

    models: tuple[Evaluation, ...]
    reference: Evaluation
    measured_on: str | None = None
    kind: OutputKind = KINDS["logits"]
    engine: EngineName = "onnxruntime"

    def to_data(self) -> dict[str, Any]:
        models = [model.to_data() for model in self.models]
        return {"models": models, "measured_on": self.measured_on, "kind": self.kind.name, "engine": self.engine}


def evaluate_files(
    models: Sequence[ModelFile],
    source: ImageSource,
    reference: ModelFile,
    threads: int = 1,
    batch: int = 8,
    progress: Progress = silent,
    gallery: ImageSource | None = None,
    engine: EngineName = "onnxruntime",
    tasks: Tasks | None = None,
) -> Evaluations:
    """Each model next to the reference, on the same images, all in one engine. gallery: labelled images that
    embeddings look up. tasks: share the images out among these workers."""
    run = predict if tasks is None else partial(predict_in_shards, tasks)
    every = [reference, *(model for model in models if model.path != reference.path)]
    if gallery is not None:
        _require_gallery(reference.kind, source, gallery)
    found = run(every, source, threads, batch, progress, engine)
    for path, kept in found.kept.items():
        if sentence := not_finite(found.kind, path, kept):
            raise UserError(f"{sentence}, so it predicts nothing there; export the model again")
    if gallery is not None:
        looked_up = run(every, gallery, threads, batch, progress, engine)
        found = found.with_gallery(_gallery(found, looked_up, gallery))
    judged = {path: _evaluation(path, found, reference.path) for path in found.kept}
    if len(every) == 1 and all(value is None for value in judged[reference.path].figures.values()):
        raise UserError(_nothing_to_measure(found.kind, source, reference.path))
    in_order = tuple(judged[model.path] for model in models)
    return Evaluations(in_order, judged[reference.path], found.measured_on, found.kind, engine)


def _require_gallery(kind: OutputKind, source: ImageSource, gallery: ImageSource) -> None:
    if kind.name != "embedding":
        raise UserError(f"--gallery is for embeddings, the models return {kind.plural}; leave it out")
    if source.data is None or gallery.data is None:
        raise UserError("--gallery needs --data, the labelled images that are looked up in it")
    require_same_classes(source.data, gallery.data)


def _gallery(found: Predictions, gallery: Predictions, source: ImageSource) -> Predictions:
    if gallery.labels is None or found.labels is None:
        where = source if gallery.labels is None else "--data"
        raise UserError(f"k-NN needs labels, {where} has none; give an ImageFolder tree or a labels.csv")
    return gallery


def _nothing_to_measure(kind: OutputKind, source: ImageSource, path: Path) -> str:
    if kind.own == 0:
        return f"{kind.plural} are measured next to others; give --reference FLOAT.onnx to compare {path} with"
    return (
        f"{source} has no labels, and nothing to compare {path} with; give an ImageFolder "
        "tree or a labels.csv, or --reference FLOAT.onnx"
    )


def _evaluation(path: Path, found: Predictions, reference: Path) -> Evaluation:
    kept, kind = found.kept[path], found.kind
    keys = [key for column in kind.columns for key in (column.key, column.error) if key is not None]
    figures: dict[str, Any] = {**dict.fromkeys(keys), **kind.alone(kept)}
    if path != reference:
        figures.update(kind.compare(kept, found.kept[reference]).figures)
    return Evaluation(str(path), len(kept), figures, found.skipped)
