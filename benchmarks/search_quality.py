"""How close the fast search comes to exhaustive search, and how much faster it is.

    python benchmarks/search_quality.py quality --model vit_t --bits 8 6 4 [--paper | --base] [--seed 1]
    python benchmarks/search_quality.py speed   --model deit_s --blocks 1 [--paper | --base]

quality: for every site and both sides, the other side fixed, the exact loss (all rows) of the fast search's choice over
the smallest exact loss of all candidates; those beyond 1 % are named on stderr. Of layers behind a LayerNorm also the
searched loss with the channels that a few rows spoke for, over the smallest of all choices of channels.
speed: both searches on the same recordings, in one process with the same threads (random weights: time does not depend
on them), and the whole calibration in float forward passes.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks import real_data
from ptq4vit_onnx.calibration.calibrate import calibrate, lhs_grids, preselect_channels, rhs_search_space, search_site
from ptq4vit_onnx.calibration.channel_scales import channel_choices, with_channels
from ptq4vit_onnx.calibration.grids import Grid
from ptq4vit_onnx.calibration.objective import Float, Side, objective_of
from ptq4vit_onnx.calibration.search import ProductSearch
from ptq4vit_onnx.images.builtin import built_in_photos
from ptq4vit_onnx.model_loading.load import load, resolve
from ptq4vit_onnx.network.recording import Recording
from ptq4vit_onnx.network.tape import record
from ptq4vit_onnx.plan.options import Options
from ptq4vit_onnx.plan.quantizers import Quantizer
from ptq4vit_onnx.runtime import process

MAKE: dict[str, Callable[..., Options]] = {
    "defaults": Options, "published form": Options.paper, "Base PTQ": Options.base,
}  # fmt: skip
NEAR = 1.01  # of the smallest loss


def ratios(recording: Recording, options: Options) -> Iterator[tuple[str, float]]:
    """(side, loss of the fast choice / smallest loss), per side; groups are summed, each at its own optimum."""
    site = recording.site
    fast = ProductSearch(objective_of(recording, options.metric), options, site.rhs_is_weight)
    exhaustive = ProductSearch(
        objective_of(recording, options.metric), replace(options, search="exhaustive"), site.rhs_is_weight
    )
    for side, grid, other in turns(recording, options, fast):
        losses = []
        for search in (fast, exhaustive):
            found = search.search(side, grid, other)
            pair = (found, other) if side == "lhs" else (other, found)
            losses.append(exhaustive.product.loss(pair[0], pair[1], grid.groups, grid.axis).sum().item())
        yield side, losses[0] / max(losses[1], 1e-300)


def choice_ratio(recording: Recording, options: Options) -> float | None:
    """What the channels that a few rows speak for lose, over the least that any lose, both as the fast search estimates
    it; None without a choice."""
    choices = [None, *channel_choices(recording, options)]
    if len(choices) == 1:
        return None
    losses = {
        choice: search_site(with_channels(recording, choice), options).losses[options.metric] for choice in choices
    }
    kept = min(losses[choice] for choice in preselect_channels(recording, choices, options))
    return kept / max(min(losses.values()), 1e-300)


def turns(
    recording: Recording, options: Options, fast: ProductSearch
) -> Iterator[tuple[Side, Grid, Quantizer | Float]]:
    """What a search of both sides looks at: a weight next to the float left side, then the left side next to it; of
    two activations the left one next to the covering scale, then the right one next to it. Separately: each side next
    to the float other one."""
    rhs_grid, start = rhs_search_space(recording, options)
    lhs_grid = lhs_grids(recording, options)[0]
    form = Float(lhs_grid.pick([0] * lhs_grid.groups))
    if options.rounds == 0:
        yield from (("lhs", lhs_grid, Float()), ("rhs", rhs_grid, form))
    elif recording.site.rhs_is_weight:
        yield from (("rhs", rhs_grid, form), ("lhs", lhs_grid, fast.search("rhs", rhs_grid, form)))
    else:
        yield from (("lhs", lhs_grid, start), ("rhs", rhs_grid, fast.search("lhs", lhs_grid, start)))


def quality(name: str, bits: list[int], images: int, form: str, seed: int) -> None:
    model = real_data.load_model(name)
    pixels = torch.from_numpy(real_data.calibration_images(model, images, seed).images)
    print("| bits | searches | within 1 % | worst ratio | worst site |\n|---|---|---|---|---|")
    for k in bits:
        options = replace(options_of(k, images, form), seed=seed)
        found, chosen = [], []
        for plain in record(model.module, pixels, options.seed, options.labels):
            recording = with_channels(plain, next(iter(channel_choices(plain, options)), None))
            found += [(ratio, f"{recording.site.name} {side}") for side, ratio in ratios(recording, options)]
            chosen += [ratio for ratio in [choice_ratio(plain, options)] if ratio is not None]
        for ratio, search in sorted(found, reverse=True):
            if ratio > NEAR:
                print(f"{k} bits, {search}: {ratio:.3f}", file=sys.stderr)
        values = np.asarray([ratio for ratio, _ in found])
        worst = max(found)
        print(
            f"| {k} | {len(found)} | {100 * (values <= NEAR).mean():.1f} % | {worst[0]:.3f} | {worst[1]} |",
            flush=True,
        )
        if chosen:
            near = sum(ratio <= NEAR for ratio in chosen)
            print(f"{k} bits, channels: {near} of {len(chosen)} within 1 %, worst {max(chosen):.3f}", file=sys.stderr)


def options_of(bits: int, images: int, form: str) -> Options:
    return MAKE[form](weight_bits=bits, activation_bits=bits, images=images)


def speed(name: str, blocks: int, images: int, bits: int, form: str) -> None:
    model = load(resolve(name), random_weights=True)
    pixels = torch.from_numpy(built_in_photos(model.preprocessing, "calibration", images, 0).images)
    started = time.perf_counter()
    with torch.no_grad():
        for start in range(0, len(pixels), 4):
            model.module(pixels[start : start + 4])
    forward = time.perf_counter() - started
    options = options_of(bits, images, form)
    seconds = {"fast": 0.0, "exhaustive": 0.0}
    for index, recording in enumerate(record(model.module, pixels, options.seed, options.labels)):
        if index >= 1 + 6 * (blocks + 1):
            break
        if index < 7:  # the head and the last block, whose rows are nearly all dropped, would flatter exhaustive search
            continue
        taken = {}
        for search in seconds:
            started = time.perf_counter()
            calibrate([recording], replace(options, search=search))  # type: ignore[arg-type]
            taken[search] = time.perf_counter() - started
            seconds[search] += taken[search]
        print(f"{recording.site.name}: {taken['exhaustive']:.1f} s and {taken['fast']:.2f} s", file=sys.stderr)
    started = time.perf_counter()
    calibrate(record(model.module, pixels, options.seed, options.labels), options, pixels=model.pixel_grid)
    whole = time.perf_counter() - started
    print(f"{name}, {form}, {images} images, {blocks} block(s), {torch.get_num_threads()} threads")
    ratio = seconds["exhaustive"] / seconds["fast"]
    print(f"  exhaustive {seconds['exhaustive']:.1f} s, fast {seconds['fast']:.1f} s: {ratio:.1f} times faster")
    print(f"  whole calibration {whole:.1f} s = {whole / forward:.1f} float forward passes of {forward:.1f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("quality", "speed"))
    parser.add_argument("--model")
    parser.add_argument("--bits", nargs="+", type=int, default=[8, 6, 4])
    parser.add_argument("--images", type=int, default=32)
    parser.add_argument("--blocks", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0, help="of quality: picks the photos, the labels and the samples")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--paper", dest="form", action="store_const", const="published form", help="instead of defaults")
    form.add_argument("--base", dest="form", action="store_const", const="Base PTQ", help="instead of the defaults")
    parser.set_defaults(form="defaults")
    parsed = parser.parse_args()
    process.keep_freed_memory()
    if parsed.what == "quality":
        quality(parsed.model or "vit_t", parsed.bits, parsed.images, parsed.form, parsed.seed)
    else:
        speed(parsed.model or "deit_s", parsed.blocks, parsed.images, parsed.bits[0], parsed.form)


if __name__ == "__main__":
    main()
