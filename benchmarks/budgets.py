"""Files within a size: mixtures of widths beside single ones and ONNX Runtime's own four-bit weights.

    python benchmarks/budgets.py --model deit_t vit_t

`pareto` makes them from 32 ImageNet training photos (more for rounding, others to choose on); here all are measured on
2000 validation photos, through ONNX Runtime. Files go to --work, and a second run measures those that it finds there.
Writes benchmarks/results/budgets.json.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks import real_data, results
from ptq4vit_onnx.output_kinds import metrics
from ptq4vit_onnx.request import resolve_request
from ptq4vit_onnx.runtime import process
from ptq4vit_onnx.runtime.session import run, session
from ptq4vit_onnx.studies.pareto import Study, pareto

SIZES = tuple(int(size * 1e6) for size in (2.8, 3.1, 3.4, 3.7, 4.0, 4.4, 4.8, 5.4, 6.1))
FOLDS = (0, 3)
NBITS = "MatMulNBits"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="+", default=["deit_t", "vit_t"], choices=sorted(real_data.WEIGHTS))
    parser.add_argument("--work", type=Path, required=True, help="a folder for the files")
    parser.add_argument("--seed", type=int, default=0)
    parsed = parser.parse_args()
    process.keep_freed_memory()
    rows = [row for row in results.read("budgets").get("rows", []) if row["model"] not in parsed.model]
    for model in parsed.model:
        folder = parsed.work / model
        if not (folder / "pareto.json").is_file():
            make(model, folder, parsed.seed)
        rows += list(measured(model, folder))
        results.write("budgets", rows, photos=2000, calibration_photos=32, seed=parsed.seed)


def make(model: str, folder: Path, seed: int) -> None:
    data = real_data.require_folder()
    request = resolve_request(
        model, checkpoint=data / "weights" / real_data.WEIGHTS[model], data=data / "calibration", output=folder,
        force=True, seed=seed,
    )  # fmt: skip
    pareto(Study(request, SIZES))


def measured(name: str, folder: Path) -> Iterator[dict[str, Any]]:
    model = real_data.load_model(name)
    sets = [real_data.validation_images(model, fold) for fold in FOLDS]
    images = np.concatenate([item.images for item in sets])
    labels = np.concatenate([item.labels for item in sets if item.labels is not None])
    reference = run(session(folder / "float.onnx", threads=0), images)
    known = json.loads((folder / "pareto.json").read_text(encoding="utf-8"))["rows"]
    four_bits = folder.parent / f"{name}_{NBITS}.onnx"
    write_four_bits(folder / "float.onnx", four_bits)
    peer = {"title": NBITS, "group": "peer", "file": str(four_bits), "size": four_bits.stat().st_size}
    for row in (*known, peer):
        logits = run(session(folder / row["file"], threads=0), images)
        drop = metrics.paired_drop(reference, logits, labels)
        kept = ("title", "group", "size", "average_bits", "predicted")
        chosen_on = {"kl on the images of the command": row.get("distance")}
        yield {"model": name, **{key: row.get(key) for key in kept}, **chosen_on,
               "kl": metrics.mean_kl(reference, logits), "agreement": metrics.agreement(logits, reference),
               "drop": drop.points, "drop_error": drop.standard_error,
               "commit": results.provenance()["commit"]}  # fmt: skip


def write_four_bits(float_path: Path, path: Path) -> None:
    """ONNX Runtime's own weight-only quantisation, as its users get it."""
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    quantizer = MatMulNBitsQuantizer(onnx.load(float_path), block_size=32, is_symmetric=True, accuracy_level=4)
    quantizer.process()
    quantizer.model.save_model_to_file(str(path), use_external_data_format=False)


if __name__ == "__main__":
    main()
