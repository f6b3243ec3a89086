"""Tries a wheel as its user does: a fresh environment outside of this repository, one line for each step.

    python tools/try_wheel.py dist/*.whl --python python3.10 --python python3.13
    python tools/try_wheel.py dist/*.whl --python python3.11 --constraints constraints.txt

Each Python gets an environment of its own, which is deleted afterwards. A step that fails ends the steps of its Python
and its last lines are printed; the exit code is then 1. Installing takes the package index, and a few gigabytes of disk
where that has only a CUDA build of torch. pip's own settings hold (PIP_FIND_LINKS, PIP_EXTRA_INDEX_URL).
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

MODEL, FLOAT = "vit_digits_w8a8/model.onnx", "vit_digits_w8a8/float.onnx"
COMMANDS = (
    ("--version",),
    ("--help",),
    ("models",),
    ("export",),
    ("eval", FLOAT, MODEL),
    ("parity", MODEL, "--reference", FLOAT, "--require-plan"),
)
SHOWN = ("torch", "timm", "onnx", "onnxruntime", "onnxscript", "numpy", "protobuf", "pydantic")
VERSIONS = (
    "import platform; from importlib.metadata import version\n"
    f"print('Python', platform.python_version(), *(f'{{name}} {{version(name)}}' for name in {SHOWN}))"
)
OURS = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "PTQ4VIT_DATA")  # an installed package has to do without
Step = tuple[str, Sequence[str]]


def steps(place: Path, python: str, wheel: Path, constraints: Path | None) -> Iterator[Step]:
    """(what is printed, command) of one Python, in order."""
    inside = str(place / "environment" / "bin" / "python")
    tool = str(place / "environment" / "bin" / "ptq4vit-onnx")
    pinned = ["-c", str(constraints)] if constraints else []
    yield "environment", [python, "-m", "venv", str(place / "environment")]
    yield "install", [inside, "-m", "pip", "install", "--disable-pip-version-check", *pinned, str(wheel)]
    yield "pip check", [inside, "-m", "pip", "check", "--disable-pip-version-check"]
    yield "versions", [inside, "-c", VERSIONS]
    for command in COMMANDS:
        yield f"ptq4vit-onnx {' '.join(command)}", [tool, *command]


def tried(python: str, wheel: Path, constraints: Path | None) -> bool:
    """Whether every step of one Python ends well."""
    print(python)
    with tempfile.TemporaryDirectory(prefix="ptq4vit_onnx_wheel_") as folder:
        work = Path(folder) / "work"
        work.mkdir()
        return all(_done(name, command, work) for name, command in steps(Path(folder), python, wheel, constraints))


def _done(name: str, command: Sequence[str], work: Path) -> bool:
    surroundings = {key: value for key, value in os.environ.items() if key not in OURS}
    start = time.monotonic()
    try:
        done = subprocess.run(
            command, cwd=work, env=surroundings, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
    except FileNotFoundError:
        print(f"  FAILED  {name}: there is no {command[0]}", flush=True)
        return False
    seconds = f"{time.monotonic() - start:.0f} s"
    if done.returncode:
        print(
            f"  FAILED  {name} (exit code {done.returncode}, {seconds})", *done.stdout.splitlines()[-15:], sep="\n    "
        )
        return False
    print(f"  passed  {name} ({seconds})" + (f": {done.stdout.strip()}" if name == "versions" else ""), flush=True)
    return True


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--python", action="append", metavar="PYTHON", help="an interpreter; repeat it (this one)")
    parser.add_argument("--constraints", type=Path, metavar="FILE", help="pins for pip (the newest that fit)")
    parsed = parser.parse_args(arguments)
    for file in filter(None, (parsed.wheel, parsed.constraints)):
        if not file.is_file():
            parser.error(f"there is no file {file}")
    constraints = parsed.constraints.resolve() if parsed.constraints else None
    results = [tried(python, parsed.wheel.resolve(), constraints) for python in parsed.python or [sys.executable]]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
