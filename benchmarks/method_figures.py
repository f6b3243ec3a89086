"""What the pictures of docs/method.md show, measured on ViT-T with its real weights and on photos.

    python benchmarks/method_figures.py [--photos 32]

distribution  the values of two tensors, the points that each quantizer has for them, and what each costs
channels      the largest input of every channel of a layer with outliers
metric        what each candidate of a scale costs by two metrics, and what it really costs
choices       of many layers, what the scale costs that each metric chooses
pairs         sums of neighbouring weight codes, which saturate in 16 bits without VNNI where they are too large

"What it costs" is the KL divergence from the float model, in nats, with the left side of that one site quantised and
nothing else. Scales are searched on training photos, costs are measured on as many validation photos. It takes two
minutes of one core; tools/method_pictures.py draws the results.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks import real_data, results
from ptq4vit_onnx.calibration.calibrate import OUTLIER_RATIO, outlier_channels
from ptq4vit_onnx.calibration.grids import Grid, covering, factors, form_grid, uniform_grid
from ptq4vit_onnx.calibration.objective import Float, Product, Turn, objective_of
from ptq4vit_onnx.calibration.search import ProductSearch
from ptq4vit_onnx.model_loading.load import LoadedModel
from ptq4vit_onnx.network.calls import Call
from ptq4vit_onnx.network.discovery import as_deployed, compute_plainly, watching
from ptq4vit_onnx.network.recording import Recording
from ptq4vit_onnx.network.tape import record
from ptq4vit_onnx.output_kinds import metrics
from ptq4vit_onnx.plan.options import Metric, Options
from ptq4vit_onnx.plan.quantizers import Affine, Quantizer, forms_for
from ptq4vit_onnx.plan.saturation_safe_weights import INT16_MAX
from ptq4vit_onnx.runtime import process

MODEL = "vit_t"
DISTRIBUTIONS = ("blocks.10.attn.pv", "blocks.10.mlp.fc2")
OUTLIERS = "blocks.7.mlp.fc2"
CURVE, CURVE_CANDIDATES = "blocks.4.attn.qkv", 24  # a layer on which the metrics differ much
CHOICES = ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2")
EVERY_BLOCK = 2  # blocks 0, 2, 4, ..
BITS = 6  # of the site that is looked at
BINS, SMALLEST = 60, 1e-6  # of probabilities: the smallest that has a bin of its own
SUM_BINS = 16  # sums of two codes to a bin
AXIS = -3  # of a left side: one scale for all of it

Row = dict[str, Any]
Cost = Callable[[str, Quantizer], float]
COMPARED: tuple[Metric, ...] = ("hessian", "mse")


def distribution(recording: Recording, cost: Cost) -> Row:
    """The values of a left side, and of three forms of quantizer the candidate that the Hessian metric chooses."""
    x, source = recording.lhs, recording.site.lhs_source
    options = Options()
    grids: dict[str, Grid] = {
        "uniform": uniform_grid(x, BITS, 1, AXIS, options),
        "zero point": form_grid(Affine, x, BITS, options),
        "twin": form_grid(forms_for(source)[0], x, BITS, options),
    }
    chosen = {name: chosen_by("hessian", recording, grid) for name, grid in grids.items()}
    forms = [
        {"form": name, "points": [asdict(points) for points in form.points], "rms": _rms(x, form),
         "kl": cost(recording.site.name, form)}
        for name, form in chosen.items()
    ]  # fmt: skip
    panels = [_logarithmic(x)] if source == "softmax" else [_linear(x[x < 0], BINS // 3), _linear(x[x >= 0], BINS)]
    return {"figure": "distribution", "site": recording.site.name, "source": source, "bits": BITS,
            "values": x.numel(), "panels": panels, "forms": forms}  # fmt: skip


def _rms(x: Tensor, form: Quantizer) -> float:
    return short(float((form.fake_quantize(x.clone()) - x).square().mean().sqrt()))


def _linear(x: Tensor, bins: int) -> Row:
    low, high = min(float(x.min()), 0.0), max(float(x.max()), 0.0)
    counts, _ = np.histogram(x.numpy(), bins, (low, high))
    return {"axis": "linear", "low": short(low), "high": short(high), "counts": counts.tolist()}


def _logarithmic(x: Tensor) -> Row:
    """Values below SMALLEST are in the first bin."""
    logs = np.log10(np.maximum(x.numpy(), SMALLEST))
    counts, _ = np.histogram(logs, BINS, (np.log10(SMALLEST), 0.0))
    return {"axis": "log", "low": SMALLEST, "high": 1.0, "counts": counts.tolist()}


def channels(recording: Recording) -> Row:
    largest = recording.lhs.abs().amax(0)
    limit = OUTLIER_RATIO * float(torch.quantile(largest, 0.99, interpolation="lower"))
    return {"figure": "channels", "site": recording.site.name, "largest": [short(value) for value in largest.tolist()],
            "limit": short(limit), "outliers": outlier_channels(recording)}  # fmt: skip


def metric(recording: Recording, cost: Cost) -> Row:
    """Every candidate of the left side's scale: its loss by both metrics, and its cost."""
    options = Options(candidates=CURVE_CANDIDATES)
    grid = uniform_grid(recording.lhs, BITS, 1, AXIS, options)
    name = recording.site.name
    return {
        "figure": "metric", "site": name, "bits": BITS, "scale": [short(value) for value in factors(options)],
        "hessian": _losses(recording, grid, "hessian"), "mse": _losses(recording, grid, "mse"),
        "kl": [cost(name, grid.single(candidate, 0)) for candidate in range(grid.count)],
    }  # fmt: skip


def _losses(recording: Recording, grid: Grid, metric: Metric) -> list[float]:
    product = Product(objective_of(recording, metric), weight=True)
    measured = product.measure_all(Turn("lhs", grid, Float()))[:, 0].flip(0)  # candidates come largest first
    return [short(value) for value in (measured / product.whole.size).tolist()]


def choices(recording: Recording, cost: Cost) -> Row:
    grid = uniform_grid(recording.lhs, BITS, 1, AXIS, Options())
    name = recording.site.name
    costs = {metric: cost(name, chosen_by(metric, recording, grid)) for metric in COMPARED}
    return {"figure": "choices", "site": name, "bits": BITS, **costs}


def chosen_by(metric: Metric, recording: Recording, grid: Grid) -> Quantizer:
    """As calibration chooses one side next to the other in float."""
    weight = recording.site.rhs_is_weight
    return ProductSearch(objective_of(recording, metric), Options(metric=metric), weight).search("lhs", grid, Float())


def pairs(weights: Mapping[str, Tensor]) -> list[Row]:
    """|w[k] + w[k+1]| of neighbouring eight-bit codes, k even, next to unsigned bytes of up to 255."""
    limit = INT16_MAX // 255
    rows = []
    for scales in ("one per tensor", "one per output"):
        sums = np.concatenate([_pair_sums(weight, scales == "one per output") for weight in weights.values()])
        counts = np.bincount(np.minimum(sums, 255) // SUM_BINS, minlength=256 // SUM_BINS)
        rows.append({"figure": "pairs", "scales": scales, "limit": limit, "bin": SUM_BINS, "counts": counts.tolist(),
                     "pairs": len(sums), "beyond": int((sums > limit).sum())})  # fmt: skip
    return rows


def _pair_sums(weight: Tensor, per_output: bool) -> np.ndarray[Any, Any]:
    """weight: [inputs, outputs], rounded with the scale that just covers it."""
    codes = covering(weight, 8, weight.shape[1] if per_output else 1, -1).codes(weight).numpy().astype(np.int64)
    sums: np.ndarray[Any, Any] = np.abs(codes[0::2] + codes[1::2]).reshape(-1)
    return sums


def cost_on(model: LoadedModel, images: np.ndarray[Any, Any]) -> Cost:
    """The KL of the model with one site's left side quantised."""
    reference = _logits(model, images, "", None)

    def cost(site: str, form: Quantizer) -> float:
        return short(metrics.mean_kl(reference, _logits(model, images, site, form)))

    return cost


def _logits(model: LoadedModel, images: np.ndarray[Any, Any], site: str, form: Quantizer | None) -> Any:
    def product(call: Call) -> Tensor:
        if form is None or call.site.name != site:
            return call.plain()
        return call.finish(form.fake_quantize(call.lhs) @ call.rhs)

    with torch.no_grad(), as_deployed(model.module), watching(model.module, product, compute_plainly):
        return model.module(torch.from_numpy(images)).numpy()


def short(value: float) -> float:
    """Four digits: more would not be the same on another machine."""
    return float(f"{value:.4g}")


def measure(model: LoadedModel, photos: int) -> Sequence[Row]:
    cost = cost_on(model, real_data.validation_images(model, 3, photos).images)
    rows: list[Row] = []
    weights: dict[str, Tensor] = {}
    for recording in record(model.module, real_data.calibration_images(model, photos).images, kind=model.kind):
        name = recording.site.name
        print(name, flush=True)
        if recording.site.kind == "linear":
            weights[name] = recording.rhs
        if name in DISTRIBUTIONS:
            rows.append(distribution(recording, cost))
        if name == OUTLIERS:
            rows.append(channels(recording))
        if name == CURVE:
            rows.append(metric(recording, cost))
        if name.endswith(CHOICES) and int(name.split(".")[1]) % EVERY_BLOCK == 0:
            rows.append(choices(recording, cost))
    return [*rows, *pairs(weights)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photos", type=int, default=32)
    photos = parser.parse_args().photos
    process.keep_freed_memory()
    results.provenance()  # of the code as it is at the start
    rows = measure(real_data.load_model(MODEL), photos)
    print(results.write("method_figures", rows, model=MODEL, photos=photos))


if __name__ == "__main__":
    main()
