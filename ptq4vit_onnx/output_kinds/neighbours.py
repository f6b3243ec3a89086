"""Nearest neighbours by cosine: which images a model finds alike, and how often their labels tell an image's own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
NEIGHBOURS = 10  # that vote on a label, and that are held against the float model's
_AT_ONCE = 1 << 24  # cosines in memory: 64 MB


def cosines(values: Array, others: Array) -> Array:
    """Between vectors of the same place, along the last axis. Two zeros are alike; a zero is unlike all else."""
    first, second = values.astype(np.float64), others.astype(np.float64)
    lengths = np.linalg.norm(first, axis=-1) * np.linalg.norm(second, axis=-1)
    both_zero = ~first.any(-1) & ~second.any(-1)
    with np.errstate(invalid="ignore"):  # what is not finite has no angle
        found = (first * second).sum(-1) / np.where(lengths == 0, 1.0, lengths)
    return np.where(both_zero, 1.0, np.clip(found, -1.0, 1.0))  # rounding may go beyond 1


def nearest(queries: Array, gallery: Array | None = None, count: int = NEIGHBOURS) -> tuple[Array, Array]:
    """(indices, cosines), each [queries, count]: of the nearest in the gallery, nearest first; fewer if it is small.

    gallery None: the queries themselves, each without itself.
    """
    within = gallery is None
    sources = _unit(queries)
    targets = sources if gallery is None else _unit(gallery)
    count = min(count, len(targets) - within)
    parts = list(_nearest_rows(sources, targets, count, within))
    return np.concatenate([rows for rows, _ in parts]), np.concatenate([near for _, near in parts])


def _nearest_rows(sources: Array, targets: Array, count: int, within: bool) -> Iterator[tuple[Array, Array]]:
    """A few queries at a time: the cosines of 50000 images with each other would take 10 GB."""
    step = max(1, _AT_ONCE // len(targets))
    for start in range(0, len(sources), step):
        near = sources[start : start + step] @ targets.T
        if within:
            np.fill_diagonal(near[:, start:], -np.inf)
        few = np.sort(np.argpartition(-near, max(count - 1, 0), axis=1)[:, :count], axis=1)
        order = np.argsort(-np.take_along_axis(near, few, 1), axis=1, kind="stable")  # of equals the first image first
        chosen = np.take_along_axis(few, order, 1)
        yield chosen, np.take_along_axis(near, chosen, 1)


def _unit(values: Array) -> Array:
    """Vectors of length 1, or of zeros."""
    wide = values.astype(np.float64)
    lengths = np.linalg.norm(wide, axis=-1, keepdims=True)
    return (wide / np.where(lengths == 0, 1.0, lengths)).astype(np.float32)


def overlap(found: Array, wanted: Array) -> float:
    """Percent of the wanted indices [images, count] that are among those found, row by row, in any order."""
    return 100.0 * float((found[:, :, None] == wanted[:, None, :]).any(1).mean())


def votes(near: tuple[Array, Array], labels: Array) -> Array:
    """The label of each query: the majority of its neighbours'; of equal votes those with the larger sum of cosines.

    near: as `nearest` gives it. labels: of the gallery.
    """
    indices, weights = near
    known, numbers = np.unique(labels, return_inverse=True)
    share = 1 + weights / (4 * max(indices.shape[1], 1))  # all cosines of a query together weigh half a vote at most
    totals = np.zeros((len(indices), len(known)))
    np.add.at(totals, (np.arange(len(indices))[:, None], numbers[indices]), share)
    return np.asarray(known[totals.argmax(1)])
