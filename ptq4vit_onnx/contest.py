"""Models next to ONNX Runtime's own `quantize_static`, from the same float file and images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ptq4vit_onnx.errors import UserError
from ptq4vit_onnx.evaluation import Evaluation, evaluate_files
from ptq4vit_onnx.image_stream import ImageSource
from ptq4vit_onnx.images import ImageSet, Progress, embedded_digits, load_images, synthetic_images
from ptq4vit_onnx.kernels import KernelAudit, audit
from ptq4vit_onnx.model_file import ModelFile, read_model_file, require_reference_of
from ptq4vit_onnx.report import file_bytes
from ptq4vit_onnx.static_peer import PEERS, quantize_static_peer

CALIBRATION_IMAGES = 32  # as many as an export uses by default


@dataclass(frozen=True)
class Contestant:
    """What is known of a model besides its speed. evaluation: None without images to judge it on."""

    name: str
    bytes: int
    kernels: KernelAudit
    evaluation: Evaluation | None

    def to_data(self) -> dict[str, Any]:
        judged = {} if self.evaluation is None else self.evaluation.to_data()
        names = ("images", "top1", "top5", "agreement", "kl", "drop")
        return {
            "name": self.name,
            "bytes": self.bytes,
            "products": len(self.kernels.products),
            "products_in_integers": self.kernels.integers,
            **{name: judged.get(name) for name in names},
        }


def float_file(model: Path, reference: Path | None) -> ModelFile:
    """The float model that peers are made from: `reference`, or the float.onnx next to `model`."""
    path = reference or model.with_name("float.onnx")
    if not path.is_file():
        raise UserError(f"no float model at {path}; give --reference FLOAT.onnx, the float file of the export")
    return read_model_file(path)


def calibration_images(model: ModelFile, source: ImageSource) -> ImageSet:
    """What peers are calibrated on: the user's images, or the embedded calibration split, or made up ones."""
    if source.data is not None:
        return load_images(source.data, model.preprocessing, CALIBRATION_IMAGES, source.seed, where=source.where)
    if model.embedded:
        return embedded_digits(model.preprocessing, "calibration", CALIBRATION_IMAGES, source.seed)
    return synthetic_images(model.preprocessing, CALIBRATION_IMAGES, source.seed)


def build_peers(
    names: Sequence[str], model: ModelFile, images: ImageSet, folder: Path, progress: Progress
) -> dict[str, Path]:
    """quantize_static's models of the float file, by the names of PEERS, written to `folder`."""
    built = {}
    for name in progress(list(names), "quantize_static"):
        path = folder / f"{name}.onnx"
        built[name] = quantize_static_peer(model.path, images.images, path, PEERS[name])
    return built


def judge(
    models: Mapping[str, Path], reference: ModelFile, source: ImageSource | None, progress: Progress
) -> list[Contestant]:
    """Size, kernels and, on the images of `source`, accuracy and agreement with the float reference.

    Peers do not carry the metadata on: all prepare images as the reference does.
    """
    evaluations: dict[str, Evaluation] = {}
    if source is not None:
        files = [replace(reference, path=path) for path in models.values()]
        found = evaluate_files(files, source, reference, threads=0, progress=progress)
        evaluations = dict(zip(models, found.models, strict=True))
    return [Contestant(name, file_bytes(path), audit(path), evaluations.get(name)) for name, path in models.items()]


def require_contest(models: Sequence[Path], reference: ModelFile) -> None:
    """Every model must be one of the reference's."""
    for model in models:
        require_reference_of(read_model_file(model), reference)
