"""Embeddings: angles and neighbours, counted by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ptq4vit_onnx.output_kinds.kinds import Embedding
from ptq4vit_onnx.output_kinds.output_kind import Gallery, Kept


def kept(*degrees: float, labels: Any = None, gallery: Gallery | None = None) -> Kept:
    return Kept(at(*degrees), ("embedding",), None if labels is None else np.asarray(labels), gallery)


def at(*degrees: float) -> Any:
    angles = np.radians(degrees)
    return np.stack([np.cos(angles), np.sin(angles)], -1)


def test_cosines_are_the_mean_and_the_worst() -> None:
    found = Embedding().compare(kept(0, 70, 180), kept(0, 10, 180))
    assert found.worst_cosine == pytest.approx(0.5)
    assert found.cosine == pytest.approx(2.5 / 3)
    assert (found.knn_float, found.knn_quantised, found.drop) == (None, None, None)


def test_the_length_of_an_embedding_does_not_count() -> None:
    reference = kept(0, 50)
    assert Embedding().compare(Kept(3 * reference.values, ("e",)), reference).worst_cosine == pytest.approx(1)


def test_agreement_counts_images_that_keep_their_nearest() -> None:
    found = Embedding().compare(kept(0, 10, 30, 42), kept(0, 10, 21, 40))  # the third comes near to the fourth
    assert found.agreement == 75
    assert found.neighbours == 100, "of four images the three others are always the nearest"


def test_neighbours_vote_on_labels_and_the_loss_is_paired() -> None:
    labels = [0] * 6 + [1] * 6
    apart = [0, 1, 2, 3, 4, 5, 90, 91, 92, 93, 94, 95]
    right = Embedding().compare(*[kept(*apart, labels=labels)] * 2)
    # ten of eleven others vote: five of the own class, and five of the six others
    assert (right.knn_float, right.knn_quantised) == (100, 100)
    astray: Any = Embedding().compare(kept(92.5, *apart[1:], labels=labels), kept(*apart, labels=labels))
    assert astray.knn_quantised < 100 == astray.knn_float
    assert astray.drop is not None and astray.drop.points == pytest.approx(100 - astray.knn_quantised)


def test_a_gallery_tells_the_labels_of_other_images() -> None:
    gallery = Gallery(at(0, 90), np.array([4, 9]))
    query = kept(10, 80, 20, labels=[4, 9, 9], gallery=gallery)
    assert Embedding().alone(query) == {"knn": pytest.approx(200 / 3)}


def test_a_single_image_has_a_cosine_and_no_neighbours() -> None:
    found = Embedding().compare(kept(10, labels=[0]), kept(0, labels=[0]))
    assert (found.agreement, found.neighbours, found.knn_float) == (None, None, None)
    assert found.readings["min_agreement"].value is None
    assert [tile.what for tile in found.headlines] == ["Cosine to float"]
