"""Nearest neighbours, on vectors whose angles can be seen."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ptq4vit_onnx.output_kinds import neighbours
from ptq4vit_onnx.output_kinds.neighbours import cosines, nearest, overlap, votes


def at(*degrees: float) -> Any:
    angles = np.radians(degrees)
    return np.stack([np.cos(angles), np.sin(angles)], -1).astype(np.float32)


def test_an_image_is_not_its_own_neighbour_and_length_does_not_count() -> None:
    found, near = nearest(at(0, 10, 30, 90) * np.array([[1], [5], [0.1], [9]]), count=2)
    assert found.tolist() == [[1, 2], [0, 2], [1, 0], [2, 1]]
    np.testing.assert_allclose(near[0], np.cos(np.radians([10, 30])), rtol=1e-6)


def test_a_gallery_is_looked_up_instead_of_the_images() -> None:
    assert nearest(at(0, 80), at(70, 1, 100), count=1)[0].tolist() == [[1], [0]]


def test_a_small_set_has_fewer_neighbours_and_a_single_image_none() -> None:
    assert nearest(at(0, 1, 2))[0].shape == (3, 2)
    assert nearest(at(0))[0].shape == (1, 0)


def test_rows_at_a_time_find_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(0).standard_normal((40, 6))
    whole = nearest(values)
    monkeypatch.setattr(neighbours, "_AT_ONCE", 3 * 40)
    parts = nearest(values)
    assert np.array_equal(whole[0], parts[0])
    exact = values @ values.T / np.outer(*[np.linalg.norm(values, axis=1)] * 2)
    np.fill_diagonal(exact, -1)
    assert np.array_equal(whole[0], np.argsort(-exact, 1)[:, :10])


def test_zeros_are_alike_and_unlike_all_else() -> None:
    assert cosines(np.zeros((2, 3)), np.array([[0, 0, 0], [1, 0, 0]])).tolist() == [1, 0]


def test_the_overlap_does_not_ask_for_the_order() -> None:
    assert overlap(np.array([[1, 2], [3, 4]]), np.array([[2, 1], [3, 5]])) == 75


def test_the_majority_decides_and_equal_votes_go_to_the_nearer() -> None:
    indices, near = np.array([[0, 1, 2], [0, 1, 3]]), np.array([[0.9, 0.5, 0.4], [0.9, 0.2, 0.1]])
    assert votes((indices, near), np.array([7, 3, 3, 7])).tolist() == [3, 7]
    assert votes((indices[:, :2], near[:, :2]), np.array([7, 3, 3, 7])).tolist() == [7, 7]
