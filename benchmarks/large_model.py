"""A model above 2 GB, exported and proved: its peak memory, stage by stage.

    python benchmarks/large_model.py
    python benchmarks/large_model.py --model vit_huge_patch14_224 --images 4

Runs `ptq4vit-onnx export --random-weights` as a process of its own and reads the resident memory of that process ten
times a second. Memory and time do not depend on the weights. The search is cut short, to 8 candidates: the peak is
elsewhere. Writes benchmarks/results/large_model.json.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks import results
from ptq4vit_onnx.graph.model_proto import PROTOBUF_LIMIT

CANDIDATES = 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="vit_huge_patch14_224")
    parser.add_argument("--images", type=int, default=4)
    parsed = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ptq4vit_onnx_") as folder:
        row = measure(parsed.model, parsed.images, Path(folder) / "export")
    print(
        f"{row['model']}: float {row['float GB']} GB, integers {row['model GB']} GB, {row['kernels']}; end to end: "
        f"{row['end to end']}; peak {row['peak GB']} GB; seconds {row['seconds']}"
    )
    print(results.write("large_model", [row], images=parsed.images, candidates=CANDIDATES))


def measure(model: str, images: int, folder: Path) -> dict[str, object]:
    command = [sys.executable, "-m", "ptq4vit_onnx", "export", "--model", model, "--random-weights", "--json",
               "--images", str(images), "--candidates", str(CANDIDATES), "--output", str(folder)]  # fmt: skip
    with tempfile.TemporaryFile("w+") as printed:
        process = subprocess.Popen(command, stdout=printed)
        peak = _peak_of(process)
        if process.returncode:
            raise SystemExit(f"the export ended with {process.returncode}")
        printed.seek(0)
        report = json.load(printed)
    exact = sum(site["exact"] for site in report["site_parity"])
    return {
        "model": model,
        "float GB": round(report["bytes"]["float"] / 1e9, 2),
        "one protobuf message": report["bytes"]["float"] < PROTOBUF_LIMIT,
        "model GB": round(report["bytes"]["model"] / 1e9, 2),
        "kernels": report["kernels"]["summary"],
        "exact products": f"{exact} of {len(report['site_parity'])}",
        "end to end": report["end_to_end"]["sentence"],
        "peak GB": round(peak / 1e9, 2),
        "seconds": {stage: round(value) for stage, value in report["seconds"].items()},
    }


def _peak_of(process: subprocess.Popen[bytes]) -> int:
    """The largest resident memory of a process until it ends, in bytes."""
    status, peak = Path(f"/proc/{process.pid}/status"), 0
    while process.poll() is None:
        lines = dict(line.split(":", 1) for line in _text(status).splitlines() if ":" in line)
        peak = max(peak, 1024 * int(lines.get("VmHWM", "0 kB").split()[0]))
        time.sleep(0.1)
    return peak


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:  # it has ended
        return ""


if __name__ == "__main__":
    main()
