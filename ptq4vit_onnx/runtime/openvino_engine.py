"""OpenVINO on the CPU: models as runners, the graph that is really executed, and the times of its layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import openvino

from ptq4vit_onnx.errors import UserError
from ptq4vit_onnx.graph.model_file import read_metadata
from ptq4vit_onnx.graph.model_proto import Array
from ptq4vit_onnx.runtime.process import allowed_threads
from ptq4vit_onnx.runtime.quiet import quiet_standard_error
from ptq4vit_onnx.runtime.runner import BYTES, FLOATS, Layer

TITLE = "OpenVINO"
_TYPES = {"f32": FLOATS, "u8": BYTES}


@dataclass(frozen=True)
class Port:
    """An input or output of a model."""

    name: str
    type: str
    shape: Sequence[int | str | None]


@dataclass(frozen=True)
class ModelMetadata:
    custom_metadata_map: Mapping[str, str]


@dataclass
class OpenVinoRunner:
    """A model compiled by OpenVINO, with the surface of an ONNX Runtime session."""

    path: Path
    compiled: Any
    engine_title: str = TITLE
    _request: Any = field(init=False)

    def __post_init__(self) -> None:
        self._model_path = str(self.path)
        self._taken: list[dict[str, list[int]]] = []
        self._request = self.compiled.create_infer_request()
        self._positions = {_name(port): number for number, port in enumerate(self.compiled.outputs)}

    def get_inputs(self) -> list[Port]:
        return [_port(item) for item in self.compiled.inputs]

    def get_outputs(self) -> list[Port]:
        return [_port(item) for item in self.compiled.outputs]

    def get_modelmeta(self) -> ModelMetadata:
        return ModelMetadata(read_metadata(self.path))

    def run(self, names: list[str] | None, feeds: dict[str, Array]) -> list[Array]:
        """Inputs are read where they lie; outputs are copied, since the next run writes over OpenVINO's own."""
        try:
            self._require_shapes(feeds)
            found = self._request.infer(feeds, share_inputs=True, share_outputs=False)
        except RuntimeError as error:
            raise RuntimeError(_reason(error)) from error
        wanted = list(self._positions) if names is None else names
        return [np.asarray(found[self._positions[name]]) for name in wanted]

    def _require_shapes(self, feeds: Mapping[str, Array]) -> None:
        """Raise, at the first run with such shapes, if the model has none for what they become inside.

        With one thread OpenVINO 2026.4 passes over that error: it returns what lies behind the input in memory, or
        crashes.
        """
        shapes = {name: list(value.shape) for name, value in feeds.items()}
        if shapes not in self._taken:
            with quiet_standard_error():
                _core().read_model(self._model_path).reshape(shapes)
            self._taken.append(shapes)

    def layers(self) -> list[Layer]:
        """The executed graph, in order."""
        return [_layer(node) for node in self.compiled.get_runtime_model().get_ordered_ops()]

    def layer_times(self) -> dict[tuple[str, str], float]:
        """(layer, its kind) -> microseconds, of a model that was loaded with timed=True.

        All that OpenVINO keeps is the mean over all runs so far, in whole microseconds.
        """
        entries = self._request.get_profiling_info()
        return {(entry.node_name, entry.node_type): entry.real_time.total_seconds() * 1e6 for entry in entries}


def load(path: Path, threads: int = 1, timed: bool = False) -> OpenVinoRunner:
    """A model on the CPU, an ONNX file or one of OpenVINO's own format. threads: 0 is all cores.

    What is not quantised is computed in float32: by default OpenVINO takes bfloat16 on CPUs that have it.
    """
    read_metadata(
        path
    )  # refuses what is no file, and a damaged one, at which OpenVINO would try one reader after the other
    settings = {
        "INFERENCE_NUM_THREADS": allowed_threads(threads),
        "INFERENCE_PRECISION_HINT": "f32",
        "PERFORMANCE_HINT": "LATENCY",
        "NUM_STREAMS": 1,
        "PERF_COUNT": timed,
    }
    try:
        with quiet_standard_error():
            return OpenVinoRunner(path, _core().compile_model(str(path), "CPU", settings))
    except Exception as error:  # RuntimeError for nearly everything, but not by contract
        raise UserError(f"{TITLE} cannot load {path}: {_reason(error)}") from error


def product_names(path: Path) -> list[str]:
    """Names of the products in a file of OpenVINO's own format."""
    with quiet_standard_error():
        nodes = _core().read_model(str(path)).get_ordered_ops()
    return [node.get_friendly_name() for node in nodes if node.get_type_name() in ("MatMul", "Convolution")]


def _reason(error: Exception) -> str:
    """The last line of OpenVINO's message: those before it are places in its source."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__


@cache
def _core() -> Any:
    core = openvino.Core()
    core.set_property("CPU", {"LOG_LEVEL": "LOG_NONE"})
    return core


def _port(item: Any) -> Port:
    kind = item.get_element_type().get_type_name()
    shape = [length.get_length() if length.is_static else None for length in item.get_partial_shape()]
    return Port(_name(item), _TYPES.get(kind, kind), shape)


def _name(item: Any) -> str:
    return str(item.get_any_name())


def _layer(node: Any) -> Layer:
    said = {key: str(value.value) for key, value in node.get_rt_info().items()}
    origins = tuple(name for name in said.get("originalLayersNames", "").split(",") if name)
    types = [(value.get_element_type().get_type_name(), _kind(value.get_node())) for value in node.input_values()]
    computed = tuple(name for name, source in types if source != "Const")
    return Layer(node.get_friendly_name(), _kind(node), origins, tuple(name for name, _ in types), computed)


def _kind(node: Any) -> str:
    return str(node.get_rt_info()["layerType"].value)
