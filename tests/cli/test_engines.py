"""`eval`, `parity` and `bench` in OpenVINO."""

from __future__ import annotations

import importlib.util
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ptq4vit_onnx import check_parity, evaluate
from ptq4vit_onnx.cli import main as cli
from ptq4vit_onnx.graph.model_file import read_model_file
from ptq4vit_onnx.graph.model_proto import load
from ptq4vit_onnx.plan.plan_json import read_plan
from ptq4vit_onnx.proof.prove import quantize_model

needs_openvino = pytest.mark.skipif(not importlib.util.find_spec("openvino"), reason="openvino is not installed")


def printed(capsys: pytest.CaptureFixture[str], code: int, *arguments: Any) -> str:
    assert cli.main([*map(str, arguments)]) == code
    return capsys.readouterr().out


@pytest.fixture
def own_format(exported: Path, tmp_path: Path) -> Path:
    """float.onnx in OpenVINO's own format."""
    import openvino

    path = tmp_path / "float.xml"
    openvino.save_model(openvino.Core().read_model(str(exported / "float.onnx")), str(path), compress_to_fp16=False)
    return path


@pytest.fixture
def for_openvino(exported: Path, tmp_path: Path) -> Path:
    """The export once more, its file for OpenVINO."""
    for name in ("float.onnx", "plan.json"):
        shutil.copy(exported / name, tmp_path)
    quantize_model(
        load(tmp_path / "float.onnx"), read_plan(tmp_path / "plan.json"), tmp_path / "model.onnx", target="openvino"
    )
    return tmp_path


@needs_openvino
def test_eval_gives_a_float_file_the_accuracy_it_has_in_onnx_runtime(
    exported: Path, digit_files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("eval", exported / "float.onnx", "--data", digit_files, "--threads", 1, "--json")
    there, here = (json.loads(printed(capsys, 0, *arguments, "--engine", name)) for name in ("openvino", "onnxruntime"))
    assert (there["engine"], here["engine"]) == ("openvino", "onnxruntime")
    assert there["models"][0].pop("integer_products").startswith("0 of ")
    assert there["models"] == here["models"]


@needs_openvino
def test_eval_counts_products_in_integers_next_to_the_figures(
    exported: Path, digit_files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    models = (exported / "float.onnx", exported / "model.onnx")
    options = ("--data", digit_files, "--engine", "openvino", "--threads", 1)
    lines = printed(capsys, 0, "eval", *models, *options).splitlines()
    assert lines[0].endswith("products in integers")
    assert " 0 of " in lines[1] and lines[2].endswith(" of 44")
    assert lines[-1] == "measured in OpenVINO"


@needs_openvino
def test_a_quantised_file_predicts_in_openvino_what_float_does(exported: Path) -> None:
    found = evaluate([exported / "float.onnx", exported / "model.onnx"], engine="openvino", threads=1, images=200)
    assert found.models[1].agreement >= 98


@needs_openvino
def test_all_products_of_a_quantised_file_run_in_integers_in_openvino(for_openvino: Path) -> None:
    found = evaluate([for_openvino / "float.onnx", for_openvino / "model.onnx"], engine="openvino", threads=1, images=8)
    assert found.models[1].integer_products == "44 of 44"


@needs_openvino
def test_a_file_of_openvinos_own_format_is_evaluated_and_timed_with_the_metadata_it_has_kept(
    exported: Path, own_format: Path, digit_files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert read_model_file(own_format).weights == read_model_file(exported / "float.onnx").weights
    found = evaluate([exported / "float.onnx", own_format], digit_files, engine="openvino", threads=1)
    assert found.models[1].agreement == 100 and found.models[1].kl < 1e-6
    arguments = ("bench", exported / "float.onnx", own_format, "--data", digit_files, "--runs", 1, "--json")
    data = json.loads(printed(capsys, 0, *arguments, "--engine", "onnxruntime,openvino"))
    names = [str(exported / "float.onnx"), f"{exported / 'float.onnx'} (openvino)", f"{own_format} (openvino)"]
    assert [item["model"] for item in data["timings"]] == [item["name"] for item in data["models"]] == names
    assert data["models"][2]["bytes"] > own_format.stat().st_size


@needs_openvino
def test_a_file_of_openvinos_own_format_without_metadata_prepares_images_as_the_reference(
    exported: Path, own_format: Path, digit_files: Path
) -> None:
    text = own_format.read_text(encoding="utf-8")
    own_format.write_text(text.replace("<ptq4vit_onnx.", "<other."), encoding="utf-8")
    found = evaluate([own_format], digit_files, reference=exported / "float.onnx", engine="openvino", threads=1)
    assert found.models[0].agreement == 100


@needs_openvino
def test_parity_audits_openvino_and_says_which_checks_are_of_onnx_runtime(exported: Path, digit_files: Path) -> None:
    files = (exported / "model.onnx", exported / "float.onnx", digit_files)
    found = check_parity(*files, engine="openvino", threads=1)
    checks = {check.name: check for check in found.checks}
    assert list(checks)[:6] == ["plan", "graph", "kernels", "saturation", "sites", "openvino_kernels"]
    for name in ("kernels", "saturation", "sites"):
        assert checks[name].status == "passed" and checks[name].sentence.startswith("in ONNX Runtime: ")
    assert " of 44 products in integers" in checks["openvino_kernels"].sentence
    assert found.engine == found.to_data()["engine"] == "openvino"


@needs_openvino
def test_the_outputs_pass_parity_in_openvino(exported: Path, digit_files: Path) -> None:
    found = check_parity(exported / "model.onnx", exported / "float.onnx", digit_files, engine="openvino", threads=1)
    assert {check.name: check.status for check in found.checks}["agreement"] == "passed"


@needs_openvino
def test_parity_passes_in_openvino(for_openvino: Path, digit_files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = (for_openvino / "model.onnx", "--reference", for_openvino / "float.onnx", "--data", digit_files)
    assert "failed" not in printed(capsys, 0, "parity", *files, "--engine", "openvino", "--threads", 1)


@needs_openvino
def test_bench_judges_and_profiles_every_model_in_every_engine(
    exported: Path, digit_files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("bench", exported / "model.onnx", "--data", digit_files, "--runs", 1, "--profile", "--json")
    data = json.loads(printed(capsys, 0, *arguments, "--engine", "onnxruntime,openvino"))
    names = [str(exported / "model.onnx"), f"{exported / 'model.onnx'} (openvino)"]
    assert [item["model"] for item in data["timings"]] == list(data["profiles"]) == names
    assert [item["name"] for item in data["models"]] == names
    assert [item["products"] for item in data["models"]] == [44, 44]
    assert "FullyConnected" in data["profiles"][names[1]]["by_op"]


@pytest.mark.parametrize(
    ("command", "engine", "said"),
    [
        ("eval", "tensorrt", "--engine: expected one of onnxruntime, openvino, got tensorrt"),
        ("bench", "onnxruntime,x", "--engine: expected one of onnxruntime, openvino, got x"),
    ],
)
def test_an_unknown_engine_is_one_line(
    command: str, engine: str, said: str, exported: Path, refused: Callable[..., str]
) -> None:
    assert said in refused(command, exported / "model.onnx", "--engine", engine)


@pytest.mark.parametrize("command", ["eval", "bench", "parity"])
def test_a_missing_package_is_one_line_and_exit_code_2(
    command: str, exported: Path, refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    more = ["--reference", exported / "float.onnx"] if command == "parity" else []
    line = refused(command, exported / "model.onnx", *more, "--engine", "openvino")
    assert "--engine openvino needs the openvino package; pip install 'ptq4vit-onnx[openvino]'" in line


@needs_openvino
def test_openvinos_own_format_is_one_line_where_it_cannot_be_read(
    exported: Path, own_format: Path, refused: Callable[..., str]
) -> None:
    assert "give --engine openvino" in refused("bench", own_format)
    assert "give --engine openvino" in refused("eval", own_format, "--reference", exported / "float.onnx")
    line = refused("parity", own_format, "--reference", exported / "float.onnx", "--engine", "openvino")
    assert "parity reads ONNX files" in line


@needs_openvino
def test_a_damaged_file_is_one_line_and_openvino_writes_nothing(tmp_path: Path, answer_of: Callable[..., Any]) -> None:
    (tmp_path / "m.onnx").write_bytes(b"damaged" * 50)
    answer = answer_of("bench", tmp_path / "m.onnx", "--engine", "openvino")
    assert answer.code == 2 and answer.error.count("\n") == 1 and "is not an ONNX file" in answer.error


def test_the_usual_engine_does_not_import_openvino(exported: Path, answer_of: Callable[..., Any]) -> None:
    answer = answer_of("eval", exported / "model.onnx", "--images", 8, "--threads", 1)
    assert answer.code == 0 and "openvino" not in answer.modules
