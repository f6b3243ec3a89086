"""NNCF's quantised models, in ONNX and in OpenVINO's form, for the benchmarks that cannot do without them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks import peer_scripts, peer_tools
from benchmarks.peer_tools import ToolError, say

__all__ = ["OPENVINO_SUFFIX", "environment", "quantize", "say", "version"]
OPENVINO_SUFFIX = ".xml"
_NNCF = next(tool for tool in peer_tools.TOOLS if tool.distribution == "nncf")


def environment(folder: Path) -> Path:
    """The Python of NNCF's own environment, made and filled where it is missing."""
    return Path(_or_end(replace(_NNCF, folder="").environment, folder))


def version(python: Path) -> str:
    return str(_or_end(_NNCF.version, python))


def quantize(python: Path, float_path: Path, images: Any, target: Path) -> Path:
    """Of an ONNX file, in ONNX; a target that ends with .xml: in OpenVINO's form. images: [n, 3, height, width]."""
    openvino = target.suffix == OPENVINO_SUFFIX
    tool = replace(_NNCF, script=peer_scripts.NNCF_OPENVINO) if openvino else _NNCF
    return Path(_or_end(tool.quantize, python, float_path, images, target))


def _or_end(step: Any, *arguments: Any) -> Any:
    try:
        return step(*arguments)
    except ToolError as error:
        raise SystemExit(f"NNCF: {error}; mend its environment, or leave NNCF out") from error
