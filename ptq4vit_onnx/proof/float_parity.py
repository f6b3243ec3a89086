"""The float file against the torch model it was exported from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ptq4vit_onnx.errors import ParityError, UserError
from ptq4vit_onnx.model_loading.load import LoadedModel

Array = np.ndarray[Any, Any]
FLOAT_TOLERANCE = 1e-4  # of an output's largest magnitude: float32 rounding through a deep network stays far below


@dataclass(frozen=True)
class FloatParity:
    """ONNX Runtime against torch, both float: largest difference of an output over its largest magnitude, of the
    output that differs most."""

    images: int
    error: float
    tolerance: float = FLOAT_TOLERANCE

    @property
    def passed(self) -> bool:
        return self.error <= self.tolerance


def float_parity(model: LoadedModel, path: Path, images: Array, count: int = 8) -> FloatParity:
    """ONNX Runtime against torch on the first images; raises ParityError beyond the tolerance."""
    from ptq4vit_onnx.runtime.session import run_all
    from ptq4vit_onnx.simulation.fake import simulate_all

    chosen = images[:count]
    expected = simulate_all(model.module, None, chosen, batch=4)
    _require_finite(model, expected, "it")
    got = run_all(path, chosen, batch=4, threads=0)
    _require_finite(model, got, "its float file")
    parity = FloatParity(len(chosen), max(_error(*pair) for pair in zip(got, expected, strict=True)))
    if not parity.passed:
        raise ParityError(
            f"the float ONNX model differs from torch by {parity.error:.2g} of the {model.kind.plural}' scale on "
            f"{parity.images} images (limit {parity.tolerance:g})"
        )
    return parity


def _require_finite(model: LoadedModel, outputs: Sequence[Array], what: str) -> None:
    for name, output in zip(model.outputs, outputs, strict=True):
        if not np.isfinite(output).all():
            raise UserError(
                f"cannot quantise {model.name}: {what} returns {name} that are not finite on the calibration images; "
                "are its weights and its preprocessing right?"
            )


def _error(got: Array, expected: Array) -> float:
    return float(np.abs(got - expected).max() / max(np.abs(expected).max(), 1e-12))
