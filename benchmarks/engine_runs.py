"""The engines we claim, and how they run exported files: each in an environment of its own, made where it is missing,
kept, used again.

The runners lie in tests/engines/: scripts that need nothing of this package, so that they work next to any version.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version as installed
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx

from ptq4vit_onnx.graph.integer_products import INTEGER_KERNELS, PRODUCT_KERNELS
from ptq4vit_onnx.output_kinds.metrics import agreement, mean_kl
from ptq4vit_onnx.plan.plan_json import read_plan
from ptq4vit_onnx.proof.kernels import audit

Array = np.ndarray[Any, Any]
Package = Literal["onnxruntime", "openvino", "onnxruntime-web", "onnx"]
# What ships each operator at all: ONNX Runtime has opset 20 since 1.17. OpenVINO before 2026.2 leaves out three of four
# bytes where operations on bits meet a scalar, so whatever has such an operator is garbage there.
ONNX_RUNTIMES = ("1.17.0", "1.17.3", "1.18.1", "1.19.2", "1.20.1", "1.21.1", "1.22.1", "1.23.2", "1.24.4", "1.26.0",
                 "1.28.0", "1.30.0")  # fmt: skip
OPENVINOS = ("2026.2.0",)
WEBS = ("1.17.3", "1.20.1", "1.30.0")
OLDER_OPENVINOS = ("2024.3.0", "2025.4.1", "2026.1.0")
RUNNERS = Path(__file__).resolve().parents[1] / "tests" / "engines"
NAMES: Mapping[Package, str] = {
    "onnxruntime": "ONNX Runtime",
    "openvino": "OpenVINO",
    "onnxruntime-web": "onnxruntime-web, wasm in Node",
    "onnx": "onnx's ReferenceEvaluator",
}
LIMIT = 1800  # seconds for one run
LEAST_AGREEMENT = 98.0  # percent: rounding is a cliff, and two releases of ONNX Runtime agree on about 99
MOST_KL = 1.1  # times that of the newest ONNX Runtime
_OPENVINO_PRODUCTS = frozenset({"MatMul", "FullyConnected", "Convolution"})
_OPENVINO_INTEGERS = frozenset({"i8", "u8"})


# What pip and npm say where the index cannot be reached, or has no such version for this Python: no defect of ours.
_UNREACHABLE = re.compile(
    r"No matching distribution|Could not find a version"
    r"|E40[134]\b|E50\d|ENOTFOUND|ECONN|ETIMEDOUT|EAI_AGAIN|ENETUNREACH"
)


class UnavailableError(Exception):
    """An engine that cannot be had here, and why."""


class FailedError(Exception):
    """An engine that does not load or run a model, or cannot be installed: the line that says why."""


@dataclass(frozen=True)
class Engine:
    """A package in one version; "" is the version that this interpreter has."""

    package: Package
    version: str = ""

    def __str__(self) -> str:
        return f"{NAMES[self.package]} {self.version or installed(self.package)}"


CLAIMED = (
    *(Engine("onnxruntime", number) for number in ONNX_RUNTIMES),
    *(Engine("openvino", number) for number in (*OPENVINOS, "")),
    *(Engine("onnxruntime-web", number) for number in WEBS),
    Engine("onnx"),
)
TRIED = tuple(Engine("openvino", number) for number in OLDER_OPENVINOS)  # shown for what they do; no limit holds


@dataclass(frozen=True)
class Outcome:
    """outputs: [images, ...], the first output. integers, products: how many executed products are in integers, and how
    many there are; both 0 where the engine has no kernels to look at."""

    outputs: Array
    integers: int
    products: int


@dataclass(frozen=True)
class Comparison:
    """An engine's outputs next to those of the newest ONNX Runtime.

    identical: percent of images whose outputs are equal to the last bit. agreement: percent of predictions. kl: to the
    float model; newest_kl: that of the newest ONNX Runtime.
    """

    images: int
    identical: float
    agreement: float
    kl: float
    newest_kl: float

    @property
    def kl_ratio(self) -> float:
        return self.kl / self.newest_kl

    @property
    def broken(self) -> list[str]:
        """The limits it breaks, a sentence for each. One image may always differ."""
        if self.identical == 100:
            return []
        least, found = min(LEAST_AGREEMENT, 100 - 100 / self.images), []
        if not self.agreement >= least:
            found.append(
                f"{self.agreement:.1f} % of {self.images} predictions are equal, at least {least:.1f} expected"
            )
        if not self.kl <= MOST_KL * self.newest_kl:
            found.append(f"KL is {self.kl:.3g}, at most {MOST_KL} times {self.newest_kl:.3g} expected")
        return found


def compare(outputs: Array, newest: Array, floats: Array) -> Comparison:
    """outputs [n, classes], of the first n images that `newest` and `floats` were computed for."""
    count = len(outputs)
    newest, floats = newest[:count], floats[:count]
    same = (outputs == newest).reshape(count, -1).all(1)
    return Comparison(
        count, 100 * float(same.mean()), agreement(outputs, newest), mean_kl(floats, outputs), mean_kl(floats, newest)
    )


def run(engine: Engine, model: Path, images: Path, environments: Path, as_written: bool = False) -> Outcome:
    """`model` on the images of an .npy file. environments: where they are kept. as_written: ONNX Runtime in Python
    leaves its optimiser out.

    Raises UnavailableError or FailedError.
    """
    with tempfile.TemporaryDirectory(prefix="ptq4vit_onnx_") as scratch:
        folder = Path(scratch)
        if engine.package == "onnxruntime":
            form = ["--as-written"] if as_written else []
            _call([python_with(engine, environments), RUNNERS / "run_onnxruntime.py", model, images, folder, *form])
            plan = model.parent / "plan.json"
            executed = audit(model, read_plan(plan) if plan.is_file() else None, onnx.load(folder / "optimised.onnx"))
            counts = executed.integers, len(executed.products) + len(executed.floats)
        elif engine.package == "openvino":
            _call([python_with(engine, environments), RUNNERS / "run_openvino.py", model, images, folder])
            counts = _openvino_products(json.loads((folder / "about.json").read_text(encoding="utf-8"))["layers"])
        elif engine.package == "onnxruntime-web":
            packages = node_packages(engine, environments)
            counts = _profiled_products(_call(["node", RUNNERS / "run_web.mjs", packages, model, images, folder]))
        else:
            return Outcome(_reference(model, np.load(images)), 0, 0)
        return Outcome(np.load(folder / "outputs.npy"), *counts)


def python_with(engine: Engine, environments: Path) -> Path:
    """The Python of a virtual environment that has the engine; this interpreter where no version is asked for."""
    if not engine.version:
        return Path(sys.executable)
    folder = environments / f"{engine.package}-{engine.version}"
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    wanted = [f"{engine.package}=={engine.version}", *_beside(engine)]
    if not (folder / "ready").is_file():
        shutil.rmtree(folder, ignore_errors=True)
        _install([sys.executable, "-m", "venv", "--without-pip", str(folder)], engine)
        pip = [sys.executable, "-m", "pip", "--python", str(python), "--quiet", "--disable-pip-version-check"]
        _install([*pip, "install", *wanted], engine)
        (folder / "ready").touch()
    return python


def _beside(engine: Engine) -> list[str]:
    """Releases of ONNX Runtime before 1.19 were built for numpy 1 and do not say so."""
    old = engine.package == "onnxruntime" and tuple(map(int, engine.version.split(".")[:2])) < (1, 19)
    return ["numpy<2"] if old else []


def node_packages(engine: Engine, environments: Path) -> Path:
    """A folder whose node_modules hold onnxruntime-web."""
    for program in ("node", "npm"):
        if shutil.which(program) is None:
            raise UnavailableError(f"{engine}: there is no {program} here")
    folder = environments / f"{engine.package}-{engine.version}"
    if not (folder / "ready").is_file():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        (folder / "package.json").write_text('{"private": true}', encoding="utf-8")
        wanted = f"{engine.package}@{engine.version}"
        _install(["npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(folder), wanted], engine)
        (folder / "ready").touch()
    return folder


def _install(command: Sequence[str], engine: Engine) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT)
    if done.returncode:
        kind = UnavailableError if _UNREACHABLE.search(done.stdout + done.stderr) else FailedError
        raise kind(f"{engine} cannot be installed: {_said(done)}")


def _call(command: Sequence[Any]) -> str:
    """Standard output of a runner."""
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=LIMIT)
    if done.returncode:
        raise FailedError(_said(done))
    return done.stdout


def _said(done: subprocess.CompletedProcess[str]) -> str:
    """The line that names the error; else the last one; else, of a process that was killed, its exit code.

    OpenVINO names a place in its sources first; what is wrong stands in the last line.
    """
    lines = [line.strip() for line in (done.stderr or done.stdout).splitlines() if line.strip()]
    errors = [line for line in lines if re.search(r"\w*(Error|Exception|NotImplemented|Fail)\b.*:", line)]
    named = [line for line in errors if "Exception from" not in line]
    return (named or lines or [f"exit code {done.returncode}"])[-1]


def _openvino_products(layers: Sequence[Mapping[str, str]]) -> tuple[int, int]:
    products = [layer for layer in layers if layer["layerType"] in _OPENVINO_PRODUCTS]
    return sum(layer["runtimePrecision"] in _OPENVINO_INTEGERS for layer in products), len(products)


def _profiled_products(profile: str) -> tuple[int, int]:
    """Of every node once. Older releases also note the time before and after each kernel, as events of their own."""
    events = (
        event for event in json.loads(profile) if event["cat"] == "Node" and event["name"].endswith("_kernel_time")
    )
    kernels = {event["name"]: event.get("args", {}).get("op_name") for event in events}.values()
    return sum(kernel in INTEGER_KERNELS for kernel in kernels), sum(kernel in PRODUCT_KERNELS for kernel in kernels)


def _reference(model: Path, images: Array) -> Array:
    from onnx.reference import ReferenceEvaluator

    evaluator = ReferenceEvaluator(str(model))
    found: Array = evaluator.run(None, {evaluator.input_names[0]: images})[0]  # type: ignore[index]
    return found
