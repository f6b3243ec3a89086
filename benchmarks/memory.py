"""Peak resident memory of a calibration.

    python benchmarks/memory.py --model deit_b_384 --images 32

Records every site of the model and searches those of the blocks named (default: the first and the last, which hold the
largest recordings of a Swin and of a ViT), with random weights: memory does not depend on them.
"""

from __future__ import annotations

import argparse
import resource
import time

import torch

from ptq4vit_onnx.calibration.calibrate import plan_site
from ptq4vit_onnx.images.builtin import built_in_photos
from ptq4vit_onnx.model_loading.load import load, resolve
from ptq4vit_onnx.network.discovery import discover
from ptq4vit_onnx.network.tape import record
from ptq4vit_onnx.plan.options import Options
from ptq4vit_onnx.runtime import process


def peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="deit_b_384")
    parser.add_argument("--images", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=1)
    parsed = parser.parse_args()
    process.keep_freed_memory()
    model = load(resolve(parsed.model), random_weights=True)
    pixels = torch.from_numpy(built_in_photos(model.preprocessing, "calibration", parsed.images, 0).images)
    sites = [site.name for site in discover(model.module, pixels[:1])]
    searched = {name for name in sites if name in sites[:8] or name in sites[-8:]}
    options = Options(images=parsed.images, rounds=parsed.rounds)
    started, before = time.perf_counter(), peak()
    for recording in record(model.module, pixels):
        if recording.site.name in searched:
            plan_site(recording, options, model.pixel_grid)
            print(f"{recording.site.name}: peak {peak():.2f} GB", flush=True)
        del recording
    seconds = time.perf_counter() - started
    print(
        f"{parsed.model}, {parsed.images} images: peak {peak():.2f} GB resident ({before:.2f} before), {seconds:.0f} s"
    )


if __name__ == "__main__":
    main()
