"""Every listed model with random weights, exported as a user would: benchmarks/results/all_models.json.

    python benchmarks/all_models.py [--model NAME ...] [--images 32]

One `export` each, in a process of its own, with the defaults (W8A8, the built-in photos), on one thread. Structure,
sizes, time and memory do not depend on the weights; accuracy would, so it is not kept.
`calibration s`, `export s`: by the clock, of the calibration and of the whole command. `cpu s`: of all its threads,
which others on the machine change less. `peak GB`: the most resident memory. `load ms`: from the file to a session of
ONNX Runtime, in a process of its own, the median of --loads. Rows of this commit are not measured again.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks import results
from benchmarks.file_size import SMALL, load_once
from benchmarks.measured_code import ROOT
from ptq4vit_onnx.models.specs import SPECS

PAPER = [spec.name for spec in SPECS if spec.name not in ("vit_t", "deit_t") and "digits" not in spec.name]
KEY = ("model",)


def measure(name: str, images: int, loads: int, folder: Path) -> dict[str, Any]:
    out = folder / name
    command = ["export", "--model", name, "--random-weights", "--images", str(images), "--output", str(out), "--json"]
    started = time.perf_counter()
    printed, usage = finished([sys.executable, "-m", "ptq4vit_onnx", *command], folder / "printed.json")
    seconds = time.perf_counter() - started
    report = json.loads(printed)
    small = folder / "small.onnx"
    onnx.save(onnx.parser.parse_model(SMALL), small)
    return {
        "model": name, "images": images, **structure(report), **sizes(report),
        "load ms": load_ms(small, out / "model.onnx", loads),
        "float load ms": load_ms(small, out / "float.onnx", loads),
        "calibration s": report["seconds"]["calibrate"], "export s": seconds,
        "cpu s": usage.ru_utime + usage.ru_stime, "peak GB": usage.ru_maxrss * 1024 / 1e9,
    }  # fmt: skip


def finished(command: Sequence[str], printed: Path) -> tuple[str, Any]:
    """What the command printed, and what it used; it runs on one thread."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with printed.open("w") as file:
        process = subprocess.Popen(command, stdout=file, cwd=ROOT, env=environment)
        _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{' '.join(command)} ended with {os.waitstatus_to_exitcode(status)}")
    return printed.read_text(encoding="utf-8"), usage


def structure(report: Mapping[str, Any]) -> dict[str, Any]:
    products, parity = report["kernels"]["products"], report["site_parity"]
    return {
        "sites": report["sites"], "products": len(products) + len(report["float_products"]),
        "integer products": sum(item["integer"] for item in products),
        "checked": len(parity), "exact": sum(item["exact"] for item in parity),
        "identical percent": report["end_to_end"]["identical"], "measured images": report["end_to_end"]["images"],
    }  # fmt: skip


def sizes(report: Mapping[str, Any]) -> dict[str, float]:
    return {"MB": report["bytes"]["model"] / 1e6, "float MB": report["bytes"]["float"] / 1e6}


def load_ms(small: Path, path: Path, loads: int) -> float:
    """The first load is not timed: it fetches the file from the disk."""
    return statistics.median([load_once(small, path, "onnxruntime") for _ in range(loads + 1)][1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="+", default=PAPER, choices=[spec.name for spec in SPECS])
    parser.add_argument("--images", type=int, default=32)
    parser.add_argument("--loads", type=int, default=5)
    parsed = parser.parse_args()
    for name in parsed.model:
        if results.has("all_models", {"model": name, "images": parsed.images}):
            continue
        with tempfile.TemporaryDirectory() as folder:
            row = measure(name, parsed.images, parsed.loads, Path(folder))
        print(row, flush=True)
        results.add("all_models", row, KEY, threads=1, weights="random", bits="W8A8")


if __name__ == "__main__":
    main()
