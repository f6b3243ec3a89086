"""The quantised model against the float one, on the same images."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from ptq4vit_onnx.evaluation import metrics
from ptq4vit_onnx.graph.integer_products import Array


@dataclass(frozen=True)
class AgainstFloat:
    """The quantised model against the float one. Rates in percent; None where there are no labels."""

    images: int
    agreement: float
    kl: float
    top1_float: float | None
    top1_quantised: float | None
    drop: metrics.PairedDrop | None

    def to_data(self) -> dict[str, Any]:
        return asdict(self)


def compare_with_float(quantised: Array, reference: Array, labels: Array | None = None) -> AgainstFloat:
    """Logits [images, classes] of the quantised and of the float model on the same images."""
    accuracy: tuple[Any, ...] = (None, None, None)
    if labels is not None:
        accuracy = (
            metrics.top1(reference, labels),
            metrics.top1(quantised, labels),
            metrics.paired_drop(reference, quantised, labels),
        )
    return AgainstFloat(
        len(quantised),
        metrics.agreement(quantised, reference),
        metrics.mean_kl(reference, quantised),
        *accuracy,
    )
