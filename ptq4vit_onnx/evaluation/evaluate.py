"""How good models are on the same images: accuracy, and what a replacement of the reference costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ptq4vit_onnx.errors import UserError
from ptq4vit_onnx.evaluation import metrics
from ptq4vit_onnx.graph.model_file import ModelFile
from ptq4vit_onnx.graph.model_proto import Array
from ptq4vit_onnx.images.preprocessing import Preprocessing
from ptq4vit_onnx.images.stream import ImageSource, open_images
from ptq4vit_onnx.progress import Progress, silent
from ptq4vit_onnx.runtime.session import run, session


@dataclass(frozen=True)
class Evaluation:
    """One model on some images. Rates in percent, drop in points of top-1 (image by image), KL in nats.

    top1, top5, drop: None without labels. agreement, kl, drop: against the reference, None for the reference
    itself. drop_error: the standard error of `drop`. skipped: images that could not be read and are not among `images`.
    """

    path: str
    images: int
    top1: float | None
    top5: float | None
    agreement: float | None
    kl: float | None
    drop: float | None
    drop_error: float | None = None
    skipped: int = 0

    def to_data(self) -> dict[str, Any]:
        names = ("path", "images", "top1", "top5", "agreement", "kl", "drop", "skipped")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True)
class Evaluations:
    """models: in the order they were given. reference: what they are compared with, one of them or not. measured_on: a
    sentence on the images where they are built-in photos, else None."""

    models: tuple[Evaluation, ...]
    reference: Evaluation
    measured_on: str | None = None

    def to_data(self) -> dict[str, Any]:
        return {"models": [model.to_data() for model in self.models], "measured_on": self.measured_on}


@dataclass(frozen=True)
class Predictions:
    """Logits [images, classes] of several models on the same images, by path; labels where there are some.

    first: the first few images, as the first model sees them. skipped: how many images could not be read.
    measured_on: as in Evaluations.
    """

    logits: Mapping[Path, Array]
    labels: Array | None
    first: Array
    skipped: int = 0
    measured_on: str | None = None


def evaluate_files(
    models: Sequence[ModelFile],
    source: ImageSource,
    reference: ModelFile,
    threads: int = 1,
    batch: int = 8,
    progress: Progress = silent,
) -> Evaluations:
    """Each model next to the reference, on the same images."""
    others = [model for model in models if model.path != reference.path]
    found = predict([reference, *others], source, threads, batch, progress)
    if found.labels is None and not others:
        raise UserError(
            f"{source} has no labels, and nothing to compare {reference.path} with; give an ImageFolder "
            "tree or a labels.csv, or --reference FLOAT.onnx"
        )
    for path, logits in found.logits.items():
        if sentence := not_finite(path, logits):
            raise UserError(f"{sentence}, so it predicts nothing there; export the model again")
    return Evaluations(
        tuple(_evaluation(model.path, found, reference.path) for model in models),
        _evaluation(reference.path, found, reference.path),
        found.measured_on,
    )


def not_finite(path: Path, logits: Array) -> str | None:
    """A sentence if some logits [images, classes] are NaN or infinite: the largest of them is then no prediction."""
    wrong = int((~np.isfinite(logits)).any(-1).sum())
    return f"logits of {path} are not finite on {wrong} of {len(logits)} images" if wrong else None


def predict(
    models: Sequence[ModelFile], source: ImageSource, threads: int, batch: int, progress: Progress
) -> Predictions:
    """Run every model on every image; models that prepare images alike read them only once."""
    alike: dict[Preprocessing, list[ModelFile]] = {}
    for model in models:
        alike.setdefault(model.preprocessing, []).append(model)
    groups = [_predict_alike(group, source, threads, batch, progress) for group in alike.values()]
    logits = {path: values for group in groups for path, values in group.logits.items()}
    _require_same_classes({path: values.shape[-1] for path, values in logits.items()}, models[0].path)
    return Predictions(logits, groups[0].labels, groups[0].first, groups[0].skipped, groups[0].measured_on)


def _predict_alike(
    models: Sequence[ModelFile], source: ImageSource, threads: int, batch: int, progress: Progress
) -> Predictions:
    stream = open_images(source, models[0].model, models[0].preprocessing, progress)
    runners = {model.path: session(model.path, threads) for model in models}
    parts: dict[Path, list[Array]] = {path: [] for path in runners}
    labels: list[Array] = []
    first: Array | None = None
    for chunk in stream.chunks:
        first = chunk.images[:2].copy() if first is None else first
        for path, runner in runners.items():
            logits = run(runner, chunk.images, batch)
            _require_logits(path, logits, stream.labels, source)
            parts[path].append(logits)
        if chunk.labels is not None:
            labels.append(chunk.labels)
    assert first is not None, "a stream without images is refused where it is opened"
    joined = {path: np.concatenate(values) for path, values in parts.items()}
    counted = np.concatenate(labels) if labels else None
    return Predictions(joined, counted, first, len(stream.skipped), stream.measured_on)


def _require_logits(path: Path, logits: Array, labels: Array | None, source: ImageSource) -> None:
    if logits.ndim != 2:
        raise UserError(f"{path} returns {list(logits.shape)}, expected logits [images, classes]")
    classes = logits.shape[-1]
    if labels is not None and not ((labels >= 0) & (labels < classes)).all():
        wrong = labels[(labels < 0) | (labels >= classes)][0]
        raise UserError(
            f"{source.data} has the label {wrong}, but {path} knows the classes 0..{classes - 1}; "
            "give images of this model's classes"
        )


def _require_same_classes(classes: Mapping[Path, int], reference: Path) -> None:
    for path, count in classes.items():
        if count != classes[reference]:
            raise UserError(
                f"{path} has {count} classes, {reference} has {classes[reference]}; compare models of the same classes"
            )


def _evaluation(path: Path, found: Predictions, reference: Path) -> Evaluation:
    logits, labels = found.logits[path], found.labels
    top1, top5 = (None, None) if labels is None else (metrics.top1(logits, labels), metrics.top5(logits, labels))
    if path == reference:
        return Evaluation(str(path), len(logits), top1, top5, None, None, None, skipped=found.skipped)
    wanted = found.logits[reference]
    drop = None if labels is None else metrics.paired_drop(wanted, logits, labels)
    return Evaluation(
        str(path),
        len(logits),
        top1,
        top5,
        metrics.agreement(logits, wanted),
        metrics.mean_kl(wanted, logits),
        None if drop is None else drop.points,
        None if drop is None else drop.standard_error,
        found.skipped,
    )
