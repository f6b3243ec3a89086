"""Are the files of an export the same whatever the number of threads? `python benchmarks/threads.py [MODEL ...]`

Exports each model once per number of threads, in processes of their own, and compares the bytes of model.onnx,
float.onnx and plan.json, and of report.json what is no time. With several threads on fewer cores this takes long and
says the same. Ends with 1 if a file differs. ViT-T and DeiT-T have real weights and 32 photos (see real_data.py).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks import real_data, results

MODELS, THREADS = ("vit_digits", "swin_digits", "vit_t"), (1, 2, 4)
FILES = ("model.onnx", "float.onnx", "plan.json")
TIMES = ("seconds", "latency")  # of report.json: measured anew each time
NAMED = ("output", "folder")  # and where the export lies


def export(name: str, threads: int, folder: Path) -> float:
    """Seconds that it took."""
    inputs: list[str] = []
    if name in real_data.WEIGHTS:
        data = real_data.require_folder()
        inputs = ["--checkpoint", str(data / "weights" / real_data.WEIGHTS[name]), "--data", str(data / "calibration")]
    command = [sys.executable, "-m", "ptq4vit_onnx", "export", "--model", name, "--output", str(folder), *inputs]
    started = time.perf_counter()
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)
    return time.perf_counter() - started


def digests(folder: Path) -> dict[str, str]:
    report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    kept = {key: value for key, value in report.items() if key not in (*TIMES, *NAMED)}
    contents = {name: (folder / name).read_bytes() for name in FILES}
    contents["report.json without times"] = json.dumps(kept, sort_keys=True).encode()
    return {name: hashlib.sha256(content).hexdigest()[:12] for name, content in contents.items()}


def rows_of(name: str, threads: tuple[int, ...]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as scratch:
        for count in threads:
            seconds = export(name, count, Path(scratch) / str(count))
            found = digests(Path(scratch) / str(count))
            rows.append({"model": name, "threads": count, "seconds": round(seconds, 1), "sha256": found})
            print(name, count, f"{seconds:.0f} s", *found.values(), flush=True)
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="*", default=MODELS)
    parser.add_argument("--threads", type=int, nargs="+", default=THREADS)
    parsed = parser.parse_args()
    rows = [row for name in parsed.model for row in rows_of(name, tuple(parsed.threads))]
    others = [row for row in results.read("threads").get("rows", []) if row["model"] not in parsed.model]
    results.write("threads", [*others, *rows], cores=len(os.sched_getaffinity(0)))
    differing = [
        f"{row['model']}: {name} with {row['threads']} threads"
        for row in rows
        for name in row["sha256"]
        if row["sha256"][name] != next(one for one in rows if one["model"] == row["model"])["sha256"][name]
    ]
    print("\n".join(differing) if differing else "the same bytes")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
