"""How well predictions hold up, from logits [images, classes]. Rates are in percent, KL in nats."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def predictions(logits: Array) -> Array:
    """The predicted class of every image; of equal logits the first counts."""
    return np.asarray(np.argmax(logits, axis=-1))


def top1(logits: Array, labels: Array) -> float:
    return percent(predictions(logits) == _labels(labels, logits))


def top5(logits: Array, labels: Array) -> float:
    """How often the label is among the five largest logits (or among all, with fewer classes than five)."""
    count = min(5, logits.shape[-1])
    best = np.argsort(-logits, axis=-1, kind="stable")[:, :count]
    return percent((best == _labels(labels, logits)[:, None]).any(axis=-1))


def agreement(logits: Array, reference: Array) -> float:
    """How often both predict the same class."""
    _same_shape(logits, reference)
    return percent(predictions(logits) == predictions(reference))


def mean_kl(reference: Array, logits: Array) -> float:
    """Mean over images of KL(softmax(reference) || softmax(logits)): zero for equal ones, never negative."""
    _same_shape(logits, reference)
    log_p, log_q = log_softmax(reference), log_softmax(logits)
    divergence = (np.exp(log_p) * (log_p - log_q)).sum(axis=-1)
    return float(np.maximum(divergence, 0.0).mean())


@dataclass(frozen=True)
class PairedDrop:
    """Loss of accuracy on the same images.

    Attributes:
        points: In points of accuracy; negative where the second model is better.
        standard_error: Of `points`, from `lost` and `gained` alone: images that both models get right or wrong carry no
            noise.
        lost: Images that only the first model gets right.
        gained: Images that only the second model gets right.
        images: How many were measured on.
    """

    points: float
    standard_error: float
    lost: int
    gained: int
    images: int

    def to_data(self) -> dict[str, Any]:
        return asdict(self)


def paired_drop(reference: Array, logits: Array, labels: Array) -> PairedDrop:
    """What replacing `reference` by `logits` costs, in points of top-1."""
    _same_shape(logits, reference)
    wanted = _labels(labels, logits)
    return drop_of(predictions(reference) == wanted, predictions(logits) == wanted)


def drop_of(before: Array, after: Array) -> PairedDrop:
    """Of two models that are right or wrong on the same images: booleans [images] each."""
    change = before.astype(int) - after
    count = len(change)
    error = float(change.std(ddof=1)) / count**0.5 if count > 1 else 0.0
    lost, gained = int((change > 0).sum()), int((change < 0).sum())
    return PairedDrop(100.0 * (lost - gained) / count, 100.0 * error, lost, gained, count)


def relative_error(values: Array, reference: Array) -> float:
    """Root mean square error over the reference's spread (standard deviation); 0 only for equal arrays.

    A reference without spread (all logits equal) is compared with its own magnitude instead.
    """
    _same_shape(values, reference)
    wanted = reference.astype(np.float64)
    error = float(np.sqrt(np.mean((values.astype(np.float64) - wanted) ** 2)))
    if error == 0.0:
        return 0.0
    spread = float(wanted.std()) or float(np.abs(wanted).max())
    return error / spread if spread else float("inf")


def log_softmax(logits: Array) -> Array:
    """In float64, so that the KL of nearly equal predictions does not drown in rounding."""
    wide = logits.astype(np.float64)
    shifted = wide - wide.max(axis=-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)))


def percent(hits: Array) -> float:
    return 100.0 * float(np.mean(hits))


def _labels(labels: Array, logits: Array) -> Array:
    wanted = np.asarray(labels)
    if wanted.shape != (len(logits),):
        raise ValueError(f"labels have shape {wanted.shape}, expected ({len(logits)},)")
    return wanted


def _same_shape(first: Array, second: Array) -> None:
    if first.shape != second.shape:
        raise ValueError(f"cannot compare outputs of shape {first.shape} with {second.shape}")
