"""What packed weights save on disk and cost when a session loads, next to the paper's Size column.

    python benchmarks/file_size.py [--model deit_s deit_b] [--bits 8 6 4] [--runs 7]

Random weights and a hasty plan (sizes and load times do not depend on them). "as bytes": the same model with its
weights left as int8. Load time: creating an ONNX Runtime session from the file, medians of interleaved runs.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.speed import Subject, build, open_subject
from ptq4vit_onnx import passes
from ptq4vit_onnx.graph.model_proto import file_bytes, load
from ptq4vit_onnx.passes.pack_weights import PackWeights
from ptq4vit_onnx.proof.prove import quantize_model
from ptq4vit_onnx.runtime.session import session

PAPER_MB = {"deit_s": {8: 22.0, 6: 16.5}, "deit_b": {8: 86.0, 6: 64.5, 4: 43.0}}
COLUMNS = ("model", "bits", "MB", "paper's MB", "MB as bytes", "load ms", "load ms as bytes")


def as_bytes(subject: Subject, variant: str) -> Path:
    """The variant once more, its weights not packed."""

    def leave(_self: Any, _work: Any) -> int:
        return 0

    idle = type("PackWeights", (PackWeights,), {"apply": leave, "ensures": ()})
    path = subject.path(variant).with_suffix(".bytes.onnx")
    with mock.patch.object(passes, "PASSES", tuple(idle if item is PackWeights else item for item in passes.PASSES)):
        quantize_model(load(subject.float_path), subject.plan(variant), path)
    return path


def load_times(paths: list[Path], runs: int) -> Mapping[Path, float]:
    """Milliseconds, medians."""
    seen: dict[Path, list[float]] = {path: [] for path in paths}
    for _ in range(runs):
        for path, times in seen.items():
            started = time.perf_counter()
            session(path)
            times.append(1000 * (time.perf_counter() - started))
    return {path: statistics.median(times) for path, times in seen.items()}


def rows(name: str, bits: list[int], runs: int, folder: Path) -> None:
    subject, variants = open_subject(name, folder), [f"none/w{k}a{k}" for k in bits]
    build(subject, variants)
    plain = {k: as_bytes(subject, variant) for k, variant in zip(bits, variants, strict=True)}
    packed = {32: subject.float_path} | {k: subject.path(variant) for k, variant in zip(bits, variants, strict=True)}
    times = load_times([*packed.values(), *plain.values()], runs)
    for k, path in packed.items():
        other = plain.get(k)
        cells = (
            name, "float" if k == 32 else f"W{k}A{k}", f"{file_bytes(path) / 1e6:.1f}",
            f"{PAPER_MB.get(name, {}).get(k, '')}", "" if other is None else f"{file_bytes(other) / 1e6:.1f}",
            f"{times[path]:.0f}", "" if other is None else f"{times[other]:.0f}",
        )  # fmt: skip
        print("| " + " | ".join(cells) + " |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="+", default=["deit_s", "deit_b"])
    parser.add_argument("--bits", nargs="+", type=int, default=[8, 6, 4])
    parser.add_argument("--runs", type=int, default=7)
    parsed = parser.parse_args()
    print("| " + " | ".join(COLUMNS) + " |\n|" + "---|" * len(COLUMNS))
    for name in parsed.model:
        with tempfile.TemporaryDirectory() as folder:
            rows(name, parsed.bits, parsed.runs, Path(folder))


if __name__ == "__main__":
    main()
