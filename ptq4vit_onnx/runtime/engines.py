"""The engines that models run in, by name. An engine is imported when a model is opened in it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ptq4vit_onnx.errors import UserError

if TYPE_CHECKING:
    from ptq4vit_onnx.runtime.runner import Runner

EngineName = Literal["onnxruntime", "openvino"]
ENGINES: tuple[EngineName, ...] = ("onnxruntime", "openvino")
TITLES: Mapping[EngineName, str] = {"onnxruntime": "ONNX Runtime", "openvino": "OpenVINO"}


@dataclass(frozen=True)
class Opened:
    """A model file, and the engine it is to run in."""

    path: Path
    engine: EngineName = "onnxruntime"


def open_model(path: Path, engine: EngineName = "onnxruntime", threads: int = 1) -> Runner:
    """The model in this engine, on the CPU. threads: 0 is all cores."""
    require_engine(engine)
    if engine == "openvino":
        from ptq4vit_onnx.runtime import openvino_engine

        return openvino_engine.load(path, threads)
    require_runs_in(path, engine)
    from ptq4vit_onnx.runtime.session import session

    return session(path, threads)


def require_engine(engine: str) -> None:
    """Refuse an engine that is unknown, or whose package is missing, before any work is done for it."""
    if engine not in ENGINES:
        raise UserError(f"no engine named {engine!r}; there are {', '.join(ENGINES)}")
    if engine == "openvino":
        from importlib.util import find_spec

        if find_spec("openvino") is None:
            raise UserError("--engine openvino needs the openvino package; pip install 'ptq4vit-onnx[openvino]'")


def is_own_format(path: Path) -> bool:
    """Whether it is a file of OpenVINO's own format, which no other engine reads."""
    from ptq4vit_onnx.graph.model_file import OPENVINO_SUFFIX

    return path.suffix == OPENVINO_SUFFIX


def require_runs_in(path: Path, engine: EngineName) -> None:
    if is_own_format(path) and engine != "openvino":
        raise UserError(f"{path} is of OpenVINO's own format, which ONNX Runtime does not read; give --engine openvino")


def in_engines(models: Mapping[str, Path], engines: Sequence[EngineName]) -> dict[str, Opened]:
    """Every model in every engine, model by model; a file of OpenVINO's own format in OpenVINO alone.

    {"a.onnx": path} in both engines -> "a.onnx" and "a.onnx (openvino)".
    """
    for engine in engines:
        require_engine(engine)
    found = {}
    for name, path in models.items():
        for engine in _engines_of(path, engines):
            found[label(name, engine)] = Opened(path, engine)
    return found


def _engines_of(path: Path, engines: Sequence[EngineName]) -> Iterable[EngineName]:
    if "openvino" not in engines:
        require_runs_in(path, "onnxruntime")
    return [engine for engine in engines if engine == "openvino" or not is_own_format(path)]


def label(name: str, engine: EngineName) -> str:
    """How a model is called in tables."""
    return name if engine == "onnxruntime" else f"{name} ({engine})"
