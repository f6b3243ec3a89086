"""The peer to compare with: ONNX Runtime's own `quantize_static`, from the same float file and images."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ptq4vit_onnx.errors import UserError
from ptq4vit_onnx.runtime import Array, session, static_batch


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
    with _quiet():
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


@contextmanager
def _quiet() -> Iterator[None]:
    """quantize_static logs advice on the root logger; it is not this tool's user who could follow it."""
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
