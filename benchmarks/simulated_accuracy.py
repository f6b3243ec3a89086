"""Accuracy of simulated plans on real photos: the paper's Table 1 (methods by bits) and Table 3 (ablation).

    python benchmarks/simulated_accuracy.py methods  --model vit_t deit_t
    python benchmarks/simulated_accuracy.py ablation --model vit_t
    python benchmarks/simulated_accuracy.py methods --rows 2 5 8 --rounds 1 --fold 3 --seed 0 1 2 3
    python benchmarks/simulated_accuracy.py methods --rows 3 6 --calibrated-on training built-in --seed 0 1 2

Prints one Markdown row as soon as it is measured, and keeps those of all photos in benchmarks/results/methods.json or
ablation.json, whose rows of this commit are not measured again. Every row is calibrated on the same 32 photos and
measured on the same validation photos as the float model, all of them and fold by fold: drop is the paired difference
in top-1, with its standard error. A seed picks the calibration photos and draws the labels; of several, the mean
follows, its drop with the standard deviation of one seed's. --calibrated-on takes crops of the built-in photos instead
of, or next to, 32 ImageNet training photos; the seed then also draws which of the built-in photos are used. Single
choices of all rows can be replaced, as by --weights per-tensor; such rows, and those of fewer photos, are not kept.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
import typing
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks import real_data, results
from ptq4vit_onnx.images.builtin import built_in_photos
from ptq4vit_onnx.model_loading.load import LoadedModel
from ptq4vit_onnx.output_kinds import metrics
from ptq4vit_onnx.plan.options import BiasCorrection, ChannelMode, Labels, Options, PixelGrid, Rounding, Twin, Weights
from ptq4vit_onnx.planning.sites import plan_sites, rounding_images
from ptq4vit_onnx.runtime import process
from ptq4vit_onnx.simulation.fake import simulate

Rows = list[tuple[str, Options]]
SOURCES = ("training", "built-in")  # of the photos to calibrate on
OVERRIDES: dict[str, Any] = {
    "rounds": None, "labels": typing.get_args(Labels), "weights": typing.get_args(Weights),
    "twin": typing.get_args(Twin), "channels": typing.get_args(ChannelMode), "images": None,
    "pixels": typing.get_args(PixelGrid), "rounding": typing.get_args(Rounding),
    "bias_correction": typing.get_args(BiasCorrection),
}  # fmt: skip
INSTEAD = "instead of each method's own"
KEY = ("model", "method", "bits", "calibrated_on", "seed")
HEADER = ("model", "method", "bits", "folds", "seed", "top-1", "drop", "agreement", "KL", "calibration s")


def method_rows(bits: list[int]) -> Rows:
    """Base PTQ, PTQ4ViT as published, and this tool's defaults."""
    widths: list[dict[str, Any]] = [{"weight_bits": k, "activation_bits": k} for k in bits]
    return [
        row
        for width in widths
        for row in (
            ("Base PTQ", Options.base(**width)),
            ("PTQ4ViT as published", Options.paper(**width)),
            ("defaults", Options(**width)),
        )
    ]


def ablation_rows(bits: list[int]) -> Rows:
    """The six rows of the paper's Table 3: Hessian metric, softmax twin, GELU twin."""
    rows = []
    for k in bits:
        width: dict[str, Any] = {"weight_bits": k, "activation_bits": k}
        rows += [
            ("none of the three", Options.base(**width)),
            ("Hessian", Options.paper(twin="none", **width)),
            ("Hessian + softmax twin", Options.paper(twin="softmax", **width)),
            ("Hessian + GELU twin", Options.paper(twin="gelu", **width)),
            ("softmax twin + GELU twin", Options.base(twin="both", rounds=3, alpha=0.0, **width)),
            ("Hessian + both twins", Options.paper(twin="both", **width)),
        ]
    return rows


def quantised_logits(model: LoadedModel, options: Options, calibration: Any, images: Any) -> tuple[Any, float]:
    """Of the simulated plan; and how many seconds its calibration took. calibration: all photos that rounding sees."""
    started = time.perf_counter()
    plans = plan_sites(model, calibration[: options.images], options, rounded_on=calibration)
    seconds = time.perf_counter() - started
    return simulate(model.module, plans, images), seconds


def scores(logits: Any, reference: Any, labels: Any) -> dict[str, Any]:
    return {
        "top1": metrics.top1(logits, labels), "drop": metrics.paired_drop(reference, logits, labels).to_data(),
        "agreement": metrics.agreement(logits, reference), "kl": metrics.mean_kl(reference, logits),
    }  # fmt: skip


def calibration_images(source: str, model: LoadedModel, count: int, seed: int) -> Any:
    if source == "built-in":
        return built_in_photos(model.preprocessing, "calibration", count, seed).images
    return real_data.calibration_images(model, count, seed).images


def rows_of(
    name: str, table: Rows, sources: list[str], folds: list[int], seeds: list[int], limit: int | None, kept: str | None
) -> Iterator[tuple[str, ...]]:
    """kept: the results that rows go to, if any."""
    model = real_data.load_model(name)
    count = max(options.images for _, options in table)
    sets = [real_data.validation_images(model, fold, limit) for fold in folds]
    images = np.concatenate([item.images for item in sets])
    labels = np.concatenate([item.labels for item in sets if item.labels is not None])
    reference = simulate(model.module, None, images)
    parts = parts_of(folds, [len(item.images) for item in sets])
    for fold, part in parts.items():
        yield (name, "float", "32", fold, "", f"{metrics.top1(reference[part], labels[part]):.1f}", "", "", "", "")
    for (method, options), source in itertools.product(table, sources):
        title = method if source == SOURCES[0] else f"{method}, {source} photos"
        found = []
        for seed in seeds:
            about = dict(zip(KEY, (name, method, width(options), source, seed), strict=True))
            if kept is not None and results.has(kept, about):
                continue
            seeded = replace(options, seed=seed)
            calibration = calibration_images(source, model, max(count, rounding_images(model, seeded)), seed)
            logits, seconds = quantised_logits(model, seeded, calibration, images)
            result = {fold: scores(logits[part], reference[part], labels[part]) for fold, part in parts.items()}
            for fold, values in result.items():
                yield (name, title, width(options), fold, str(seed), *cells(values), f"{seconds:.0f}")
            if kept is not None:
                row = {**about, "photos": len(images), **result[next(iter(parts))], "calibration_seconds": seconds}
                results.add(kept, row, KEY, engine="simulator", calibration_photos=32, folds=folds)
            found.append(result)
        if len(found) > 1:
            for fold in parts:
                values = mean_of([result[fold] for result in found])
                yield (name, title, width(options), fold, "mean", *cells(values), "")


def width(options: Options) -> str:
    return f"W{options.weight_bits}A{options.activation_bits}"


def cells(values: dict[str, Any]) -> tuple[str, ...]:
    drop = values["drop"]
    return (
        f"{values['top1']:.1f}", f"{drop['points']:.1f} ± {drop['standard_error']:.1f}", f"{values['agreement']:.1f}",
        f"{values['kl']:.4f}",
    )  # fmt: skip


def mean_of(results: list[dict[str, Any]]) -> dict[str, Any]:
    """Of the scores of several seeds; in the place of the standard error, the standard deviation of the drops."""
    drops = [result["drop"]["points"] for result in results]
    means = {key: float(np.mean([result[key] for result in results])) for key in ("top1", "agreement", "kl")}
    return {**means, "drop": {"points": float(np.mean(drops)), "standard_error": float(np.std(drops, ddof=1))}}


def parts_of(folds: list[int], sizes: list[int]) -> dict[str, slice]:
    """All photos, and those of each fold where there are several."""
    ends = np.cumsum(sizes).tolist()
    parts = {str(fold): slice(end - size, end) for fold, size, end in zip(folds, sizes, ends, strict=True)}
    return parts if len(folds) == 1 else {" and ".join(parts): slice(None), **parts}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", choices=("methods", "ablation"))
    parser.add_argument("--model", nargs="+", default=["vit_t"], choices=sorted(real_data.WEIGHTS))
    parser.add_argument("--bits", nargs="+", type=int)
    parser.add_argument("--fold", nargs="+", type=int, default=[3, 0])
    parser.add_argument("--limit", type=int, help="photos per fold")
    parser.add_argument("--rows", nargs="+", type=int, help="only these rows of the table, counted from 1")
    parser.add_argument("--calibrated-on", nargs="+", default=[SOURCES[0]], choices=SOURCES, help="photos (training)")
    for name, choices in OVERRIDES.items():
        parser.add_argument(
            f"--{name.replace('_', '-')}", choices=choices, type=type(getattr(Options, name)), help=INSTEAD
        )
    parser.add_argument("--seed", nargs="+", type=int, default=[0], help="of calibration photos and labels drawn")
    parsed = parser.parse_args()
    process.keep_freed_memory()
    table = method_rows(parsed.bits or [8, 6, 4]) if parsed.table == "methods" else ablation_rows(parsed.bits or [8, 6])
    table = [table[row - 1] for row in parsed.rows] if parsed.rows else table
    changes = {name: getattr(parsed, name) for name in OVERRIDES if getattr(parsed, name) is not None}
    for name, value in changes.items():
        table = [(f"{title}, {name} {value}", replace(row, **{name: value})) for title, row in table]
    print("| " + " | ".join(HEADER) + " |\n|" + "---|" * len(HEADER))
    kept = parsed.table if parsed.limit is None and not changes and set(parsed.fold) == {3, 0} else None
    for name in parsed.model:
        for row in rows_of(name, table, parsed.calibrated_on, parsed.fold, parsed.seed, parsed.limit, kept):
            print("| " + " | ".join(row) + " |", flush=True)


if __name__ == "__main__":
    main()
