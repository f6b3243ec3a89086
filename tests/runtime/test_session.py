"""Sessions, inference over batches, the optimised graph."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from ptq4vit_onnx.errors import UserError
from ptq4vit_onnx.graph import model_proto
from ptq4vit_onnx.graph.model_proto import load
from ptq4vit_onnx.runtime import session as runtime

Array = np.ndarray[Any, Any]


def test_run_gives_the_same_for_path_bytes_proto_and_session(
    linear: Callable[..., Any], vectors: Array, tmp_path: Path
) -> None:
    model = linear().model
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    sources = [path, model, model.SerializeToString(), runtime.session(path)]
    outputs = [runtime.run(source, vectors) for source in sources]
    assert all(np.array_equal(output, outputs[0]) for output in outputs)


def test_run_cuts_images_into_batches(linear: Callable[..., Any], vectors: Array) -> None:
    images = np.concatenate([vectors, vectors * 0.5, vectors[:1]])
    outputs = runtime.run(linear().model, images, batch=2)
    assert np.array_equal(outputs, runtime.run(linear().model, images, batch=5))


def test_run_fills_the_last_batch_of_a_static_model_and_cuts_it_off(linear: Callable[..., Any], vectors: Array) -> None:
    images = np.concatenate([vectors, vectors[:1] * 0.5])
    outputs = runtime.run(linear(batch=2).model, images, batch=7)
    assert np.array_equal(outputs, runtime.run(linear().model, images))


def test_images_of_another_size_are_refused_in_one_line(linear: Callable[..., Any]) -> None:
    with pytest.raises(UserError, match=r"input 'image' is \['batch', 5, 16\], got images of \[1, 5, 17\]"):
        runtime.run(linear().model, np.zeros((1, 5, 17), np.float32))


def test_no_images_are_refused(linear: Callable[..., Any]) -> None:
    with pytest.raises(UserError, match="no images"):
        runtime.run(linear().model, np.zeros((0, 5, 16), np.float32))


def small_model(path: Path, body: str, inputs: str = "float[n,4] x", output: str = "y") -> Path:
    """A graph written as text, for what no export makes."""
    text = f'<ir_version: 8, opset_import: ["" : 17]> g ({inputs}) => (float[m,k] {output}) {{ {body} }}'
    onnx.save(onnx.parser.parse_model(text), path)
    return path


FAILS = "shape = Constant <value = int64[2] {3, 5}> () y = Reshape (x, shape)"


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ({"body": FAILS}, "ONNX Runtime cannot run .*m.onnx: .*Reshape"),
        (
            {"body": "y = Add (x, z)", "inputs": "float[n,4] x, float[n,4] z"},
            r"m.onnx has 2 inputs \(x tensor\(float\), z",
        ),
        ({"body": "y = Cast <to = 1> (x)", "inputs": "int64[n,4] x"}, r"1 inputs \(x tensor\(int64\)\); expected one"),
        ({"body": "y = Constant <value = float[1,1] {0.0}> ()", "inputs": ""}, r"m.onnx has 0 inputs \(none\)"),
        ({"body": "y = Concat <axis = 0> (x, x)"}, r"m.onnx returns \[6, 4\] for 3 images; expected one row for each"),
    ],
    ids=["fails", "two inputs", "whole numbers", "no input", "rows"],
)
def test_a_model_that_loads_and_cannot_be_run_on_images_is_refused(
    model: dict[str, str], said: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=said) as caught:
        runtime.run(small_model(tmp_path / "m.onnx", **model), np.zeros((3, 4), np.float32))
    assert "\n" not in str(caught.value)


def test_a_missing_model_and_a_broken_one_are_refused(tmp_path: Path) -> None:
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"not a model")
    with pytest.raises(UserError, match=r"cannot read model .*: No such file"):
        runtime.session(tmp_path / "absent.onnx")
    with pytest.raises(UserError, match="ONNX Runtime cannot load"):
        runtime.session(broken)
    with pytest.raises(UserError, match="is not an ONNX file"):
        load(broken)


def test_optimised_model_is_the_graph_with_fused_kernels_and_computes_the_same(
    linear: Callable[..., Any], vectors: Array
) -> None:
    model = linear().model
    optimised = runtime.optimised_model(model)
    assert [node.op_type for node in optimised.graph.node].count("MatMulIntegerToFloat") == 1
    as_it_is = runtime.session(optimised, optimise=False).run(None, {"image": vectors})[0]
    assert np.array_equal(as_it_is, runtime.run(model, vectors))


def test_a_large_model_keeps_its_weights_through_optimisation(
    linear: Callable[..., Any], vectors: Array, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = linear().model
    expected = runtime.run(model, vectors)
    monkeypatch.setattr(model_proto, "PROTOBUF_LIMIT", 10)  # so that every model is too large for one message
    optimised = runtime.optimised_model(model)
    assert np.array_equal(runtime.run(optimised, vectors), expected)
