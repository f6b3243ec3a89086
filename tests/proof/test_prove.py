"""The proof, for models of every output kind: all of their outputs, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from torch import nn

from ptq4vit_onnx.errors import ParityError
from ptq4vit_onnx.output_kinds.kinds import KINDS
from ptq4vit_onnx.progress import silent
from ptq4vit_onnx.proof.float_parity import float_parity
from ptq4vit_onnx.proof.prove import prove
from ptq4vit_onnx.runtime.session import run_all


def proved(made: Any) -> Any:
    float_path, path = made.files
    return prove(path, float_path, made.plan, made.model, made.chosen, silent)


@pytest.mark.parametrize("kind", KINDS)
def test_all_outputs_are_the_simulators_bit_for_bit(kind: str, small_export: Callable[[str], Any]) -> None:
    proof = proved(small_export(kind))
    assert proof.end_to_end.identical == 100
    assert proof.end_to_end.kind == proof.against_float.kind == kind
    assert (proof.end_to_end.agreement is None) == (kind != "logits")


@pytest.mark.parametrize("kind", KINDS)
def test_what_quantisation_cost_is_measured_batch_by_batch_as_on_all_images(
    kind: str, small_export: Callable[[str], Any]
) -> None:
    made = small_export(kind)
    proof, pixels = proved(made), made.chosen.measured.images
    wanted, outputs = (run_all(path, pixels) for path in made.files)
    whole = made.model.kind.keep(outputs, wanted)
    assert proof.against_float.images == len(pixels) == 16
    if kind == "features":
        assert proof.against_float.together.worst_cosine == pytest.approx(whole[..., 1].min())
        assert list(proof.against_float.outputs) == ["tokens", "map"]
    elif kind == "embedding":
        cosine = (outputs[0] * wanted[0]).sum(1) / np.prod([np.linalg.norm(v[0], axis=1) for v in (outputs, wanted)], 0)
        assert proof.against_float.cosine == pytest.approx(cosine.mean(), rel=1e-6)
        assert proof.against_float.knn_float is not None
    else:
        assert proof.against_float.agreement == 100 * np.mean(outputs[0].argmax(1) == wanted[0].argmax(1))


def test_of_random_weights_no_accuracy_is_reported(small_export: Callable[[str], Any]) -> None:
    made = small_export("embedding")
    proof = proved(replace(made, model=replace(made.model, origin="random")))
    assert proof.against_float.knn_float is None and proof.against_float.cosine > 0.9


class _SecondIsOff(nn.Module):
    """Another second output than the file's."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Any) -> Any:
        tokens, places = self.inner(x)
        return tokens, places * 1.001


def test_float_parity_looks_at_every_output(small_export: Callable[[str], Any]) -> None:
    made = small_export("features")
    images = made.chosen.calibration.images
    assert float_parity(made.model, made.files[0], images).passed
    with pytest.raises(ParityError, match=r"by 0\.001 of the features' scale on 8 images"):
        float_parity(replace(made.model, module=_SecondIsOff(made.model.module)), made.files[0], images)
