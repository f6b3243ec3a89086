"""Models run over the same images, a few at a time; of their outputs only what is measured is kept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ptq4vit_onnx.errors import UserError
from ptq4vit_onnx.graph.model_file import ModelFile, require_same_kind
from ptq4vit_onnx.graph.model_proto import Array
from ptq4vit_onnx.images.preprocessing import Preprocessing
from ptq4vit_onnx.images.stream import ImageSource, ImageStream, open_images
from ptq4vit_onnx.output_kinds.kinds import OutputKind
from ptq4vit_onnx.output_kinds.output_kind import Gallery, Kept, Outputs
from ptq4vit_onnx.progress import Progress
from ptq4vit_onnx.runtime.engines import EngineName, open_model
from ptq4vit_onnx.runtime.runner import Runner
from ptq4vit_onnx.runtime.session import output_names, run_all, static_batch


@dataclass(frozen=True)
class Predictions:
    """What is kept of several models of one kind on the same images, by path.

    first: the first few images, as the first model sees them. skipped: how many images could not be read.
    measured_on: a sentence on the images where they are built-in photos, else None.
    """

    kind: OutputKind
    kept: Mapping[Path, Kept]
    labels: Array | None
    first: Array
    skipped: int = 0
    measured_on: str | None = None

    def with_gallery(self, gallery: Predictions) -> Predictions:
        """With neighbours from the gallery's images, each model's as the same model sees them."""
        assert gallery.labels is not None, "a gallery without labels is refused where it is read"
        kept = {
            path: replace(kept, gallery=Gallery(gallery.kept[path].values, gallery.labels))
            for path, kept in self.kept.items()
        }
        return replace(self, kept=kept)


def predict(
    models: Sequence[ModelFile],
    source: ImageSource,
    threads: int,
    batch: int,
    progress: Progress,
    engine: EngineName = "onnxruntime",
    reference_engine: EngineName | None = None,
) -> Predictions:
    """Run every model on every image; models that prepare images alike read them only once. reference_engine: of the
    first model (the others').

    Each is compared with the first, batch by batch: whole feature maps of many images do not fit into memory.
    """
    found, _ = predict_readable(models, source, threads, batch, progress, engine, reference_engine)
    assert found is not None, "a stream without images is refused where it is opened"
    return found


def predict_readable(
    models: Sequence[ModelFile],
    source: ImageSource,
    threads: int,
    batch: int,
    progress: Progress,
    engine: EngineName = "onnxruntime",
    reference_engine: EngineName | None = None,
) -> tuple[Predictions | None, Mapping[str, str]]:
    """What `predict` finds, and the images that could not be read, with the reason; None if a shard has no others."""
    for model in models[1:]:
        require_same_kind(model, models[0])
    streams = _streams(models, source, progress)
    engines = {model.path: engine for model in models} | {models[0].path: reference_engine or engine}
    runners = {path: open_model(path, chosen, threads) for path, chosen in engines.items()}
    comparison = Comparison(models[0].kind, runners, batch)
    labels: list[Array] = []
    first: Array | None = None
    for chunks in zip(*(stream.chunks for stream in streams.values()), strict=True):
        prepared = dict(zip(streams, chunks, strict=True))
        own = prepared[models[0].preprocessing]
        first = own.images[:2].copy() if first is None else first
        for outputs in comparison.add({model.path: prepared[model.preprocessing].images for model in models}):
            _require_known_labels(comparison.kind, outputs, streams[models[0].preprocessing].labels, source)
        if own.labels is not None:
            labels.append(own.labels)
    stream = streams[models[0].preprocessing]
    if first is None:
        return None, stream.skipped
    known = np.concatenate(labels) if labels else None
    kept = comparison.kept(known)
    return Predictions(comparison.kind, kept, known, first, len(stream.skipped), stream.measured_on), stream.skipped


def _streams(models: Sequence[ModelFile], source: ImageSource, progress: Progress) -> dict[Preprocessing, ImageStream]:
    """The same images in the same order, once for each way of preparing them."""
    readers = {model.preprocessing: model for model in reversed(models)}
    return {rule: open_images(source, model.model, rule, progress) for rule, model in readers.items()}


class Comparison:
    """Runs models side by side and keeps of their outputs what the kind measures, next to the first model's."""

    def __init__(self, kind: OutputKind, runners: Mapping[Path, Runner], batch: int = 8) -> None:
        self.kind, self.runners = kind, runners
        self.reference = next(iter(runners))
        self.batch = max(batch, *(static_batch(runner) or 1 for runner in runners.values()))
        self._kept: dict[Path, list[Array]] = {path: [] for path in runners}

    def add(self, images: Mapping[Path, Array]) -> Iterator[dict[Path, Outputs]]:
        """Run all on the next images, each on them as it takes them; all outputs of a batch at a time."""
        for start in range(0, len(images[self.reference]), self.batch):
            part = slice(start, start + self.batch)
            outputs = {path: run_all(runner, images[path][part], self.batch) for path, runner in self.runners.items()}
            for path in outputs:
                self._require_alike(path, outputs)
            for path, found in outputs.items():
                self._kept[path].append(self.kind.keep(found, outputs[self.reference]))
            yield outputs

    def kept(self, labels: Array | None) -> dict[Path, Kept]:
        return {
            path: Kept(np.concatenate(parts), output_names(self.runners[path]), labels)
            for path, parts in self._kept.items()
        }

    def _require_alike(self, path: Path, outputs: Mapping[Path, Outputs]) -> None:
        found, wanted = outputs[path], outputs[self.reference]
        if not self.kind.fits(found):
            shapes = ", ".join(str(list(output.shape)) for output in found)
            raise UserError(f"{path} returns {shapes}, expected {self.kind.shape}")
        shape, other = ([list(output.shape[1:]) for output in item] for item in (found, wanted))
        if shape == other:
            return
        if self.kind.classes(found) is not None:
            raise UserError(
                f"{path} has {self.kind.classes(found)} classes, {self.reference} has {self.kind.classes(wanted)}; "
                "compare models of the same classes"
            )
        raise UserError(
            f"{path} returns {shape} per image, {self.reference} {other}; compare models of the same outputs"
        )


def _require_known_labels(
    kind: OutputKind, outputs: Mapping[Path, Outputs], labels: Array | None, source: ImageSource
) -> None:
    for path, found in outputs.items():
        classes = kind.classes(found)
        if labels is not None and classes is not None and not ((labels >= 0) & (labels < classes)).all():
            wrong = labels[(labels < 0) | (labels >= classes)][0]
            raise UserError(
                f"{source.data} has the label {wrong}, but {path} knows the classes 0..{classes - 1}; "
                "give images of this model's classes"
            )


def not_finite(kind: OutputKind, path: Path, kept: Kept) -> str | None:
    """A sentence if outputs for some images are NaN or infinite: nothing can be measured of these."""
    wrong = int((~np.isfinite(kept.values.reshape(len(kept), -1))).any(-1).sum())
    return f"{kind.plural} of {path} are not finite on {wrong} of {len(kept)} images" if wrong else None
