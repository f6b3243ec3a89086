"""Other tools' quantised models, each made in an environment of its own: their requirements do not meet this tool's.

A tool reads one float ONNX file and calibration images, and writes one ONNX file. `TOOLS` has its packages, settings
and the script that runs it. What cannot be installed or does not run is a ToolError, with the tool's own last words.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import venv
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import peer_scripts

TORCH = "torch==2.13.0"
PATIENCE = 1800  # seconds that one tool may take for one model


class ToolError(Exception):
    """A tool that could not be installed, failed, or wrote a file that does not run."""


@dataclass(frozen=True)
class Tool:
    """One tool with one setting. Tools of the same `folder` share an environment.

    distribution: whose version is the tool's. first: packages to install before the others, so that these take them.
    bits: of weights and activations. setting: what its users would write, in a line. argument: of the script.
    """

    title: str
    folder: str
    distribution: str
    packages: tuple[str, ...]
    setting: str
    script: str
    argument: str = ""
    first: tuple[str, ...] = ()
    bits: str = "W8A8"

    def environment(self, folder: Path) -> Path:
        """The Python of its environment in `folder`, made and filled where it is missing."""
        python = folder / self.folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
        if not python.is_file():
            say(f"making a virtual environment in {python.parent.parent}")
            venv.create(python.parent.parent, with_pip=True)
        if subprocess.run([python, "-m", "pip", "show", "--quiet", self.distribution], capture_output=True).returncode:
            for packages in filter(None, (self.first, (*self.packages, *self.first))):
                say(f"installing {', '.join(packages)} into {python.parent.parent}")
                run_in(python, ["-m", "pip", "install", "--quiet", *packages])
        return python

    def version(self, python: Path) -> str:
        code = f"from importlib.metadata import version; print(version({self.distribution!r}))"
        return run_in(python, ["-c", code])

    def quantize(self, python: Path, float_path: Path, images: Any, target: Path) -> Path:
        """images: [n, 3, height, width], as the model takes them."""
        say(f"{self.title}, {target.name}")
        with tempfile.TemporaryDirectory(prefix="ptq4vit_onnx_") as scratch:
            calibration = Path(scratch) / "calibration.npy"
            np.save(calibration, images)
            words = ["-c", self.script, float_path.resolve(), calibration, target.resolve(), self.argument]
            run_in(python, words, Path(scratch))
        if not target.is_file():
            raise ToolError("it ended without a word and wrote no file")
        return target


def run_in(python: Path, arguments: list[Any], folder: Path | None = None) -> str:
    """What the command prints; where it fails, the tool's own last line."""
    try:
        done = subprocess.run(
            [python.absolute(), *map(str, arguments)], capture_output=True, text=True, timeout=PATIENCE, cwd=folder
        )
    except subprocess.TimeoutExpired as error:
        raise ToolError(f"not done within {PATIENCE} seconds") from error
    if done.returncode:
        say(done.stderr[-3000:])
        raise ToolError(last_words(done.stderr) or last_words(done.stdout) or "no message")
    return done.stdout.strip()


def last_words(text: str) -> str:
    """The last line that says something, without colours and with no folder of this machine."""
    lines = [line.strip() for line in re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines() if line.strip()]
    return re.sub(r"/[\w./+-]*/", "", lines[-1])[:200] if lines else ""


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


PRODUCTS = "MatMul Gemm Conv"
_AIMET = Tool(
    "AIMET, defaults", "aimet", "aimet-onnx", ("aimet-onnx==2.42",),
    "all operators, minmax", peer_scripts.AIMET, "", (TORCH, "torchvision==0.28.0"),
)  # fmt: skip
_MODELOPT = Tool(
    "NVIDIA ModelOpt, all operators", "modelopt", "nvidia-modelopt", ("nvidia-modelopt[onnx]==0.47",),
    "all operators, `calibration_method=max`", peer_scripts.MODELOPT, "max", (TORCH,),
)  # fmt: skip
TOOLS = (
    Tool(
        "NNCF", "nncf", "nncf", ("nncf==3.4.0", "onnx", "onnxruntime", "openvino"),
        "`model_type=TRANSFORMER`", peer_scripts.NNCF,
    ),
    Tool(
        "AMD Quark", "quark", "amd-quark", ("amd-quark==0.13", "onnxruntime>=1.22.2,<=1.28"),
        "`INT8_TRANSFORMER_DEFAULT`", peer_scripts.QUARK, "INT8_TRANSFORMER_DEFAULT", (TORCH,),
    ),
    _AIMET,
    replace(_AIMET, title="AIMET, products only", setting="quantizers at products only, minmax", argument=PRODUCTS),
    _MODELOPT,
    replace(
        _MODELOPT, title="NVIDIA ModelOpt, products only", argument=f"max {PRODUCTS}",
        setting="`op_types_to_quantize` MatMul, Gemm, Conv; `calibration_method=max`",
    ),
)  # fmt: skip
