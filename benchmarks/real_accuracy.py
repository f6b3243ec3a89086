"""Real photos through ONNX Runtime in integers, beside the simulator, seed by seed: benchmarks/results/accuracy.json.

    python benchmarks/real_accuracy.py --model vit_t deit_t --bits W8A8 W6A8 W4A8 W6A6 W4A4 --seed 0 1 2
    python benchmarks/real_accuracy.py --limit 100 --seed 0 --save DIR      # a try: prints rows, keeps none of them

Calibrated on 32 training photos, as an export is (weights below eight bits are rounded on more), measured on the
validation photos of both folds, the same for every row. A seed picks the calibration photos and draws the signs.
`simulated`: the plan on the torch model, float operations of torch. `identical`: percent of the first
`identical_photos` whose logits are the exact simulator's bit for bit, which computes in integers with ONNX Runtime's
float kernels in between. `exact`: products that equal integer arithmetic. Rows of this commit are not measured again.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
import time
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks import real_data, results
from benchmarks.plans import plan_on_photos
from benchmarks.simulated_accuracy import scores
from ptq4vit_onnx.float_export.exporter import export_float
from ptq4vit_onnx.graph.model_proto import file_bytes, load, save_model
from ptq4vit_onnx.model_loading.load import LoadedModel
from ptq4vit_onnx.network.discovery import discover
from ptq4vit_onnx.output_kinds import metrics
from ptq4vit_onnx.plan.options import Options
from ptq4vit_onnx.plan.plan_json import write_plan
from ptq4vit_onnx.plan.scale_plan import ScalePlan
from ptq4vit_onnx.proof.end_to_end import check_end_to_end
from ptq4vit_onnx.proof.float_sites import FloatSites
from ptq4vit_onnx.proof.kernels import audit
from ptq4vit_onnx.proof.layout import layout_of
from ptq4vit_onnx.proof.prove import quantize_model
from ptq4vit_onnx.proof.site_parity import check_sites
from ptq4vit_onnx.runtime import process
from ptq4vit_onnx.runtime.session import optimised_model, run
from ptq4vit_onnx.simulation.fake import simulate, simulate_exactly

WIDTHS = ("W8A8", "W6A8", "W5A8", "W4A8", "W6A6", "W4A4")
FOLDS = (0, 3)
IDENTICAL_PHOTOS = 200
KEY = ("model", "bits", "seed")
Row = dict[str, Any]
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Subject:
    """A model, the photos it is measured on, and its float file."""

    name: str
    folder: Path
    limit: int | None = None  # photos of each fold

    @cached_property
    def model(self) -> LoadedModel:
        return real_data.load_model(self.name)

    @cached_property
    def folds(self) -> dict[int, tuple[Array, Array]]:
        sets = {fold: real_data.validation_images(self.model, fold, self.limit) for fold in FOLDS}
        return {fold: (item.images, item.labels) for fold, item in sets.items() if item.labels is not None}

    @cached_property
    def images(self) -> Array:
        return np.concatenate([images for images, _ in self.folds.values()])

    @cached_property
    def labels(self) -> Array:
        return np.concatenate([labels for _, labels in self.folds.values()])

    @cached_property
    def float_model(self) -> Any:
        return export_float(self.model, discover(self.model.module, torch.from_numpy(self.images[:1])))

    @cached_property
    def float_path(self) -> Path:
        return save_model(self.float_model, self.folder / f"{self.name}.float.onnx")

    @cached_property
    def reference(self) -> Array:
        return run(self.float_path, self.images)

    def scores(self, logits: Array) -> Row:
        """Of all photos."""
        return scores(logits, self.reference, self.labels)

    def by_fold(self, logits: Array) -> dict[str, Row]:
        ends = np.cumsum([len(labels) for _, labels in self.folds.values()]).tolist()
        parts = [slice(end - len(labels), end) for end, (_, labels) in zip(ends, self.folds.values(), strict=True)]
        return {
            str(fold): scores(logits[part], self.reference[part], self.labels[part])
            for fold, part in zip(self.folds, parts, strict=True)
        }


def measure(subject: Subject, bits: str, seed: int) -> Row:
    """One plan: its file in ONNX Runtime, and the same plan simulated."""
    started = time.perf_counter()
    options = Options(weight_bits=int(bits[1]), activation_bits=int(bits[3]), seed=seed)
    plan = plan_on_photos(subject.model, options)
    seconds = time.perf_counter() - started
    stem = subject.folder / f"{subject.name}.{bits}.{seed}"
    write_plan(plan, stem.with_suffix(f".{seed}.plan.json"))
    path, _ = quantize_model(subject.float_model, plan, stem.with_suffix(f".{seed}.onnx"))
    return {
        "model": subject.name, "bits": bits, "seed": seed, "photos": len(subject.images),
        "float_top1": metrics.top1(subject.reference, subject.labels), **measured(subject, path, plan),
        **proven(subject, path, plan), "mb": file_bytes(path) / 1e6, "float_mb": file_bytes(subject.float_path) / 1e6,
        "calibration_seconds": seconds, "seconds": time.perf_counter() - started,
    }  # fmt: skip


def measured(subject: Subject, path: Path, plan: ScalePlan) -> Row:
    """Accuracy of the file and of the simulated plan, and how many photos the exact simulator computes alike."""
    logits = run(path, subject.images)
    few = subject.images[:IDENTICAL_PHOTOS]
    exact = simulate_exactly(subject.model.module, plan, layout_of(load(path), plan), few)
    return {
        **subject.scores(logits), "folds": subject.by_fold(logits),
        "simulated": subject.scores(simulate(subject.model.module, plan, subject.images)),
        "identical": check_end_to_end((logits[: len(few)],), (exact,), coin_toss=False).identical,
        "identical_photos": len(few),
    }  # fmt: skip


def proven(subject: Subject, path: Path, plan: ScalePlan) -> Row:
    """What ONNX Runtime runs in integers, and whether each product equals integer arithmetic."""
    optimised = optimised_model(path)
    kernels = audit(path, plan, optimised)
    kernels.require_exact()
    parity = check_sites(path, plan, subject.images[:2], FloatSites(subject.float_path, plan), optimised)
    return {
        "integer_products": sum(product.integer for product in kernels.products), "products": len(kernels.products),
        "exact": sum(site.exact for site in parity), "checked": len(parity),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="+", default=["vit_t", "deit_t"], choices=sorted(real_data.WEIGHTS))
    parser.add_argument("--bits", nargs="+", default=list(WIDTHS), choices=WIDTHS)
    parser.add_argument("--seed", nargs="+", type=int, default=[0])
    parser.add_argument("--limit", type=int, help="photos per fold, for a try: nothing is kept in the results")
    parser.add_argument("--save", type=Path, help="keep models and plans in this folder")
    parsed = parser.parse_args()
    process.keep_freed_memory()
    with tempfile.TemporaryDirectory() as scratch:
        folder = parsed.save or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        for name in parsed.model:
            subject = Subject(name, folder, parsed.limit)
            for seed, bits in itertools.product(parsed.seed, parsed.bits):
                if parsed.limit or not results.has("accuracy", dict(zip(KEY, (name, bits, seed), strict=True))):
                    keep(measure(subject, bits, seed), bool(parsed.limit))


def keep(row: Row, is_try: bool) -> None:
    print({key: value for key, value in row.items() if key != "folds"}, flush=True)
    if not is_try:
        results.add("accuracy", row, KEY, calibration_photos=32, folds=list(FOLDS))


if __name__ == "__main__":
    main()
