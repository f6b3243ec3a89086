"""The bench measures what it says: every model, every setting, in turns. No test asserts a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from ptq4vit_onnx.errors import UserError
from ptq4vit_onnx.proof.kernels import audit
from ptq4vit_onnx.runtime import bench as module
from ptq4vit_onnx.runtime.bench import bench, profile, summarise
from ptq4vit_onnx.runtime.schedule import Schedule
from ptq4vit_onnx.runtime.session import run
from ptq4vit_onnx.studies.peers import PEERS, quantize_static_peer


@pytest.fixture
def saved(linear: Callable[..., Any], tmp_path: Path) -> Path:
    path = tmp_path / "linear.onnx"
    onnx.save(linear().model, path)
    return path


def test_every_model_is_measured_at_every_setting(saved: Path) -> None:
    done: list[object] = []

    def noted(items: Iterable[Any], _title: str) -> Iterator[Any]:
        for item in items:
            yield item
            done.append(item)

    result = bench({"a": saved, "b": saved}, (1, 2), (1, 3), runs=4, warmup=1, progress=noted, seconds=0)
    settings = {(timing.model, timing.threads, timing.batch) for timing in result.timings}
    assert settings == {(name, threads, batch) for name in "ab" for threads in (1, 2) for batch in (1, 3)}
    assert all(timing.runs == 4 and timing.low <= timing.median <= timing.high for timing in result.timings)
    assert all(timing.speed == 1.0 for timing in result.timings if timing.model == "a")
    assert len(done) == 2 * 4 * 4 - 1, "each run but the last is followed by the next"
    assert result.cpu


def test_models_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []

    class Fake:
        def __init__(self, name: str) -> None:
            self.name = name

        def run(self, _names: Any, _feed: Any) -> None:
            order.append(self.name)

    sessions: dict[str, Any] = {"a": Fake("a"), "b": Fake("b")}
    times = module._interleaved(sessions, {"a": {}, "b": {}}, Schedule(2, 2, 0.0), warmup=1, tick=lambda _: None)
    assert "".join(order) == "ababab"
    assert {name: len(values) for name, values in times.items()} == {"a": 2, "b": 2}


def test_a_model_of_fixed_batch_is_not_measured_with_another(linear: Callable[..., Any], tmp_path: Path) -> None:
    path = tmp_path / "fixed.onnx"
    onnx.save(linear(batch=2).model, path)
    assert bench({"fixed": path}, batches=(2,), runs=1).timings[0].batch == 2
    with pytest.raises(UserError, match="fixed has a fixed batch of 2, got --batch 1; measure it with 2"):
        bench({"fixed": path}, batches=(1,), runs=1)


def test_nothing_to_measure_is_refused(saved: Path) -> None:
    with pytest.raises(UserError, match="no models"):
        bench({})
    with pytest.raises(UserError, match="runs is 0, expected at least 1"):
        bench({"a": saved}, runs=0)


def test_profile_sums_the_runtimes_kernels_by_op_and_site(saved: Path) -> None:
    result = profile(saved, runs=3, warmup=1)
    assert set(result.by_op) == {"QuantizeLinear", "MatMulIntegerToFloat", "Add", "Relu"}
    assert set(result.by_site) == {"fc", "after"}
    assert sum(result.by_op.values()) == pytest.approx(result.total)
    assert sum(result.by_site.values()) == pytest.approx(result.total)


def kernel_events(durations: dict[str, tuple[int, ...]]) -> list[dict[str, Any]]:
    """What the profiler writes of MatMuls that take so many microseconds, run by run."""
    return [
        {"cat": "Node", "name": f"{name}_kernel_time", "dur": duration, "args": {"op_name": "MatMul"}}
        for name, values in durations.items()
        for duration in values
    ]


def test_profile_leaves_out_warmup_and_sums_the_nodes_medians() -> None:
    events = kernel_events({"fc/MatMul": (900, 100, 300), "fc/Add": (900, 50, 50), "loose": (900, 1000, 3000)})
    events.append({"cat": "Session", "name": "model_run", "dur": 5})
    result = summarise(events, warmup=1, runs=2)
    assert result.by_site == pytest.approx({"other": 2.0, "fc": 0.25})
    assert result.by_op == pytest.approx({"MatMul": 2.25})
    assert result.total == pytest.approx(2.25)


def test_one_slow_run_of_a_node_does_not_put_its_site_on_top() -> None:
    events = kernel_events({"slow/MatMul": (200, 210, 190), "quick/MatMul": (100, 90_000, 110)})
    result = summarise(events, warmup=0, runs=3)
    assert list(result.by_site.items()) == [("slow", 0.2), ("quick", 0.11)]


@pytest.mark.parametrize("peer", list(PEERS))
def test_quantize_static_makes_a_model_that_runs_in_integers(peer: str, tmp_path: Path) -> None:
    float_path, images = _float_model(tmp_path)
    path = quantize_static_peer(float_path, images, tmp_path / "peer.onnx", PEERS[peer])
    assert str(audit(path)) == "1 of 1 products in integers"


def test_quantize_static_saturates_by_default_and_is_near_with_unsigned_weights(tmp_path: Path) -> None:
    float_path, images = _float_model(tmp_path)
    default = quantize_static_peer(float_path, images, tmp_path / "default.onnx")
    assert audit(default).unsafe
    unsigned = quantize_static_peer(float_path, images, tmp_path / "unsigned.onnx", weights="u8")
    assert not audit(unsigned).unsafe
    reference = run(float_path, images)
    # 16 products of two values, each off by at most half of 1/255 of its range
    assert np.abs(run(unsigned, images) - reference).max() < 0.05 * np.abs(reference).max()


def test_quantize_static_refuses_an_unknown_method(tmp_path: Path) -> None:
    float_path, images = _float_model(tmp_path)
    with pytest.raises(UserError, match="no calibration method 'best'"):
        quantize_static_peer(float_path, images, tmp_path / "peer.onnx", calibration="best")


def _float_model(folder: Path) -> tuple[Path, Any]:
    random = np.random.default_rng(0)
    weight = numpy_helper.from_array(random.standard_normal((16, 8)).astype(np.float32), "w")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["image", "w"], ["logits"], name="fc/MatMul")],
        "float",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 5, 16])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 5, 8])],
        [weight],
    )
    path = folder / "float.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9), path)
    return path, random.standard_normal((4, 5, 16)).astype(np.float32)
