"""Every engine that we claim, its oldest and its newest release, computes our files as the newest ONNX Runtime does.

Engines are installed into environments of their own (see the fixture `environments`); one that cannot be had here is
skipped. The newest onnxruntime-web is tests/demo's, in Node and in Chromium. benchmarks/engines.py makes the whole
table, of trained models too.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from benchmarks.engine_runs import (
    CLAIMED,
    ONNX_RUNTIMES,
    OPENVINOS,
    WEBS,
    Comparison,
    Engine,
    FailedError,
    Outcome,
    UnavailableError,
    compare,
    run,
)
from tests.engines.forms import Array, Form
from tests.engines.operator_table import TABLE
from tests.engines.signatures import Seen, fewest_forms

OLDEST, MIDDLE = Engine("onnxruntime", ONNX_RUNTIMES[0]), Engine("onnxruntime", "1.20.1")
NEWEST = Engine("onnxruntime")
OTHERS = (Engine("openvino", OPENVINOS[0]), Engine("openvino"), Engine("onnxruntime-web", WEBS[0]), Engine("onnx"))
MODELS = (
    "vit_digits W8A8 none for onnxruntime",
    "vit_digits W6A8 both for onnxruntime",
    "vit_digits W4A8 none for openvino",
    "swin_digits W6A8 both for openvino",
    "swin_digits W4A8 none for onnxruntime",
)
# Factors for each head alone, then a QuantizeLinear: OpenVINO takes them for factors of output columns.
REFUSED_BY_OPENVINO = ("vit_digits as in the paper for onnxruntime", "swin_digits as in the paper for onnxruntime")
IMAGES, FEW = 200, 32  # FEW: for the reference evaluator
# A run in WebAssembly takes seconds, most of them to start.
TRIED = [
    pytest.param(engine, model, id=f"{engine}, {model}")
    for engine in (OLDEST, MIDDLE, *OTHERS)
    for model in (MODELS if engine.package != "onnxruntime-web" else (MODELS[1], MODELS[4]))
]
Run = Callable[..., Outcome]


@pytest.fixture(scope="module")
def folder(all_forms: list[Form], float_export: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """NAME.onnx and NAME.npy of every form; digits.npy, few.npy; vit_digits.onnx and swin_digits.onnx in float."""
    from ptq4vit_onnx.images.embedded import embedded_digits

    place = tmp_path_factory.mktemp("forms")
    for form in all_forms:
        onnx.save(form.model, place / f"{form.name}.onnx")
        np.save(place / f"{form.name}.npy", form.images)
    for name in ("vit_digits", "swin_digits"):
        made = float_export(name)
        onnx.save(made.proto, place / f"{name}.onnx")
    images = embedded_digits(made.model.preprocessing, "test").images
    np.save(place / "digits.npy", images[:IMAGES])
    np.save(place / "few.npy", images[:FEW])
    return place


@pytest.fixture(scope="module")
def outcome(folder: Path, environments: Path) -> Run:
    """(engine, model, images) -> what it computes; a skip where the engine cannot be had."""

    @cache
    def call(engine: Engine, model: str, images: str, as_written: bool = False) -> Outcome:
        try:
            return run(engine, folder / f"{model}.onnx", folder / f"{images}.npy", environments, as_written)
        except UnavailableError as error:
            pytest.skip(str(error))

    return call


@pytest.mark.parametrize(("engine", "model"), TRIED)
def test_an_engine_predicts_what_the_newest_runtime_does(engine: Engine, model: str, outcome: Run) -> None:
    found = outcome(engine, model, "few" if engine.package == "onnx" else "digits")
    newest, floats = outcome(NEWEST, model, "digits"), outcome(NEWEST, model.partition(" ")[0], "digits")
    assert compare(found.outputs, newest.outputs, floats.outputs).broken == []
    if engine.package.startswith("onnxruntime"):
        assert found.integers == found.products == newest.products > 0


@pytest.fixture(scope="module")
def with_every_operator(seen: Seen) -> list[str]:
    """A few forms that use all rows of the table of operators."""
    used = seen.rows
    chosen = fewest_forms({name: rows for name, rows in used.items() if name not in REFUSED_BY_OPENVINO})
    assert set().union(*(used[name] for name in chosen)) == set(TABLE)
    return chosen


@pytest.mark.parametrize("engine", [OLDEST, *OTHERS[:-1]], ids=str)
def test_an_engine_has_a_kernel_for_every_operator_and_type(
    engine: Engine, with_every_operator: list[str], outcome: Run
) -> None:
    """ONNX Runtime without its optimiser, which would replace operators by others."""
    for name in with_every_operator:
        found = outcome(engine, name, name, as_written=engine.package == "onnxruntime")
        assert len(found.outputs) and np.isfinite(found.outputs).all(), name


@pytest.mark.parametrize("model", REFUSED_BY_OPENVINO)
def test_what_openvino_refuses_it_runs_in_the_form_that_is_for_it(model: str, outcome: Run) -> None:
    newest = Engine("openvino")
    with pytest.raises(FailedError, match=r"any_of\(scale\.size\(\), OC"):
        outcome(newest, model, "digits")
    own = model.replace("for onnxruntime", "for openvino")
    floats = outcome(NEWEST, model.partition(" ")[0], "digits")
    assert (
        compare(outcome(newest, own, "digits").outputs, outcome(NEWEST, own, "digits").outputs, floats.outputs).broken
        == []
    )


def test_a_file_that_no_engine_can_load_says_so(folder: Path, environments: Path) -> None:
    unknown = (
        '<ir_version: 9, opset_import: ["" : 20, "ours" : 1]> g (float[n,4] x) => (float[n,4] y) { y = ours.No (x) }'
    )
    onnx.save(onnx.parser.parse_model(unknown), folder / "unknown.onnx")
    with pytest.raises(FailedError, match=r"ours\S*No"):
        run(NEWEST, folder / "unknown.onnx", folder / "few.npy", environments)


def logits(*classes: int) -> Array:
    return np.eye(4, dtype=np.float32)[list(classes)]


def test_predictions_that_differ_too_often_break_a_limit() -> None:
    newest = logits(*[0] * 200)
    for changed, broken in ((4, False), (5, True)):
        outputs = logits(*[1] * changed, *[0] * (200 - changed))
        found = compare(outputs, newest, newest + 0.1 * outputs)
        assert found.agreement == pytest.approx(100 - changed / 2)
        assert any("predictions" in line for line in found.broken) == broken


def test_a_larger_distance_from_float_breaks_a_limit() -> None:
    assert Comparison(200, 50.0, 100.0, 1.09, 1.0).broken == []
    (line,) = Comparison(200, 50.0, 100.0, 1.11, 1.0).broken
    assert line.startswith("KL is 1.11")
    assert Comparison(200, 50.0, 100.0, float("nan"), 1.0).broken != []


def test_engines_in_the_tests_are_claimed() -> None:
    assert {OLDEST, MIDDLE, *OTHERS} <= set(CLAIMED)
