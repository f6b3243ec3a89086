"""NNCF's quantised models, made in an environment of its own: its requirements do not meet this tool's there."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from typing import Any

import numpy as np

PACKAGES = ("nncf", "onnx", "onnxruntime", "openvino")
OPENVINO_SUFFIX = ".xml"
# Run in NNCF's environment, where this repository is not installed. Everything not given is NNCF's default.
ONNX_SCRIPT = """
import sys
import numpy, onnx, nncf
source, images, target = sys.argv[1:]
model = onnx.load(source)
name = model.graph.input[0].name
batches = [{name: image[None]} for image in numpy.load(images)]
made = nncf.quantize(
    model, nncf.Dataset(batches), model_type=nncf.ModelType.TRANSFORMER, subset_size=len(batches)
)
onnx.save(made, target)
"""
OPENVINO_SCRIPT = """
import sys
import numpy, openvino, nncf
source, images, target = sys.argv[1:]
model = openvino.Core().read_model(source)
batches = [image[None] for image in numpy.load(images)]
made = nncf.quantize(
    model, nncf.Dataset(batches), model_type=nncf.ModelType.TRANSFORMER, subset_size=len(batches)
)
openvino.save_model(made, target, compress_to_fp16=False)
"""


def environment(folder: Path) -> Path:
    """The Python of NNCF's own environment, made and filled where it is missing."""
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    if not python.is_file():
        say(f"making a virtual environment in {folder}")
        venv.create(folder, with_pip=True)
    if subprocess.run([python, "-c", "import nncf"], capture_output=True).returncode:
        say(f"installing {', '.join(PACKAGES)} into {folder}")
        run_in(python, ["-m", "pip", "install", "--quiet", *PACKAGES], "cannot install NNCF")
    return python


def version(python: Path) -> str:
    return run_in(python, ["-c", "from importlib.metadata import version; print(version('nncf'))"], "no NNCF")


def quantize(python: Path, float_path: Path, images: Any, target: Path) -> Path:
    """Of an ONNX file, in ONNX; a target that ends with .xml: in OpenVINO's form. images: [n, 3, height, width]."""
    say(f"NNCF, {target.name}")
    script = OPENVINO_SCRIPT if target.suffix == OPENVINO_SUFFIX else ONNX_SCRIPT
    with tempfile.TemporaryDirectory(prefix="ptq4vit_onnx_") as folder:
        calibration = Path(folder) / "calibration.npy"
        np.save(calibration, images)
        run_in(python, ["-c", script, float_path, calibration, target], "NNCF failed")
    return target


def run_in(python: Path, arguments: list[Any], failure: str) -> str:
    """What the command prints; where it fails, one line and the way on."""
    done = subprocess.run([python, *map(str, arguments)], capture_output=True, text=True)
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip() or "no message").splitlines()[-1]
        raise SystemExit(f"{failure} in {python.parent.parent}: {last}; mend it, or leave NNCF out")
    return done.stdout.strip()


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
