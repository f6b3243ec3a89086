"""Models in OpenVINO answer as they do in ONNX Runtime, and what cannot run there is one line."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from ptq4vit_onnx.errors import UserError
from ptq4vit_onnx.runtime.bench import bench, profile
from ptq4vit_onnx.runtime.engines import Opened, in_engines, open_model
from ptq4vit_onnx.runtime.quiet import quiet_standard_error
from ptq4vit_onnx.runtime.session import execute, run, static_batch

needs_openvino = pytest.mark.skipif(not importlib.util.find_spec("openvino"), reason="openvino is not installed")


def small_model(path: Path, body: str, inputs: str = "float[n,4] x", domain: str = "") -> Path:
    text = f'<ir_version: 8, opset_import: ["" : 17, "{domain or "ai.onnx.ml"}" : 1]> g ({inputs}) => (float[m,k] y)'
    onnx.save(onnx.parser.parse_model(f"{text} {{ {body} }}"), path)
    return path


@needs_openvino
def test_the_float_file_computes_the_same_in_both_engines(exported: Path, digits: np.ndarray[Any, Any]) -> None:
    path = exported / "float.onnx"
    wanted, found = (run(open_model(path, engine), digits) for engine in ("onnxruntime", "openvino"))
    # float32 sums in another order; a CPU's bfloat16 would be off by 1e-2
    assert np.abs(found - wanted).max() < 1e-4 * np.abs(wanted).max()


@needs_openvino
def test_a_runner_of_openvino_says_of_its_model_what_a_session_says(exported: Path) -> None:
    session, runner = (open_model(exported / "model.onnx", engine) for engine in ("onnxruntime", "openvino"))
    for ours, theirs in ((runner.get_inputs(), session.get_inputs()), (runner.get_outputs(), session.get_outputs())):
        assert [(item.name, item.type) for item in ours] == [(item.name, item.type) for item in theirs]
        assert [length for length in ours[0].shape if length is not None] == list(theirs[0].shape[1:])
    assert static_batch(runner) is None
    assert runner.get_modelmeta().custom_metadata_map == session.get_modelmeta().custom_metadata_map != {}


@needs_openvino
def test_outputs_of_a_run_are_not_overwritten_by_the_next(exported: Path, digits: np.ndarray[Any, Any]) -> None:
    runner = open_model(exported / "float.onnx", "openvino")
    name = runner.get_inputs()[0].name
    first = execute(runner, {name: digits[:1]})[0]
    kept = first.copy()
    second = execute(runner, {name: digits[1:2]})[0]
    assert np.array_equal(first, kept) and not np.array_equal(first, second)


@needs_openvino
def test_outputs_are_those_asked_for_by_name(tmp_path: Path) -> None:
    path = tmp_path / "two.onnx"
    text = '<ir_version: 8, opset_import: ["" : 17]> g (float[n,4] x) => (float[n,4] a, float[n,4] b)'
    onnx.save(onnx.parser.parse_model(f"{text} {{ a = Relu (x) b = Neg (x) }}"), path)
    x = np.array([[-1.0, 0.0, 1.0, 2.0]], np.float32)
    (found,) = open_model(path, "openvino").run(["b"], {"x": x})
    assert np.array_equal(found, -x)


@needs_openvino
@pytest.mark.parametrize(
    ("body", "domain", "said"),
    [
        ("y = our.domain.Unknown (x)", "our.domain", "OpenVINO cannot load"),
        ("shape = Constant <value = int64[2] {3, 5}> () y = Reshape (x, shape)", "", "OpenVINO cannot run"),
    ],
)
def test_what_openvino_cannot_load_or_run_is_one_line_without_its_source_files(
    body: str, domain: str, said: str, tmp_path: Path
) -> None:
    path = small_model(tmp_path / "m.onnx", body, domain=domain)
    with pytest.raises(UserError) as refusal:
        run(open_model(path, "openvino"), np.zeros((2, 4), np.float32))
    message = str(refusal.value)
    assert message.startswith(f"{said} {path}: ") and "\n" not in message and ".cpp" not in message


@needs_openvino
def test_a_damaged_file_is_refused_before_openvino_tries_its_readers(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for name, said in (("m.onnx", "is not an ONNX file"), ("m.xml", "is not a model of OpenVINO's format")):
        path = tmp_path / name
        path.write_bytes(b"damaged" * 50)
        with pytest.raises(UserError, match=said):
            open_model(path, "openvino")
    with pytest.raises(UserError, match=r"cannot read model .*: No such file"):
        open_model(tmp_path / "absent.onnx", "openvino")
    assert capfd.readouterr().err == ""


def test_without_the_package_the_line_says_what_to_install(exported: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(UserError) as refusal:
        open_model(exported / "float.onnx", "openvino")
    expected = "--engine openvino needs the openvino package; pip install 'ptq4vit-onnx[openvino]'"
    assert str(refusal.value) == expected


def test_an_unknown_engine_is_refused(tmp_path: Path) -> None:
    unknown: Any = "tensorrt"
    with pytest.raises(UserError, match="no engine named 'tensorrt'; there are onnxruntime, openvino"):
        open_model(tmp_path / "m.onnx", unknown)


@needs_openvino
def test_every_model_is_in_every_engine_and_openvinos_own_format_only_in_openvino() -> None:
    models = {"a": Path("a.onnx"), "b": Path("b.xml")}
    assert in_engines(models, ("onnxruntime", "openvino")) == {
        "a": Opened(Path("a.onnx")),
        "a (openvino)": Opened(Path("a.onnx"), "openvino"),
        "b (openvino)": Opened(Path("b.xml"), "openvino"),
    }


def test_openvinos_own_format_is_refused_where_only_onnx_runtime_is_asked_for() -> None:
    for refuse in (lambda: in_engines({"b": Path("b.xml")}, ("onnxruntime",)), lambda: open_model(Path("b.xml"))):
        with pytest.raises(UserError, match=r"b.xml is of OpenVINO's own format, .* give --engine openvino"):
            refuse()


@needs_openvino
def test_the_bench_times_every_model_in_every_engine(linear: Callable[..., Any], tmp_path: Path) -> None:
    path = tmp_path / "linear.onnx"
    onnx.save(linear().model, path)
    timings = bench({"a": path, "b": path}, runs=2, engines=("openvino", "onnxruntime")).timings
    assert [timing.model for timing in timings] == ["a (openvino)", "a", "b (openvino)", "b"]
    assert timings[0].speed == 1.0


@needs_openvino
def test_the_profile_of_openvino_is_summed_by_operator_and_by_site(exported: Path) -> None:
    result = profile(exported / "model.onnx", runs=3, batch=8, engine="openvino")
    assert {"blocks.0.mlp.fc1", "blocks.5.mlp.fc2"} <= set(result.by_site)
    assert "FullyConnected" in result.by_op and result.total > 0
    for sums in (result.by_op, result.by_site):
        assert sum(sums.values()) == pytest.approx(result.total)


def test_what_a_library_writes_to_standard_error_itself_is_dropped_and_only_while_asked(
    capfd: pytest.CaptureFixture[str],
) -> None:
    import os

    with quiet_standard_error():
        os.write(2, b"[ WARNING ] from a library\n")
    os.write(2, b"ours\n")
    assert capfd.readouterr().err == "ours\n"
