"""Every kind: its sketch has the curvature it promises, and what reports ask of a kind is there."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.autograd.functional import hessian

from ptq4vit_onnx.errors import UserError
from ptq4vit_onnx.output_kinds.kinds import KINDS, OutputKind, kind_named
from ptq4vit_onnx.output_kinds.output_kind import Kept

OUTPUT = torch.tensor([0.7, -1.1, 0.4, 2.0, -0.3, 0.1], dtype=torch.float64)


def cross_entropy(output: Tensor) -> Any:
    return -(OUTPUT.softmax(-1) * output.log_softmax(-1)).sum()


def cosine_distance(output: Tensor) -> Any:
    return 1 - (OUTPUT @ output) / (OUTPUT.norm() * output.norm())


def half_relative_square_error(output: Tensor) -> Any:
    return ((output - OUTPUT) ** 2).sum() / ((OUTPUT - OUTPUT.mean()) ** 2).sum() / 2


DISTANCES: dict[str, Callable[[Tensor], Any]] = {
    "logits": cross_entropy, "embedding": cosine_distance, "features": half_relative_square_error,
}  # fmt: skip


def mean_square(kind: OutputKind, output: Tensor) -> Any:
    """E v v^T over all sign vectors, so exactly, of one image's output."""
    signs = torch.tensor(list(product((1.0, -1.0), repeat=output.numel())), dtype=torch.float64)
    directions = kind.direction(output.expand(len(signs), *output.shape), signs.reshape(-1, *output.shape)).flatten(1)
    return directions.T @ directions / len(signs)


@pytest.mark.parametrize("name", KINDS)
def test_the_sketch_has_the_curvature_of_the_kinds_own_distance(name: str) -> None:
    wanted: Any = hessian(DISTANCES[name], OUTPUT)  # type: ignore[no-untyped-call]
    torch.testing.assert_close(mean_square(KINDS[name], OUTPUT), wanted, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("shape", [(2, 3), (3, 2, 1)])
def test_features_of_any_rank_have_the_curvature_of_their_elements(shape: tuple[int, ...]) -> None:
    flat, shaped = (mean_square(KINDS["features"], output) for output in (OUTPUT, OUTPUT.reshape(shape)))
    torch.testing.assert_close(shaped, flat)


@pytest.mark.parametrize("name", ["embedding", "features"])
def test_an_output_of_zeros_gives_finite_directions(name: str) -> None:
    assert KINDS[name].direction(torch.zeros(1, 4), torch.ones(1, 4)).isfinite().all()


@pytest.mark.parametrize("name", KINDS)
def test_a_comparison_answers_all_that_reports_ask(name: str) -> None:
    kind, draw = KINDS[name], np.random.default_rng(0)
    outputs, reference = ((draw.standard_normal((12, 5)).astype(np.float32),) for _ in range(2))
    labels = np.arange(12) % 3
    kept, wanted = (Kept(kind.keep(item, reference), ("out",), labels) for item in (outputs, reference))
    versus = kind.compare(kept, wanted)
    assert (versus.kind, versus.images) == (name, 12)
    assert list(versus.readings) == list(kind.limits)
    own, others = kind.columns[: kind.own], kind.columns[kind.own :]
    assert {column.key for column in own} == set(kind.alone(kept))
    assert {column.key for column in others} <= set(versus.figures)
    assert versus.headlines[-1].number and versus.summary
    assert versus.to_data()["kind"] == name
    assert (versus.accuracy is not None) == (kind.own > 0)


def test_a_kind_that_is_none_is_refused_with_those_there_are() -> None:
    with pytest.raises(UserError, match="output-kind is 'boxes'; expected one of auto, logits, embedding, features"):
        kind_named("boxes")
