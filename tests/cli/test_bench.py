"""`bench`: every model and peer at every setting, and the profile. No test asserts a time."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest

from ptq4vit_onnx.cli import bench as cli_bench
from ptq4vit_onnx.cli import main as cli
from ptq4vit_onnx.errors import UserError
from ptq4vit_onnx.graph.model_file import ModelFile, read_model_file
from ptq4vit_onnx.images.stream import ImageSource
from ptq4vit_onnx.runtime.bench import BenchResult, Timing
from ptq4vit_onnx.runtime.cpu import cpu_features
from ptq4vit_onnx.runtime.modes import Mode
from ptq4vit_onnx.studies.peers import PEERS, calibration_images


def measured(capsys: pytest.CaptureFixture[str], *arguments: Any) -> dict[str, Any]:
    assert cli.main(["bench", "--json", "--runs", "2", *map(str, arguments)]) == 0
    data: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert list(data) == ["timings", "cpu", "models", "peers_calibrated_on", "profiles"]
    return data


def test_every_model_is_measured_at_every_setting(exported: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [str(exported / "float.onnx"), str(exported / "model.onnx")]
    data = measured(capsys, *paths, "--threads", "1,2", "--batch", "1,3", "--seconds", 0)
    settings = [(item["threads"], item["batch"], item["model"]) for item in data["timings"]]
    assert settings == [(threads, batch, path) for threads in (1, 2) for batch in (1, 3) for path in paths]
    assert all(item["speed"] == 1.0 for item in data["timings"] if item["model"] == paths[0])
    assert data["cpu"] == str(cpu_features())
    assert data["models"] == []


def test_the_peer_is_made_measured_and_judged_in_the_same_run(
    exported: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = measured(capsys, exported / "model.onnx", "--against", "ort-static", "--images", 50)
    ours, peer = data["models"]
    assert [item["model"] for item in data["timings"]] == [ours["name"], "ort-static"]
    assert data["peers_calibrated_on"] == "32 images of embedded digits (calibration)"
    assert ours["products"] == ours["products_in_integers"] == 44
    assert peer["products"] == peer["products_in_integers"] == 38
    assert ours["images"] == peer["images"] == 50
    assert ours["kl"] < peer["kl"]
    assert 0 < ours["bytes"] < (exported / "float.onnx").stat().st_size


def test_the_table_names_the_cpu_the_speed_and_the_accuracy(
    exported: Path, digit_files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [str(exported / "model.onnx"), "--runs", "2", "--data", str(digit_files), "--profile"]
    assert cli.main(["bench", *arguments]) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"measured on {cpu_features()}\n")
    for expected in ("median ms", "1.00x", "products in integers", "44 of 44", "MatMulIntegerToFloat", "attn.pv"):
        assert expected in text


def test_the_profile_is_summed_by_operator_and_by_site(exported: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(exported / "model.onnx")
    (found,) = measured(capsys, path, "--profile")["profiles"].values()
    assert {"MatMulIntegerToFloat", "QuantizeLinear"} <= set(found["by_op"])
    assert {"blocks.0.attn.qk", "blocks.5.mlp.fc2", "head"} <= set(found["by_site"])
    for sums in (found["by_op"], found["by_site"]):
        assert sum(sums.values()) == pytest.approx(found["total"])


def test_a_model_without_metadata_can_be_timed_but_not_judged(
    exported: Path, tmp_path: Path, refused: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    model = onnx.load(exported / "model.onnx")
    del model.metadata_props[:]
    path = tmp_path / "bare.onnx"
    onnx.save(model, path)
    assert len(measured(capsys, path)["timings"]) == 1
    message = refused("bench", path, "--against", "ort-static", "--reference", exported / "float.onnx")
    assert "does not say how its images are prepared" in message
    assert "no float model at" in refused("bench", path, "--against", "ort-static")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--threads", "0"], "expected a whole number of at least 1, got 0"),
        (["--batch", "1,x"], "expected a whole number of at least 1, got x"),
        (["--runs", "0"], "expected a whole number of at least 1, got 0"),
        (["--threads", "1,99999999999999"], "--threads: expected a whole number of at most 1024, got 99999999999999"),
        (["--batch", "100000000"], "--batch: expected a whole number of at most 4096, got 100000000"),
        (["--runs", "9999999999999999"], "--runs: expected a whole number of at most 1000000, got 9999999999999999"),
        (["--seconds", "-1"], "--seconds: expected a whole number of at least 0, got -1"),
        (["--seconds", "99999999"], "--seconds: expected a whole number of at most 86400, got 99999999"),
        (["--images", "9" * 5000], "--images: expected a whole number"),
        (["--against", "nncf"], "invalid choice: 'nncf'"),
        (["--data", "absent"], "does not exist"),
        (["--calibration", "photos"], "--calibration is for peers"),
        (["--where", "fold=1"], "--where needs a labels.csv"),
        (["--where", "fold=1", "--against", "ort-static"], "--where needs a labels.csv"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_in_the_call_is_one_line(
    arguments: list[str], said: str, exported: Path, refused: Callable[..., str]
) -> None:
    assert said in refused("bench", exported / "model.onnx", *arguments)


@pytest.mark.parametrize(
    ("inputs", "body", "said"),
    [
        ("float[n,4] x, float[n,4] z", "y = Add (x, z)", "has 2 inputs"),
        ("int64[n,4] x", "y = Cast <to = 1> (x)", "expected one tensor(float) or tensor(uint8) of images"),
        ("float[n,4] x", "shape = Constant <value = int64[2] {3, 5}> () y = Reshape (x, shape)", "cannot run"),
    ],
)
def test_a_model_that_takes_no_images_is_refused(
    inputs: str, body: str, said: str, tmp_path: Path, refused: Callable[..., str]
) -> None:
    text = f'<ir_version: 8, opset_import: ["" : 17]> g ({inputs}) => (float[m,k] y) {{ {body} }}'
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    assert said in refused("bench", tmp_path / "m.onnx")


def test_the_peers_offered_are_the_peers_there_are() -> None:
    assert tuple(PEERS) == cli_bench.PEER_NAMES


def test_peers_of_a_model_without_images_are_calibrated_on_built_in_photos_if_it_takes_them(exported: Path) -> None:
    known = read_model_file(exported / "float.onnx")
    colour = replace(known.preprocessing, size=(3, 32, 32))
    images = calibration_images(ModelFile(known.path, "deit_t", "", colour), ImageSource())
    assert images.built_in and len(images) == 32 and images.source.startswith("the built-in photos (")
    with pytest.raises(UserError, match="it takes 1 channels and the built-in photos have 3; give --data"):
        calibration_images(ModelFile(known.path, "deit_t", "", known.preprocessing), ImageSource())


TWO = (Mode(10.0, 9.5, 10.5, 30, 0.6, 1.9, 1.5), Mode(20.0, 19.0, 21.0, 20, 0.4, 1.0, 1.1))


def test_the_slow_mode_has_columns_only_where_there_is_one() -> None:
    one = Timing("float", 1, 1, 30.0, 29.0, 31.0, 50, 1.0)
    two = Timing("ours", 2, 1, 10.0, 9.5, 10.5, 30, 1.5, TWO, 1.9)
    alone, both = (BenchResult(timings, "a CPU") for timings in ((one,), (one, two)))
    assert cli_bench._timing_rows(alone)[0][-1] == "speed"
    titles, first, second = cli_bench._timing_rows(both)
    assert dict(zip(titles, second, strict=True)) == {
        "model": "ours", "threads": "2", "batch": "1", "median ms": "10.00", "quartiles": "9.50 .. 10.50",
        "speed": "1.50x", "busy cores": "1.9", "runs fast / slow": "60% / 40%", "slow ms": "20.00",
        "slow quartiles": "19.00 .. 21.00", "slow speed": "1.10x", "slow cores": "1.0",
    }  # fmt: skip
    assert not any(first[6:])
    assert any("had two speeds" in part for part in cli_bench._parts(both, [], {}, "", (1, 1)))
    assert not any("had two speeds" in part for part in cli_bench._parts(alone, [], {}, "", (1, 1)))


def test_both_modes_are_in_the_json() -> None:
    data = BenchResult((Timing("ours", 2, 1, 10.0, 9.5, 10.5, 30, 1.5, TWO),), "a CPU").to_data()
    fast, slow = json.loads(json.dumps(data))["timings"][0]["modes"]
    assert fast == {"median": 10.0, "low": 9.5, "high": 10.5, "runs": 30, "share": 0.6, "cores": 1.9, "speed": 1.5}
    assert slow["median"] == 20.0
