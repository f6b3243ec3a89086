"""What fewer bits cost: KL, agreement and paired drop of simulated plans, with and without compensated rounding.

    python benchmarks/low_bits.py --model deit_t vit_t --seed 0 1 2

Calibrated on 32 ImageNet training photos, rounded on as many as the defaults take, measured on 2000 validation photos.
Widths of eight bits have no compensation. Writes benchmarks/results/low_bits.json; rows that it has are not measured
again.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks import real_data, results
from benchmarks.simulated_accuracy import calibration_images, quantised_logits, scores
from ptq4vit_onnx.plan.options import Options, Rounding
from ptq4vit_onnx.planning.sites import rounding_images
from ptq4vit_onnx.runtime import process
from ptq4vit_onnx.simulation.fake import simulate

WIDTHS = ((8, 8), (6, 8), (5, 8), (4, 8), (6, 6), (4, 4))
ROUNDINGS: tuple[Rounding, ...] = ("diffused", "compensated")
FOLDS = (0, 3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="+", default=["deit_t", "vit_t"], choices=sorted(real_data.WEIGHTS))
    parser.add_argument("--seed", nargs="+", type=int, default=[0], help="of calibration photos and signs")
    parser.add_argument("--weight-bits", nargs="+", type=int, default=[width for width, _ in WIDTHS])
    parser.add_argument("--activation-bits", nargs="+", type=int, default=[width for _, width in WIDTHS])
    parser.add_argument("--rounding", nargs="+", default=list(ROUNDINGS), choices=ROUNDINGS)
    parser.add_argument("--limit", type=int, help="photos per fold, for a try")
    parsed = parser.parse_args()
    process.keep_freed_memory()
    widths = [item for item in WIDTHS if item[0] in parsed.weight_bits and item[1] in parsed.activation_bits]
    wanted = list(itertools.product(parsed.seed, widths, parsed.rounding))
    rows = [] if parsed.limit else results.read("low_bits").get("rows", [])
    for model in parsed.model:
        for row in measured(model, wanted, parsed.limit, [_key(item) for item in rows]):
            print(row, flush=True)
            rows.append(row)
            if not parsed.limit:
                results.write("low_bits", rows, photos=2000, calibration_photos=32, engine="simulator")


def measured(name: str, wanted: Any, limit: int | None, known: list[Any]) -> Any:
    """wanted: (seed, (bits of weights, of activations), rounding) of each row."""
    model = real_data.load_model(name)
    sets = [real_data.validation_images(model, fold, limit) for fold in FOLDS]
    images = np.concatenate([item.images for item in sets])
    labels = np.concatenate([item.labels for item in sets if item.labels is not None])
    reference = simulate(model.module, None, images)
    for seed, (weights, activations), rounding in wanted:
        options = Options(weight_bits=weights, activation_bits=activations, rounding=rounding, seed=seed)
        row: dict[str, Any] = {"model": name, "bits": f"W{weights}A{activations}", "rounding": rounding, "seed": seed}
        useless = rounding == "compensated" and not options.compensates(weights)
        if useless or _key(row) in known:
            continue
        calibration = calibration_images("training", model, max(32, rounding_images(model, options)), seed)
        logits, seconds = quantised_logits(model, options, calibration, images)
        yield {**row, **scores(logits, reference, labels), "rounded_on": len(calibration), "seconds": round(seconds, 1),
               "commit": results.provenance()["commit"]}  # fmt: skip


def _key(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["model"], row["bits"], row["rounding"], row["seed"]


if __name__ == "__main__":
    main()
