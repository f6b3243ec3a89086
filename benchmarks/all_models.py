"""Every listed model with random weights, through the whole pipeline: float export, plan, passes, proof.

    python benchmarks/all_models.py [--model NAME ...] [--bits 8 6] [--images 2]

Calibration is cut short (three candidates): with random weights only structure and parity count. Prints one Markdown
row per model and width: sites found, float parity, products in integers, products equal to integer arithmetic, images
whose logits are the simulator's bit for bit, file sizes, peak memory. Stops where parity fails.
"""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.plans import plan_on
from ptq4vit_onnx.float_export.exporter import export_float
from ptq4vit_onnx.graph.model_proto import file_bytes, save_model
from ptq4vit_onnx.images.builtin import built_in_photos
from ptq4vit_onnx.images.choice import ChosenImages
from ptq4vit_onnx.model_loading.load import load, resolve
from ptq4vit_onnx.models.specs import SPECS
from ptq4vit_onnx.network.discovery import discover
from ptq4vit_onnx.plan.options import Options
from ptq4vit_onnx.progress import silent
from ptq4vit_onnx.proof.float_parity import float_parity
from ptq4vit_onnx.proof.prove import prove, quantize_model
from ptq4vit_onnx.runtime import process

COLUMNS = ("model", "bits", "sites", "float parity", "products in integers", "exact", "bit for bit", "float MB",
           "MB", "peak GB", "s")  # fmt: skip


def rows(name: str, bits: list[int], count: int, folder: Path) -> None:
    model = load(resolve(name), random_weights=True)
    images = built_in_photos(model.preprocessing, "calibration", count, 0)
    sites = discover(model.module, torch.from_numpy(images.images[:1]))
    float_model = export_float(model, sites)
    float_path = save_model(float_model, folder / "float.onnx")
    parity = float_parity(model, float_path, images.images)
    for k in bits:
        started = time.perf_counter()
        options = Options(weight_bits=k, activation_bits=k, images=count, twin="both", candidates=3, rounds=1)
        plan = plan_on(images, model, options)
        path, _ = quantize_model(float_model, plan, folder / "model.onnx")
        proof = prove(path, float_path, plan, model, ChosenImages(images, images, held_out=False), silent)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
        exact = f"{sum(site.exact for site in proof.sites)} of {len(proof.sites)}"
        cells = (
            name, str(k), str(len(sites)), f"{parity.error:.1e}", proof.kernels.fraction, exact,
            f"{proof.end_to_end.identical:.0f} %", f"{file_bytes(float_path) / 1e6:.1f}",
            f"{file_bytes(path) / 1e6:.1f}", f"{peak:.1f}", f"{time.perf_counter() - started:.0f}",
        )  # fmt: skip
        print("| " + " | ".join(cells) + " |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="+", default=[spec.name for spec in SPECS])
    parser.add_argument("--bits", nargs="+", type=int, default=[8, 6])
    parser.add_argument("--images", type=int, default=2)
    parsed = parser.parse_args()
    process.keep_freed_memory()
    print("| " + " | ".join(COLUMNS) + " |\n|" + "---|" * len(COLUMNS))
    for name in parsed.model:
        with tempfile.TemporaryDirectory() as folder:
            rows(name, parsed.bits, parsed.images, Path(folder))


if __name__ == "__main__":
    main()
