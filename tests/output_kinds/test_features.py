"""Features: each token against the float model's, image by image and output by output."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ptq4vit_onnx.output_kinds.features import tokens
from ptq4vit_onnx.output_kinds.kinds import Features
from ptq4vit_onnx.output_kinds.output_kind import Kept


def draw(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def compared(outputs: tuple[Any, ...], reference: tuple[Any, ...], step: int = 2) -> Any:
    """As `prove` does: a few images at a time."""
    kind, names = Features(), tuple(f"out{number}" for number in range(len(outputs)))
    parts = [slice(start, start + step) for start in range(0, len(outputs[0]), step)]
    values = [kind.keep(tuple(o[part] for o in outputs), tuple(r[part] for r in reference)) for part in parts]
    return kind.compare(Kept(np.concatenate(values), names), Kept(np.concatenate(values), names))


@pytest.mark.parametrize(
    ("shape", "expected"),
    [((2, 5), (2, 1, 5)), ((2, 7, 5), (2, 7, 5)), ((2, 5, 3, 4), (2, 12, 5)), ((2, 3, 3, 5), (2, 9, 5)),
     ((2, 4, 4, 4), (2, 16, 4))],
)  # fmt: skip
def test_tokens_lie_where_their_channels_do_not(shape: tuple[int, ...], expected: tuple[int, ...]) -> None:
    assert tokens(draw(*shape)).shape == expected


def test_a_place_of_a_map_has_its_channels_together() -> None:
    values = draw(2, 5, 3, 4)
    assert np.array_equal(tokens(values)[1, 6], values[1, :, 1, 2])


def test_the_worst_token_is_found_in_any_image_and_any_output() -> None:
    wanted = draw(5, 4, 8), draw(5, 8, 2, 2, seed=1)
    outputs = wanted[0].copy(), wanted[1].copy()
    outputs[1][3, :, 1, 0] *= -1
    found = compared(outputs, wanted)
    assert found.images == 5
    assert found.outputs["out0"].worst_cosine == pytest.approx(1)
    assert found.outputs["out1"].worst_cosine == found.together.worst_cosine == pytest.approx(-1)
    assert found.together.worst_relative_error == pytest.approx(2)
    assert found.outputs["out1"].cosine == pytest.approx(1 - 2 / 20)  # one of 20 places
    assert found.together.cosine == pytest.approx(1 - 1 / 20), "both outputs count alike"
    assert "of output out1" in found.readings["min_worst_cosine"].sentence


def test_the_relative_error_is_that_of_each_tokens_length() -> None:
    wanted = draw(3, 4, 8) * np.array([[[1], [10], [100], [1000]]])
    found = compared((wanted * 1.01,), (wanted,)).together
    assert found.relative_error == pytest.approx(0.01)
    assert found.cosine == pytest.approx(1)


def test_a_token_of_zeros_gives_no_infinite_error() -> None:
    wanted = draw(2, 3, 4)
    wanted[0, 0] = 0
    assert compared((wanted,), (wanted,)).together.worst_relative_error == 0
    moved = wanted + np.float32(0.01)
    assert np.isfinite(compared((moved,), (wanted,)).together.worst_relative_error)


def test_an_image_that_is_not_finite_is_kept_as_such() -> None:
    wanted = draw(3, 4, 8)
    broken = wanted.copy()
    broken[1, 2, 3] = np.inf
    kept = Features().keep((broken,), (wanted,))
    assert np.isfinite(kept).all((1, 2)).tolist() == [True, False, True]


def test_labels_say_nothing_of_features() -> None:
    assert compared((draw(3, 4, 8),), (draw(3, 4, 8),)).accuracy is None
