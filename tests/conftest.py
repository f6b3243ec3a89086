"""The embedded models, their exports, digits as files, and commands: refused, or in an interpreter of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from ptq4vit_onnx.cli import main as cli
from ptq4vit_onnx.plan.scale_plan import ScalePlan
from ptq4vit_onnx.plan.sites import Site

# Before any test module imports torch: its threads spin while they wait, which next to other work is ten times slower.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# A shell's job in the background ignores Ctrl-C, and so would the processes that tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = Path(__file__).resolve().parent.parent
pytest_plugins = ["tests.small_graphs", "tests.small_exports"]


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("fuzz")
    group.addoption("--fuzz-examples", type=int, default=0, help="files of each kind that tests/fuzz tries (about 100)")
    group.addoption("--fuzz-seed", type=int, default=None, help="try others than always the same")


# The embedded models and their float exports, made once per session: an export takes seconds.


@dataclass(frozen=True)
class FloatExport:
    """A loaded model, its sites, and the onnx.ModelProto made of it."""

    model: Any
    sites: list[Site]
    proto: onnx.ModelProto


@pytest.fixture(scope="session")
def load_model() -> Callable[[str], Any]:
    """name -> the embedded model with its own weights."""
    from functools import cache

    from ptq4vit_onnx.model_loading.load import load, resolve

    return cache(lambda name: load(resolve(name)))


@pytest.fixture(scope="session")
def float_export(load_model: Callable[[str], Any]) -> Callable[..., FloatExport]:
    """(name, batch) -> the embedded model as float ONNX; batch None: dynamic."""
    from functools import cache

    import torch

    from ptq4vit_onnx.float_export.exporter import export_float
    from ptq4vit_onnx.network.discovery import discover

    @cache
    def make(name: str, batch: int | None) -> FloatExport:
        model = load_model(name)
        sites = discover(model.module, torch.zeros(1, *model.preprocessing.size))
        return FloatExport(model, sites, export_float(model, sites, batch))

    return lambda name, batch=None: make(name, batch)


@pytest.fixture
def quick_spine(float_export: Callable[..., FloatExport], monkeypatch: pytest.MonkeyPatch) -> None:
    """For exports through the spine: this session's float file instead of another, 20 test images instead of 500."""
    from ptq4vit_onnx import pipeline
    from ptq4vit_onnx.float_export import exporter
    from ptq4vit_onnx.images.choice import ChosenImages, choose_images

    def cached(model: Any, _sites: Any, batch: int | None = None) -> onnx.ModelProto:
        proto = onnx.ModelProto()
        proto.CopyFrom(float_export(model.name, batch).proto)
        return proto

    def few(*arguments: Any) -> ChosenImages:
        chosen = choose_images(*arguments)
        return replace(chosen, measured=chosen.measured.part(slice(20)))

    monkeypatch.setattr(exporter, "export_float", cached)
    monkeypatch.setattr(pipeline, "choose_images", few)


@pytest.fixture(scope="session")
def environments(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where other engines are installed: a folder that PTQ4VIT_ENVIRONMENTS names and that is kept, else one for the
    session."""
    kept = os.environ.get("PTQ4VIT_ENVIRONMENTS")
    return Path(kept) if kept else tmp_path_factory.mktemp("environments")


@pytest.fixture(scope="session")
def digits(load_model: Callable[[str], Any]) -> np.ndarray[Any, Any]:
    """The first eight embedded test images, preprocessed."""
    from ptq4vit_onnx.images.embedded import embedded_digits

    return embedded_digits(load_model("vit_digits").preprocessing, "test").images[:8]


# For the tests of commands: an export of vit_digits without its proof, digits as files, and what a refusal says.


@pytest.fixture(scope="session")
def exported(float_export: Callable[..., FloatExport], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with float.onnx, model.onnx and plan.json of vit_digits, hastily calibrated."""
    import torch

    from ptq4vit_onnx.calibration.calibrate import calibrate
    from ptq4vit_onnx.images.embedded import embedded_digits
    from ptq4vit_onnx.network.tape import record
    from ptq4vit_onnx.passes import quantize
    from ptq4vit_onnx.plan.options import Options
    from ptq4vit_onnx.plan.plan_json import write_plan

    made = float_export("vit_digits")
    images = torch.from_numpy(embedded_digits(made.model.preprocessing, "calibration", 32).images)
    options = Options(candidates=10, rounds=1, twin="softmax")
    found = calibrate(record(made.model.module, images), options, pixels=made.model.pixel_grid)
    assert found["blocks.0.mlp.fc1"].channels is not None, "some norms are to have channels folded in"
    sites = {site.name: found[site.name] for site in made.sites}
    plan = ScalePlan("vit_digits", made.model.fingerprint, "", {}, {}, sites)
    folder = tmp_path_factory.mktemp("exported")
    write_plan(plan, folder / "plan.json")
    onnx.save(made.proto, folder / "float.onnx")
    onnx.save(quantize(made.proto, plan)[0], folder / "model.onnx")
    return folder


@pytest.fixture(scope="session")
def digit_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of 24 test digits as PNG, with a labels.csv that has a column `fold`: 0, 1, 2, 0, .."""
    from PIL import Image

    from ptq4vit_onnx.models.specs import DIGITS_FOLDER

    folder = tmp_path_factory.mktemp("digits")
    with np.load(DIGITS_FOLDER / "digits.npz", allow_pickle=False) as data:
        chosen = np.flatnonzero(data["split"] == 2)[:24]
        images, labels = data["images"][chosen], data["labels"][chosen]
    rows = ["file,index,fold"]
    for number, (image, label) in enumerate(zip(images, labels, strict=True)):
        Image.fromarray(np.round(image * (255 / 16)).astype(np.uint8)).save(folder / f"{number:02}.png")
        rows.append(f"{number:02}.png,{label},{number % 3}")
    (folder / "labels.csv").write_text("\n".join(rows) + "\n")
    return folder


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """(command, *arguments) -> the line on standard error of a call that exits with 2 and prints nothing else."""

    def call(*arguments: Any) -> str:
        try:
            code: Any = cli.main([*map(str, arguments)])
        except SystemExit as stop:
            code = stop.code
        printed = capsys.readouterr()
        assert (code, printed.out) == (2, "")
        assert printed.err.count("\n") == 1, printed.err
        return printed.err

    return call


# In a fresh interpreter: what a script or a command imports is seen only where nothing has been imported before.


@dataclass(frozen=True)
class Answer:
    """Of a command: its exit code, what it wrote to standard error, and the modules it loaded by dotted names."""

    code: int
    error: str
    modules: set[str]


@pytest.fixture
def run_python() -> Callable[..., subprocess.CompletedProcess[str]]:
    """(script, *arguments) -> the script, run to its end by an interpreter that imports from this checkout."""

    def run(script: str, *arguments: Any) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", script, *map(str, arguments)]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60)
        assert done.returncode == 0, done.stderr
        return done

    return run


@pytest.fixture
def answer_of(run_python: Callable[..., subprocess.CompletedProcess[str]]) -> Callable[..., Answer]:
    """(command, *arguments) -> its answer in a fresh interpreter."""
    script = (
        "import sys\nfrom ptq4vit_onnx.cli import main as cli\n"
        "try: code = cli.main(sys.argv[1:])\n"
        "except SystemExit as stop: code = stop.code\n"
        "print('\\nMODULES', code, *sys.modules)"
    )

    def call(*arguments: Any) -> Answer:
        done = run_python(script, *arguments)
        code, *modules = done.stdout.rpartition("MODULES")[2].split()
        return Answer(int(code), done.stderr, set(modules))

    return call
