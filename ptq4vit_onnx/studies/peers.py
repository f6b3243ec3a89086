"""Models next to ONNX Runtime's own `quantize_static`, from the same float file and images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ptq4vit_onnx.errors import UserError
from ptq4vit_onnx.evaluation.evaluate import Evaluation, evaluate_files
from ptq4vit_onnx.graph.model_file import ModelFile, read_model_file, require_reference_of
from ptq4vit_onnx.graph.model_proto import Array, file_bytes
from ptq4vit_onnx.images.builtin import built_in_photos
from ptq4vit_onnx.images.embedded import embedded_digits
from ptq4vit_onnx.images.loading import ImageSet, load_images
from ptq4vit_onnx.images.stream import ImageSource
from ptq4vit_onnx.output_kinds.kinds import KINDS, OutputKind
from ptq4vit_onnx.progress import Progress
from ptq4vit_onnx.proof.kernels import KernelAudit
from ptq4vit_onnx.proof.openvino_kernels import audit_in
from ptq4vit_onnx.runtime.engines import EngineName, in_engines
from ptq4vit_onnx.runtime.quiet import quiet_logging
from ptq4vit_onnx.runtime.session import session, static_batch


@dataclass(frozen=True)
class StaticSettings:
    """Settings of quantize_static. The defaults are its own, in QDQ form: u8 x s8, minmax, all operators."""

    weights: Literal["u8", "s8"] = "s8"
    calibration: Literal["minmax", "entropy", "percentile"] = "minmax"
    per_channel: bool = False
    operators: tuple[str, ...] = ()  # empty: all that it knows


_PRODUCTS_ONLY = ("MatMul", "Gemm", "Conv")
# The best of seven settings tried on ViT-T and on DeiT-T; neither is best on both.
PEERS: dict[str, StaticSettings] = {
    "ort-static": StaticSettings(),
    "ort-static-minmax": StaticSettings(weights="u8", per_channel=True, operators=_PRODUCTS_ONLY),
    "ort-static-percentile": StaticSettings(weights="u8", calibration="percentile", operators=_PRODUCTS_ONLY),
}


def quantize_static_peer(
    float_path: Path, images: Array, out_path: Path, settings: StaticSettings | None = None, **changes: Any
) -> Path:
    """Write quantize_static's model of `float_path`, calibrated on `images` [n, C, H, W], to `out_path`.

    settings: see PEERS; single fields may be given by name, e.g. `per_channel=True`.
    """
    from onnxruntime import quantization  # slow to import

    chosen = replace(settings or StaticSettings(), **changes)
    kinds = {"u8": quantization.QuantType.QUInt8, "s8": quantization.QuantType.QInt8}
    with quiet_logging():  # its advice on the root logger is not for our user
        quantization.quantize_static(
            str(float_path),
            str(out_path),
            _reader(float_path, images, quantization.CalibrationDataReader),
            quant_format=quantization.QuantFormat.QDQ,
            op_types_to_quantize=list(chosen.operators) or None,
            per_channel=chosen.per_channel,
            activation_type=kinds["u8"],
            weight_type=kinds[chosen.weights],
            calibrate_method=_method(quantization, chosen.calibration),
        )
    return out_path


def _method(quantization: Any, name: str) -> Any:
    methods = {"minmax": "MinMax", "entropy": "Entropy", "percentile": "Percentile"}
    if name not in methods:
        raise UserError(f"no calibration method {name!r} in quantize_static; there are {', '.join(methods)}")
    return getattr(quantization.CalibrationMethod, methods[name])


def _reader(float_path: Path, images: Array, base: Any) -> Any:
    """quantize_static's way of being handed images: one batch per call, then None."""
    runner = session(float_path)
    size = static_batch(runner) or 1
    name = runner.get_inputs()[0].name
    whole = len(images) // size * size
    if whole == 0:
        raise UserError(f"{float_path} has a fixed batch of {size}, got only {len(images)} images")
    batches = iter(np.split(images[:whole], whole // size))

    class Reader(base):  # type: ignore[misc]
        def get_next(self) -> dict[str, Array] | None:
            part = next(batches, None)
            return None if part is None else {name: part}

    return Reader()


CALIBRATION_IMAGES = 32  # as many as an export uses by default


@dataclass(frozen=True)
class JudgedModel:
    """What is known of a model besides its speed. evaluation: None without images to judge it on. kind: of what
    it returns."""

    name: str
    bytes: int
    kernels: KernelAudit
    evaluation: Evaluation | None
    kind: OutputKind = KINDS["logits"]

    def to_data(self) -> dict[str, Any]:
        judged = {} if self.evaluation is None else self.evaluation.to_data()
        names = ("images", *(column.key for column in self.kind.columns))
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
    """What peers are calibrated on: the user's images, the embedded calibration split, or built-in photos."""
    if source.data is not None:
        return load_images(source.data, model.preprocessing, CALIBRATION_IMAGES, source.seed, where=source.where)
    if model.embedded:
        return embedded_digits(model.preprocessing, "calibration", CALIBRATION_IMAGES, source.seed)
    return built_in_photos(model.preprocessing, "calibration", CALIBRATION_IMAGES, source.seed)


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
    models: Mapping[str, Path],
    reference: ModelFile,
    source: ImageSource | None,
    progress: Progress,
    engines: Sequence[EngineName] = ("onnxruntime",),
) -> list[JudgedModel]:
    """Size, kernels and, on the images of `source`, accuracy and agreement with the float reference in the same engine.

    Peers do not carry the metadata on: all prepare images as the reference does.
    """
    entrants = in_engines(models, engines)
    evaluations: dict[str, Evaluation] = {}
    for engine in engines if source is not None else ():
        chosen = {name: item.path for name, item in entrants.items() if item.engine == engine}
        if not chosen or source is None:
            continue
        files = [replace(reference, path=path) for path in chosen.values()]
        found = evaluate_files(files, source, reference, threads=0, progress=progress, engine=engine)
        evaluations.update(zip(chosen, found.models, strict=True))
    return [
        JudgedModel(
            name, file_bytes(item.path), audit_in(item.engine, item.path), evaluations.get(name), reference.kind
        )
        for name, item in entrants.items()
    ]


def require_same_model(models: Sequence[Path], reference: ModelFile) -> None:
    """Every model must be one of the reference's."""
    for model in models:
        require_reference_of(read_model_file(model, reference), reference)
