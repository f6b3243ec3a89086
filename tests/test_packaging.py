"""What a user installs: the wheel's and the source distribution's contents."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from email import message_from_bytes
from email.message import Message
from pathlib import Path

import pytest

from ptq4vit_onnx import __version__
from ptq4vit_onnx.images.builtin import PHOTOS

ROOT = Path(__file__).resolve().parent.parent
LEFT_OUT = shutil.ignore_patterns(".*", "__pycache__", "build", "dist", "*.egg-info", "*_w[2-8]a[2-8]", "node_modules")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist, and the wheel made from it.

    Built from a copy, so that the work tree stays clean. Where the environment has no setuptools of its own the
    build fetches it from the package index, as `pip install` does.
    """
    place = tmp_path_factory.mktemp("build")
    shutil.copytree(ROOT, place / "source", symlinks=True, ignore=LEFT_OUT)
    command = [sys.executable, "-m", "build", "--outdir", str(place / "dist"), str(place / "source")]
    if importlib.util.find_spec("setuptools"):
        command.insert(3, "--no-isolation")
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return place / "dist"


@pytest.fixture(scope="module")
def wheel(built: Path) -> zipfile.ZipFile:
    return zipfile.ZipFile(next(built.glob("*.whl")))


def tree(folder: str, prefix: str) -> set[str]:
    """Every file below a folder, as a path below `prefix`. Links such as ptq4vit_onnx/passes are not followed."""
    found = (Path(place) / name for place, _, names in os.walk(ROOT / folder) for name in names)
    files = [file for file in found if "__pycache__" not in file.parts]
    return {f"{prefix}/{file.relative_to(ROOT / folder).as_posix()}" for file in files}


def package_files() -> set[str]:
    """Every file of every room, as the wheel must hold it: a room is packed because of where it lies."""
    linked = (tree(folder, f"ptq4vit_onnx/{folder}") for folder in ("passes", "models"))
    return tree("ptq4vit_onnx", "ptq4vit_onnx").union(*linked)


def test_the_wheel_holds_every_file_of_every_room_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    """A room that pyproject's `packages` or `package-data` forgets is missing from what users install."""
    packed = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert package_files() - packed == set(), "name the room in pyproject.toml: packages, or package-data"
    assert packed - package_files() == set()


def test_every_room_counts_as_one_that_must_be_packed() -> None:
    rooms = {path.split("/")[1] for path in package_files() if path.count("/") > 1}
    folders = {file.parent.name for file in (ROOT / "ptq4vit_onnx").glob("*/__init__.py")}
    assert rooms == folders and {"passes", "models", "plan", "report"} <= rooms


def test_the_wheel_holds_the_embedded_models_images_and_licences(wheel: zipfile.ZipFile) -> None:
    names = set(wheel.namelist())
    for name in ("vit_digits.safetensors", "swin_digits.safetensors", "digits.npz", "LICENSE-digits.txt"):
        assert f"ptq4vit_onnx/models/digits/{name}" in names
    assert {f"ptq4vit_onnx/models/photos/{name}.jpg" for name in PHOTOS} <= names
    assert "ptq4vit_onnx/py.typed" in names
    for name in ("LICENSE-digits.txt", "LICENSE-photos.txt"):
        assert any(".dist-info/licenses/" in entry and entry.endswith(name) for entry in names)
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)
    for name in ("vit_digits", "swin_digits"):
        assert wheel.getinfo(f"ptq4vit_onnx/models/digits/{name}.safetensors").file_size <= 2_000_000


def test_the_wheel_holds_the_templates_of_the_report(wheel: zipfile.ZipFile) -> None:
    templates = tree("ptq4vit_onnx/report/templates", "ptq4vit_onnx/report/templates")
    assert "ptq4vit_onnx/report/templates/report.html" in templates <= set(wheel.namelist())


def test_the_wheel_puts_nothing_generic_into_site_packages(wheel: zipfile.ZipFile) -> None:
    tops = {name.partition("/")[0] for name in wheel.namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"ptq4vit_onnx"}
    entries = next(name for name in wheel.namelist() if name.endswith("entry_points.txt"))
    assert "ptq4vit-onnx = ptq4vit_onnx.__main__:main" in wheel.read(entries).decode()


@pytest.fixture(scope="module")
def metadata(wheel: zipfile.ZipFile) -> Message:
    """What a package index reads."""
    return message_from_bytes(wheel.read(next(name for name in wheel.namelist() if name.endswith("/METADATA"))))


def test_the_index_is_told_who_what_and_for_which_pythons(metadata: Message) -> None:
    assert metadata["Name"] == "ptq4vit-onnx" and metadata["Version"] == __version__
    for key in ("Summary", "Author", "Keywords", "License-Expression"):
        assert metadata[key], key
    classifiers = metadata.get_all("Classifier", [])
    assert "Development Status :: 5 - Production/Stable" in classifiers
    assert not [name for name in classifiers if name.startswith("License ::")], "an index refuses it next to a licence"
    pythons = [name.rpartition(" :: ")[2] for name in classifiers if re.search(r"Python :: 3\.\d+$", name)]
    assert f">={pythons[0]}" == metadata["Requires-Python"]


def test_the_licence_names_that_of_every_file_in_the_wheel(metadata: Message) -> None:
    """CC BY 4.0 and CC0 1.0 of a folder's own licence file -> CC-BY-4.0 and CC0-1.0 in the expression."""
    texts = [file.read_text(encoding="utf-8") for file in (ROOT / "models").glob("*/LICENSE-*.txt")]
    found = {name.replace(" ", "-") for text in texts for name in re.findall(r"\bCC(?: BY|0) \d\.\d", text)}
    assert len(texts) == 2 and {"Apache-2.0", *found} == set(metadata["License-Expression"].split(" AND "))


def test_the_page_of_the_index_needs_nothing_beside_it(metadata: Message) -> None:
    """An index renders the description alone: a relative link leads nowhere there, and pictures of HTML are dropped."""
    page = metadata.get_payload()
    assert metadata["Description-Content-Type"] == "text/markdown" and isinstance(page, str)
    assert page.lstrip().startswith("# ptq4vit-onnx")
    prose = re.sub(r"```.*?```", "", page, flags=re.DOTALL)
    assert re.findall(r"\]\((?!https://)[^)]*\)|<[a-z!][^>]*>", prose) == []


def test_the_page_of_the_index_says_what_the_readme_says(metadata: Message) -> None:
    """Its limits, its Python and its first paragraph are the README's, word for word."""
    page, readme = str(metadata.get_payload()), (ROOT / "README.md").read_text(encoding="utf-8")
    for pattern in (r"\n## Limits\n.*?(?=\n## )", r"```python\n.*?```", r"# ptq4vit-onnx\n\n.*?\n\n"):
        found = [re.findall(pattern, text, re.DOTALL) for text in (page, readme)]
        assert found[0] and found[0] == found[1], "change PACKAGE.md and README.md alike"


def test_the_wheel_runs_without_the_source_tree(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    wheel.extractall(tmp_path / "installed")
    script = (
        "import sys; sys.path.insert(0, sys.argv.pop(1))\n"
        "import ptq4vit_onnx.float_export.bind_sites, ptq4vit_onnx.passes, ptq4vit_onnx.cli.main as cli\n"
        "from ptq4vit_onnx.models.specs import find\n"
        "assert find('vit_digits').checkpoint.is_file()\n"
        "print(cli.__file__); sys.exit(cli.main(['models']))"
    )
    command = [sys.executable, "-P", "-c", script, str(tmp_path / "installed")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(tmp_path / "installed" / "ptq4vit_onnx" / "cli" / "main.py"))
    assert "swin_digits" in done.stdout


def test_the_source_distribution_holds_what_the_wheel_is_made_from(built: Path) -> None:
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    for folder in ("ptq4vit_onnx", "passes", "models"):
        assert tree(folder, folder) - names == set()
    assert {"pyproject.toml", "LICENSE", "README.md"} <= names
    pages = {f"docs/{file.name}" for file in (ROOT / "docs").glob("*.md")}
    assert pages | {"CHANGELOG.md", "CITATION.cff", "SECURITY.md"} <= names, "PACKAGE.md says that they are in it"
    assert len(list(built.glob("*.whl"))) == 1, "the wheel was built from it"


def test_the_links_in_the_package_point_to_the_two_folders() -> None:
    for name in ("passes", "models"):
        link = ROOT / "ptq4vit_onnx" / name
        assert link.is_symlink() and link.resolve() == ROOT / name


def test_the_lower_bounds_are_the_oldest_set_that_is_tested() -> None:
    tomllib = pytest.importorskip("tomllib")  # Python 3.11
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    named = [*project["dependencies"], *extras["transformers"], *extras["openvino"]]
    assert set(extras["transformers"] + extras["openvino"]) <= set(extras["dev"])
    bounds = dict(item.partition(",")[0].split(">=") for item in named)  # an upper bound is none of these
    lines = (ROOT / "constraints-oldest.txt").read_text(encoding="utf-8").splitlines()
    pins = dict(line.lower().split("==") for line in lines if not line.startswith("#"))
    assert {name: whole(number) for name, number in bounds.items()} == {name: whole(n) for name, n in pins.items()}


def whole(version: str) -> list[int]:
    """2.13 and 2.13.0 are one version."""
    numbers = [int(number) for number in re.findall(r"\d+", version)]
    return numbers + [0] * (3 - len(numbers))
