"""Real photos through ONNX Runtime in integers: accuracy, distance from the simulator, exactness of every product.

    python benchmarks/integer_accuracy.py --model vit_t deit_t --bits 8 6 4 [--paper] [--save DIR]

One Markdown row per model and width. Calibrated on 32 photos, as an export is (weights below eight bits are rounded on
more), measured on the validation photos of the folds given; the simulator and ONNX Runtime see the same photos. The
simulator computes the plan in integers on the torch model, with ONNX Runtime's float kernels in between; "identical":
photos whose logits are the simulator's bit for bit. "in torch": top-1 of the simulator whose float operations are
torch's.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks import real_data
from benchmarks.plans import plan_on_photos
from ptq4vit_onnx.float_export.exporter import export_float
from ptq4vit_onnx.graph.model_proto import file_bytes, load, save_model
from ptq4vit_onnx.network.discovery import discover
from ptq4vit_onnx.output_kinds import metrics
from ptq4vit_onnx.plan.options import Options
from ptq4vit_onnx.plan.plan_json import write_plan
from ptq4vit_onnx.proof.end_to_end import check_end_to_end
from ptq4vit_onnx.proof.float_sites import FloatSites
from ptq4vit_onnx.proof.kernels import audit
from ptq4vit_onnx.proof.layout import layout_of
from ptq4vit_onnx.proof.prove import quantize_model
from ptq4vit_onnx.proof.site_parity import check_sites
from ptq4vit_onnx.runtime import process
from ptq4vit_onnx.runtime.session import optimised_model, run
from ptq4vit_onnx.simulation.fake import simulate, simulate_exactly

COLUMNS = ("model", "bits", "float top-1", "simulated", "ONNX Runtime", "agreement with simulator", "identical",
           "in torch", "agreement with float", "KL", "in integers", "exact", "MB (float)")  # fmt: skip


def rows(name: str, bits: list[int], folds: list[int], limit: int | None, paper: bool, folder: Path) -> None:
    model = real_data.load_model(name)
    calibration = real_data.calibration_images(model)
    sets = [real_data.validation_images(model, fold, limit) for fold in folds]
    images = np.concatenate([item.images for item in sets])
    labels = np.concatenate([item.labels for item in sets if item.labels is not None])
    sites = discover(model.module, torch.from_numpy(images[:1]))
    float_model = export_float(model, sites)
    float_path = save_model(float_model, folder / f"{name}.float.onnx")
    reference = run(float_path, images)
    for k in bits:
        width: dict[str, Any] = {"weight_bits": k, "activation_bits": k}
        options = Options.paper(**width) if paper else Options(**width)
        plan = plan_on_photos(model, options)
        write_plan(plan, folder / f"{name}.{options.label}.plan.json")
        path, _ = quantize_model(float_model, plan, folder / f"{name}.{options.label}.onnx")
        optimised = optimised_model(path)
        kernels = audit(path, plan, optimised)
        kernels.require_exact()
        parity = check_sites(path, plan, calibration.images[:2], FloatSites(float_path, plan), optimised)
        simulated = simulate_exactly(model.module, plan, layout_of(load(path), plan), images)
        in_torch = simulate(model.module, plan, images)
        logits = run(path, images)
        end = check_end_to_end((logits,), (simulated,), coin_toss=False)
        cells = (
            name, f"W{k}A{k}", f"{metrics.top1(reference, labels):.1f}", f"{metrics.top1(simulated, labels):.1f}",
            f"{metrics.top1(logits, labels):.1f}", f"{end.agreement:.1f}", f"{end.identical:.1f}",
            f"{metrics.top1(in_torch, labels):.1f}", f"{metrics.agreement(logits, reference):.1f}",
            f"{metrics.mean_kl(reference, logits):.4f}", kernels.fraction,
            f"{sum(site.exact for site in parity)} of {len(parity)}",
            f"{file_bytes(path) / 1e6:.1f} ({file_bytes(float_path) / 1e6:.1f})",
        )  # fmt: skip
        print("| " + " | ".join(cells) + " |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="+", default=["vit_t", "deit_t"], choices=sorted(real_data.WEIGHTS))
    parser.add_argument("--bits", nargs="+", type=int, default=[8, 6, 4])
    parser.add_argument("--fold", nargs="+", type=int, default=[3])
    parser.add_argument("--limit", type=int, help="photos per fold")
    parser.add_argument("--paper", action="store_true", help="the published form instead of the defaults")
    parser.add_argument("--save", type=Path, help="keep models and plans in this folder")
    parsed = parser.parse_args()
    process.keep_freed_memory()
    print("| " + " | ".join(COLUMNS) + " |\n|" + "---|" * len(COLUMNS))
    with tempfile.TemporaryDirectory() as scratch:
        folder = parsed.save or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        for name in parsed.model:
            rows(name, parsed.bits, parsed.fold, parsed.limit, parsed.paper, folder)


if __name__ == "__main__":
    main()
