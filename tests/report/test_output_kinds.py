"""The report of embeddings and features: their own tiles, rows and words, and no word of classes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from ptq4vit_onnx.output_kinds.embedding import EmbeddingAgainstFloat
from ptq4vit_onnx.output_kinds.features import Closeness, FeaturesAgainstFloat
from ptq4vit_onnx.output_kinds.kinds import KINDS
from ptq4vit_onnx.output_kinds.metrics import PairedDrop
from ptq4vit_onnx.report.data import Output
from ptq4vit_onnx.report.page import render, tiles
from ptq4vit_onnx.report.terminal import rows
from ptq4vit_onnx.runtime.bench import BenchResult, Timing

if TYPE_CHECKING:
    from tests.report.conftest import MadeUp

PART = Closeness(0.9912, 0.93, 0.061, 0.4)
VERSUS: dict[str, Any] = {
    "embedding": EmbeddingAgainstFloat(500, 0.9961, 0.981, 91.2, 88.0, 74.1, 73.9, PairedDrop(0.2, 0.1, 2, 1, 500)),
    "features": FeaturesAgainstFloat(64, PART, {"tokens": PART, "map": replace(PART, cosine=0.9871)}),
}
TIMINGS = tuple(Timing(name, 1, 1, 4.0, 3.9, 4.1, 10, 1.0) for name in ("float", "model"))


def report_of(made_up: MadeUp, kind: str, **inputs: Any) -> Any:
    report = made_up.report
    return replace(
        report,
        inputs=replace(report.inputs, output=Output(KINDS[kind], tuple(inputs.pop("outputs", (kind,)))), **inputs),
        proof=replace(report.proof, against_float=VERSUS[kind]),
        latency=BenchResult(TIMINGS, "AVX2"),
    )


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("embedding", {"k-NN accuracy": "73.9 %", "Nearest kept": "91.2 %", "Cosine to float": "0.9961"}),
        ("features", {"Relative error": "0.061", "Cosine to float": "0.9912"}),
    ],
)
def test_the_tiles_are_those_of_the_kind(kind: str, expected: dict[str, str], made_up: MadeUp) -> None:
    found = {tile.what: tile.number for tile in tiles(report_of(made_up, kind))}
    assert list(found.items())[: len(expected)] == list(expected.items())
    assert "Agreement with float" not in found and "Top-1" not in found


@pytest.mark.parametrize("kind", VERSUS)
def test_no_word_of_classes_is_left(kind: str, made_up: MadeUp) -> None:
    report = report_of(made_up, kind)
    text = " ".join(f"{title} {said}" for title, said in rows(report)) + render(report)
    assert not [word for word in ("logit", "top-1", "nats", "KL ") if word in text]
    assert KINDS[kind].distance in render(report)


def test_the_terminal_says_what_the_model_returns_and_how_near_it_is(made_up: MadeUp) -> None:
    said = dict(rows(report_of(made_up, "features", outputs=("tokens", "map"))))
    assert said["output"] == "features: tokens, map"
    assert said["against float"].startswith(
        "cosine 0.9912, worst token 0.9300, relative error 0.061 (tokens 0.9912, map 0.9871), on 500 images"
    )
    said = dict(rows(report_of(made_up, "embedding")))
    assert said["against float"].startswith("cosine 0.9961, worst 0.9810, nearest neighbour kept for 91.2 %, on ")
    assert said["k-NN accuracy"].startswith("73.9 % (float 74.1 %), on ")


def test_random_weights_say_nothing_about_accuracy_in_any_kind(made_up: MadeUp) -> None:
    for kind in VERSUS:
        report = report_of(made_up, kind, weights_from="random")
        assert "random weights: says nothing about accuracy" in dict(rows(report))["against float"]
        notes = [tile.note for tile in tiles(report) if tile.what == "Cosine to float"]
        assert [note.endswith("random weights: says nothing about accuracy") for note in notes] == [True]


@pytest.mark.parametrize(
    ("kind", "keys"),
    [
        ("embedding", {"cosine", "worst_cosine", "agreement", "neighbours", "knn_float", "knn_quantised", "drop"}),
        ("features", {"cosine", "worst_cosine", "relative_error", "worst_relative_error", "outputs"}),
    ],
)
def test_report_json_has_the_keys_of_the_kind(kind: str, keys: set[str], made_up: MadeUp) -> None:
    data = report_of(made_up, kind).to_data()
    assert data["output"]["kind"] == data["against_float"]["kind"] == kind
    assert set(data["against_float"]) == keys | {"kind", "images"}
