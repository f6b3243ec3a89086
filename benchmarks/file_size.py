"""What packed weights save on disk and cost when a model loads, in each engine, next to the paper's Size column.

    python benchmarks/file_size.py [--model deit_s deit_b] [--variant none/w8a8 none/w6a6 none/w4a4] [--runs 7]
                                   [--engine onnxruntime openvino] [--before DIR] [--keep DIR]

Random weights and a hasty plan (sizes and load times do not depend on them); variants are those of benchmarks/speed.py.
Each engine loads the file that is made for it (`export --target`). "as bytes": the same model with its weights left as
int8. "before": DIR/MODEL/VARIANT.onnx, files that older code has written with `speed.py --keep DIR`; those that are
missing are left out.
Load time: from the file to a model that can be run, one thread. Every load has a process of its own, in which the
engine has opened a small model before. Loads take turns; medians and quartiles. Rows go to benchmarks/results/.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import onnx

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks import measured_code, results
from benchmarks.nncf_peer import say
from benchmarks.speed import KNOWN, OPENVINO, Subject, build, file_of, open_subject, options_of, planned, target_of
from ptq4vit_onnx import passes
from ptq4vit_onnx.graph.model_proto import file_bytes, load
from ptq4vit_onnx.passes.pack_weights import PackWeights
from ptq4vit_onnx.proof.prove import quantize_model
from ptq4vit_onnx.runtime.engines import ENGINES, TITLES, EngineName

DEFAULT = ("none/w8a8", "none/w6a6", "none/w4a4")
PAPER_MB = {"deit_s": {8: 22.0, 6: 16.5}, "deit_b": {8: 86.0, 6: 64.5, 4: 43.0}}
SMALL = '<ir_version: 8, opset_import: ["" : 17]> g (float[n,4] x) => (float[n,4] y) { y = Relu (x) }'
LOAD = """
import sys, time
from pathlib import Path
from ptq4vit_onnx.runtime.engines import open_model
small, path, engine = sys.argv[1:]
open_model(Path(small), engine)
start = time.perf_counter()
open_model(Path(path), engine)
print(1000 * (time.perf_counter() - start))
"""


@dataclass(frozen=True)
class File:
    """kind: now, as bytes, or before. paths: by engine. bits: of the weights; None: float."""

    model: str
    variant: str
    kind: str
    paths: Mapping[EngineName, Path] = field(hash=False)
    bits: int | None = None

    @property
    def paper_mb(self) -> float | None:
        return None if self.bits is None or self.kind != "now" else PAPER_MB.get(self.model, {}).get(self.bits)


def as_bytes(subject: Subject, variant: str) -> Path:
    """The variant once more, its weights not packed."""

    def leave(_self: Any, _work: Any) -> int:
        return 0

    idle = type("PackWeights", (PackWeights,), {"apply": leave, "ensures": ()})
    path = subject.path(variant).with_suffix(".bytes.onnx")
    with mock.patch.object(passes, "PASSES", tuple(idle if item is PackWeights else item for item in passes.PASSES)):
        quantize_model(load(subject.float_path), subject.plan(variant), path, target=target_of(variant))
    return path


def files_of(name: str, variants: Sequence[str], folder: Path, before: Path | None) -> Iterable[File]:
    """The float file, then each variant as it is, as bytes where it is packed, and as it was."""
    subject = open_subject(name, folder / name)
    build(subject, [form for variant in variants for form in forms(variant).values()])
    yield File(name, "float", "now", dict.fromkeys(ENGINES, subject.float_path))
    for variant in variants:
        bits = options_of(variant, real=False).weight_bits
        yield File(name, variant, "now", {engine: subject.path(form) for engine, form in forms(variant).items()}, bits)
        if bits < 8:
            unpacked = {engine: as_bytes(subject, form) for engine, form in forms(variant).items()}
            yield File(name, variant, "as bytes", unpacked, bits)
        old = None if before is None else before / name / subject.path(variant).name
        if old is not None and old.is_file():
            yield File(name, variant, "before", dict.fromkeys(ENGINES, old), bits)


def forms(variant: str) -> dict[EngineName, str]:
    """none/w6a6 in each engine, as benchmarks/speed.py names it."""
    return {engine: f"{OPENVINO}{variant}" if engine == "openvino" else variant for engine in ENGINES}


def load_once(small: Path, path: Path, engine: EngineName) -> float:
    """Milliseconds, in a process of its own."""
    command = [sys.executable, "-c", LOAD, str(small), str(path), engine]
    done = subprocess.run(command, capture_output=True, text=True, cwd=measured_code.ROOT)
    if done.returncode:
        raise SystemExit(f"{engine} cannot load {path}: {(done.stderr.strip() or 'no message').splitlines()[-1]}")
    return float(done.stdout)


def measure(files: Sequence[File], engines: Sequence[EngineName], runs: int, folder: Path) -> list[dict[str, Any]]:
    """A row for each file and engine. The first load of each is not timed: it fetches the file from the disk."""
    small = folder / "small.onnx"
    onnx.save(onnx.parser.parse_model(SMALL), small)
    seen: dict[tuple[File, EngineName], list[float]] = {(file, engine): [] for file in files for engine in engines}
    for turn in range(runs + 1):
        say(f"load {turn} of {runs}")
        for (file, engine), times in seen.items():
            times.append(load_once(small, file.paths[engine], engine))
    return [row(file, engine, times[1:]) for (file, engine), times in seen.items()]


def row(file: File, engine: EngineName, times: Sequence[float]) -> dict[str, Any]:
    low, median, high = (round(float(value), 1) for value in np.percentile(times, (25, 50, 75)))
    return {
        "model": file.model, "variant": file.variant, "kind": file.kind, "engine": engine,
        "MB": round(file_bytes(file.paths[engine]) / 1e6, 2), "paper MB": file.paper_mb,
        "load ms": median, "low": low, "high": high, "runs": len(times),
    }  # fmt: skip


def lines(rows: Sequence[dict[str, Any]], engines: Sequence[EngineName]) -> Iterable[str]:
    """A line for each file, the engines side by side."""
    columns = ("model", "file", "MB", "paper's MB", *(f"ms to load, {TITLES[engine]}" for engine in engines))
    yield "| " + " | ".join(columns) + " |\n|" + "---|" * len(columns)
    for start in range(0, len(rows), len(engines)):
        of_file = rows[start : start + len(engines)]
        first = of_file[0]
        title = first["variant"] + ("" if first["kind"] == "now" else f", {first['kind']}")
        times = [f"{item['load ms']:.0f} ({item['low']:.0f} .. {item['high']:.0f})" for item in of_file]
        yield (
            "| "
            + " | ".join((first["model"], title, f"{first['MB']:.1f}", f"{first['paper MB'] or ''}", *times))
            + " |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    installed = [engine for engine in ENGINES if find_spec(engine) is not None]
    parser.add_argument("--model", nargs="+", default=["deit_s", "deit_b"])
    known = planned(map(file_of, KNOWN))
    parser.add_argument("--variant", nargs="+", default=list(DEFAULT), choices=known, metavar="VARIANT")
    parser.add_argument("--engine", nargs="+", default=installed, choices=ENGINES, help="(all that are installed)")
    parser.add_argument("--runs", type=int, default=7, help="loads of each file in each engine (7)")
    parser.add_argument("--before", type=Path, metavar="DIR", help="files of older code, DIR/MODEL/VARIANT.onnx")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="where files stay, and are taken from")
    parser.add_argument(
        "--results", default="file_size", metavar="NAME", help="benchmarks/results/NAME.json (file_size)"
    )
    parsed = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ptq4vit_onnx_") as temporary:
        folder = parsed.keep or Path(temporary)
        files = [
            file for name in parsed.model for file in files_of(name, parsed.variant, folder, parsed.before)
        ]  # fmt: skip
        rows = measure(files, parsed.engine, parsed.runs, Path(temporary))
    print("\n".join(lines(rows, parsed.engine)))
    print(results.write(parsed.results, rows, runs=parsed.runs))


if __name__ == "__main__":
    main()
