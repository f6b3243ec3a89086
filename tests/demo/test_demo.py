"""docs/demo and examples/node: models in WebAssembly, in Node and in Chromium, next to Python's ONNX Runtime."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from PIL import Image

from ptq4vit_onnx.images.preprocessing import Preprocessing
from ptq4vit_onnx.models.specs import DIGITS_FOLDER
from ptq4vit_onnx.passes import quantize
from ptq4vit_onnx.plan.file_layout import InputType
from ptq4vit_onnx.plan.plan_json import read_plan
from ptq4vit_onnx.runtime.feeding import as_fed
from tests.demo import pillow_cases

ROOT = Path(__file__).resolve().parents[2]
DEMO, EXAMPLE = ROOT / "docs" / "demo", ROOT / "examples" / "node"
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FILES = ("float.onnx", "model.onnx")
IMAGES = 100
OLDEST_NODE = 20
# What npm says where the registry cannot be reached or does not have the package: no defect of ours.
UNREACHABLE = re.compile(
    r"ENOTFOUND|ECONNREFUSED|ECONNRESET|ETIMEDOUT|EAI_AGAIN|ENETUNREACH|E40[134]\b|E50\d|ENOTCACHED"
)
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Exports:
    """folder: as docs/demo/test/expected.js describes it. logits: of floats/model.onnx, by Python."""

    folder: Path
    logits: Array


@pytest.fixture(scope="module")
def exports(
    exported: Path,
    float_export: Callable[..., Any],
    sample_indices: list[int],
    tmp_path_factory: pytest.TempPathFactory,
) -> Exports:
    """vit_digits twice, as floats and as bytes, with Python's logits of the page's samples and more test digits."""
    folder = tmp_path_factory.mktemp("exports")
    grey = digits_of(sample_indices)
    encoded = [base64.b64encode(image.tobytes()).decode() for image in grey]
    (folder / "images.json").write_text(json.dumps({"width": 8, "height": 8, "channels": 1, "images": encoded}))
    Image.fromarray(grey[-1]).save(folder / "digit.png")
    made, plan = float_export("vit_digits"), read_plan(exported / "plan.json")
    forms: dict[str, InputType] = {"floats": "float", "bytes": "uint8"}
    for name, taken in forms.items():
        (folder / name).mkdir()
        onnx.save(made.proto, folder / name / "float.onnx")
        onnx.save(quantize(made.proto, plan, input=taken)[0], folder / name / "model.onnx")
        logits = {file: run(folder / name / file, grey, made.model.preprocessing).tolist() for file in FILES}
        (folder / name / "logits.json").write_text(json.dumps(logits))
    return Exports(folder, run(folder / "floats" / "model.onnx", grey, made.model.preprocessing))


@pytest.fixture(scope="module")
def sample_indices() -> list[int]:
    found = re.findall(r"index: (\d+)", (DEMO / "lib" / "samples.js").read_text(encoding="utf-8"))
    return [int(index) for index in found]


def digits_of(first: list[int]) -> Array:
    """Grey images [n, 8, 8], uint8: those of `first`, then others of the test split."""
    with np.load(DIGITS_FOLDER / "digits.npz", allow_pickle=False) as data:
        others = [int(index) for index in np.flatnonzero(data["split"] == 2) if index not in first]
        codes = data["images"][[*first, *others][:IMAGES]]
    grey: Array = np.round(codes * (255 / 16)).astype(np.uint8)
    return grey


def run(path: Path, grey: Array, rule: Preprocessing) -> Array:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    images = np.stack([rule.apply(Image.fromarray(image)) for image in grey])
    logits: Array = session.run(None, {"image": as_fed(session, images)})[0]
    return logits


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of docs/demo and examples/node with their packages installed as the lock files say."""
    require_node()
    place = tmp_path_factory.mktemp("checkout")
    for folder in (DEMO, EXAMPLE):
        copy = place / folder.relative_to(ROOT)
        shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("node_modules", "model"))
        done = call(copy, "npm", "ci", "--ignore-scripts", "--prefer-offline", "--no-audit", "--no-fund")
        if done.returncode and (why := UNREACHABLE.search(done.stderr)):
            pytest.skip(f"npm cannot have the packages of {folder.relative_to(ROOT)}: {why.group()}")
        assert done.returncode == 0, done.stderr
    return place


def require_node() -> None:
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("no node or no npm on this machine, so the page's scripts cannot run")
    version = subprocess.run(["node", "--version"], check=True, capture_output=True, text=True).stdout
    if int(version.removeprefix("v").split(".")[0]) < OLDEST_NODE:
        pytest.skip(f"node {version.strip()} is older than {OLDEST_NODE}")


def call(folder: Path, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **variables}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)


def run_tests(installed: Path, exports: Exports, *files: str, **variables: str) -> str:
    """`node --test` of these files; its output, once it has passed."""
    command = ["node", "--test", "--test-reporter=tap", *(f"test/{file}.test.js" for file in files)]
    done = call(installed / "docs" / "demo", *command, PTQ4VIT_DEMO_EXPORTS=str(exports.folder), **variables)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert int(re.findall(r"^# pass (\d+)", done.stdout, re.M)[-1]) > 0
    return done.stdout


def test_the_scripts_pass_their_own_tests(installed: Path) -> None:
    done = call(installed / "docs" / "demo", "npm", "test", PTQ4VIT_DEMO_EXPORTS="")
    assert done.returncode == 0, done.stdout[-4000:]
    assert "PTQ4VIT_DEMO_EXPORTS names no folder" in done.stdout, "tests of models say why they skip"


def test_wasm_predicts_what_python_predicts(installed: Path, exports: Exports) -> None:
    """The limits are in inference.test.js; here, that it looked at every file and image, and skipped nothing."""
    said = run_tests(installed, exports, "inference")
    found = re.findall(r"(\w+/\w+\.onnx): (\d+) of (\d+) predictions equal, logits bit-equal on (\d+)", said)
    assert [name for name, *_ in found] == [f"{kind}/{file}" for kind in ("floats", "bytes") for file in FILES]
    assert all(int(count) == IMAGES and int(equal) >= 0.98 * IMAGES for _, equal, count, _ in found), found


def test_the_page_predicts_what_python_predicts_in_chromium(installed: Path, exports: Exports, tmp_path: Path) -> None:
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine, so the page cannot be looked at")
    said = run_tests(installed, exports, "page", PTQ4VIT_DEMO_SHOTS=str(tmp_path))
    assert "# skipped 0" in said
    pages = {
        scheme: np.asarray(Image.open(tmp_path / f"1280-{scheme}.png").convert("RGB")) for scheme in ("light", "dark")
    }
    assert pages["light"][2, 2].min() > 200 and pages["dark"][2, 2].max() < 55
    for picture in pages.values():
        assert np.unique(picture.reshape(-1, 3), axis=0).shape[0] > 50, "text, bars and pictures are drawn"


def test_the_node_example_names_the_likeliest_class(installed: Path, exports: Exports) -> None:
    model, image = exports.folder / "floats" / "model.onnx", exports.folder / "digit.png"
    done = call(installed / "examples" / "node", "node", "classify.mjs", str(model), str(image))
    assert done.returncode == 0, done.stderr
    name, *classes = done.stdout.split()
    found = [int(entry.split(":")[0]) for entry in classes]
    assert name == str(image) and len(found) == 5
    assert found[0] == int(exports.logits[-1].argmax())


def test_the_node_example_says_how_it_is_used(installed: Path) -> None:
    done = call(installed / "examples" / "node", "node", "classify.mjs")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("usage: node classify.mjs MODEL.onnx") and done.stderr.count("\n") == 1


def test_the_samples_are_the_first_test_digit_of_each_class(sample_indices: list[int]) -> None:
    text = (DEMO / "lib" / "samples.js").read_text(encoding="utf-8")
    with np.load(DIGITS_FOLDER / "digits.npz", allow_pickle=False) as data:
        tested = np.flatnonzero(data["split"] == 2)
        expected = [int(tested[data["labels"][tested] == label][0]) for label in range(10)]
        codes = ["".join("0123456789abcdefg"[shade] for shade in data["images"][index].flat) for index in expected]
    assert sample_indices == expected
    assert re.findall(r'codes: "(\w+)"', text) == codes


def test_the_fixture_is_what_pillow_computes() -> None:
    """`python tests/demo/pillow_cases.py` writes it again."""
    assert pillow_cases.FIXTURE.read_text(encoding="utf-8") == pillow_cases.text()


@pytest.mark.parametrize("folder", [DEMO, EXAMPLE], ids=["demo", "example"])
def test_lock_files_pin_every_package_by_hash_and_name_no_registry(folder: Path) -> None:
    text = (folder / "package-lock.json").read_text(encoding="utf-8")
    packages = {name: entry for name, entry in json.loads(text)["packages"].items() if name}
    assert "node_modules/onnxruntime-web" in packages
    assert all(entry["integrity"].startswith("sha512-") for entry in packages.values())
    assert "resolved" not in text and "://" not in text
