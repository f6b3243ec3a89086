"""Every family of vision transformers, the whole way: exported with random weights, quantised, proved.

    python benchmarks/families.py [--only NAME ...] [--jobs 2] [--resume]

Runs `ptq4vit-onnx export --random-weights` for the smallest variant of each family, one process for each, with 4 photos
to calibrate on. With so few, the export measures on crops of the built-in photos, fewer of large images. Prints one
Markdown row per model: sites, products in integers, sites that equal integer arithmetic, images whose outputs are the
simulator's bit for bit, seconds. Where a real model takes more than about five minutes it is made smaller by an option,
and the row says so. Writes benchmarks/results/families.json after every row; --resume leaves out what it holds of the
same commit. A row that fails shows its error and makes the exit code 1.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks import measured_code, results
from ptq4vit_onnx.graph.model_proto import load

PHOTOS = measured_code.ROOT / "models" / "photos"
IMAGES, LIMIT = 4, 1800  # photos to calibrate on; seconds for one export
CANDIDATES = 8  # of the search, which is cut short: with random weights only structure and parity count
COLUMNS = ("family", "model", "size", "output", "sites", "in integers", "exact", "bit for bit", "seconds", "remark")


@dataclass(frozen=True)
class Family:
    """options: of the export. config: of a transformers model; its folder is made of it. remark: what is unusual."""

    name: str
    model: str
    options: tuple[str, ...] = ()
    config: Mapping[str, Any] = field(default_factory=dict)
    remark: str = ""


NO_HEAD, FLOAT = ("--num-classes", "0"), ("--allow-float",)
SMALL = {"hidden_size": 192, "num_hidden_layers": 4, "num_attention_heads": 3, "intermediate_size": 768,
         "image_size": 224, "patch_size": 16}  # fmt: skip
WINDOWS = {"embed_dim": 48, "depths": [2, 2], "num_heads": [2, 4], "image_size": 224, "patch_size": 4}
SAM = {"hidden_size": 192, "num_hidden_layers": 4, "num_attention_heads": 3, "mlp_dim": 768, "output_channels": 64,
       "image_size": 256, "patch_size": 16, "window_size": 7, "global_attn_indexes": [1, 3]}  # fmt: skip


def transformers(name: str, cls: str, kind: str, config: Mapping[str, Any], *options: str, **more: Any) -> Family:
    full = {"model_type": kind, "architectures": [cls], **config, **more}
    return Family(f"{name} (transformers)", cls, options, full, "small config")


FAMILIES = (
    Family("DINOv2", "vit_small_patch14_dinov2", ("--img-size", "224")),
    Family("DINOv2, registers", "vit_small_patch14_reg4_dinov2", ("--img-size", "224")),
    Family("DINOv2, 518 px", "vit_small_patch14_dinov2"),
    Family("DINOv2, registers, 518 px", "vit_small_patch14_reg4_dinov2"),
    Family("DINOv3", "vit_small_patch16_dinov3"),
    Family("SigLIP", "vit_base_patch16_siglip_224"),
    Family("SigLIP2", "vit_base_patch32_siglip_256"),
    Family("CLIP", "vit_base_patch32_clip_224.openai"),
    Family("EVA02, with head", "eva02_tiny_patch14_336"),
    Family("EVA02", "eva02_tiny_patch14_224"),
    Family("EVA", "eva_large_patch14_196"),
    Family("BEiT", "beit_base_patch16_224"),
    Family("BEiTv2", "beitv2_base_patch16_224"),
    Family("DeiT-III", "deit3_small_patch16_224"),
    Family("DeiT distilled", "deit_tiny_distilled_patch16_224"),
    Family("SwinV2", "swinv2_tiny_window8_256"),
    Family("SwinV2-CR", "swinv2_cr_tiny_224"),
    Family("CaiT", "cait_xxs24_224"),
    Family("ConViT", "convit_tiny"),
    Family("CrossViT", "crossvit_tiny_240"),
    Family("XCiT", "xcit_nano_12_p16_224", FLOAT),
    Family("FlexiViT", "flexivit_small"),
    Family("NaFlexViT", "naflexvit_base_patch16_gap"),
    Family("SAM", "samvit_base_patch16", (*NO_HEAD, *FLOAT, "--img-size", "512"), remark="512 px instead of 1024"),
    Family("SAM, 224 px", "samvit_base_patch16_224", NO_HEAD),
    Family("TNT", "tnt_s_patch16_224", FLOAT),
    Family("NesT", "nest_tiny_jx", FLOAT),
    Family("Twins-PCPVT", "twins_pcpvt_small", FLOAT),
    Family("Twins-SVT", "twins_svt_small", FLOAT),
    Family("ViT (torchvision)", "torchvision:vit_b_16"),
    Family("Swin (torchvision)", "torchvision:swin_t"),
    Family("SwinV2 (torchvision)", "torchvision:swin_v2_t"),
    transformers("ViT", "ViTForImageClassification", "vit", SMALL),
    transformers("DeiT", "DeiTForImageClassification", "deit", SMALL),
    transformers("BEiT", "BeitForImageClassification", "beit", SMALL, use_relative_position_bias=True),
    transformers("Swin", "SwinForImageClassification", "swin", WINDOWS, window_size=7),
    transformers("SwinV2", "Swinv2ForImageClassification", "swinv2", WINDOWS, window_size=7),
    transformers("DINOv2", "Dinov2Model", "dinov2", SMALL, patch_size=14),
    transformers("CLIP", "CLIPVisionModelWithProjection", "clip_vision_model", SMALL, projection_dim=128),
    transformers("SigLIP", "SiglipVisionModel", "siglip_vision_model", SMALL),
    transformers("SAM", "SamVisionModel", "sam_vision_model", SAM, *FLOAT),
    Family("LeViT", "levit_128s", FLOAT),
    Family("MobileViT", "mobilevit_xxs", FLOAT),
    Family("EfficientFormer", "efficientformer_l1", FLOAT),
    Family("PVT v2", "pvt_v2_b0", FLOAT),
    Family("MaxViT", "maxvit_rmlp_pico_rw_256", FLOAT),
    Family("Hiera", "hiera_tiny_224", FLOAT),
    Family("TinyViT", "tiny_vit_5m_224", FLOAT),
    Family("PiT", "pit_ti_224", FLOAT),
    Family("CoAtNet", "coatnet_pico_rw_224", FLOAT),
    Family("NextViT", "nextvit_small", FLOAT),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="families or models whose names contain one of these")
    parser.add_argument("--jobs", type=int, default=1, help="exports side by side (1)")
    parser.add_argument("--resume", action="store_true", help="leave out rows of this commit that succeeded")
    parsed = parser.parse_args()
    known = {row["family"]: row for row in results.read("families").get("rows", ())}
    wanted = [family for family in FAMILIES if parsed.only is None or _matches(family, parsed.only)]
    commit = results.provenance()["commit"]
    done = {name for name, row in known.items() if row["commit"] == commit and not row["error"]}
    todo = [family for family in wanted if not (parsed.resume and family.name in done)]
    print("| " + " | ".join(COLUMNS) + " |\n|" + "---|" * len(COLUMNS), flush=True)
    for row in measured(todo, parsed.jobs):
        known[row["family"]] = row
        print(_line(row), flush=True)
        results.write("families", _in_order(known), images=IMAGES, candidates=CANDIDATES)
    failed = [family.name for family in wanted if known.get(family.name, {}).get("error")]
    if failed:
        raise SystemExit(f"{len(failed)} of {len(wanted)} families failed: {', '.join(failed)}")


def _matches(family: Family, names: Iterable[str]) -> bool:
    return any(name.lower() in f"{family.name} {family.model}".lower() for name in names)


def _in_order(rows: Mapping[str, Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [rows[family.name] for family in FAMILIES if family.name in rows]


def measured(families: list[Family], jobs: int) -> Iterator[dict[str, Any]]:
    """A row for each, as they end."""
    with tempfile.TemporaryDirectory(prefix="ptq4vit_onnx_") as folder, ThreadPoolExecutor(jobs) as pool:
        photos = Path(folder) / "photos"
        photos.mkdir()
        for path in sorted(PHOTOS.glob("*.jpg"))[: 2 * IMAGES]:
            shutil.copy(path, photos)
        places = [Path(folder) / str(number) for number in range(len(families))]
        waiting = [pool.submit(measure, *item, photos, jobs) for item in zip(families, places, strict=True)]
        yield from (future.result() for future in as_completed(waiting))


def measure(family: Family, folder: Path, photos: Path, jobs: int) -> dict[str, Any]:
    """The row of one family; its export is deleted."""
    folder.mkdir()
    command = [sys.executable, "-m", "ptq4vit_onnx", "export", "--model", _address(family, folder), "--random-weights",
               "--images", str(IMAGES), "--data", str(photos), "--output", str(folder / "export"), "--json",
               "--candidates", str(CANDIDATES),
               *family.options]  # fmt: skip
    environment = os.environ | ({"OMP_NUM_THREADS": "1"} if jobs > 1 else {})
    started = time.perf_counter()
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, env=environment,
                              cwd=measured_code.ROOT)  # fmt: skip
        found: dict[str, Any] = {"error": _last_line(done.stderr)}
        if done.returncode == 0:
            found = {**_of_report(json.loads(done.stdout)), "size": _size(folder / "export" / "float.onnx")}
    except subprocess.TimeoutExpired:
        found = {"error": f"more than {LIMIT} seconds"}
    shutil.rmtree(folder)
    own = {"family": family.name, "model": family.model, "options": list(family.options), "remark": family.remark}
    source = {key: value for key, value in results.provenance().items() if key in ("commit", "date")}
    return {"error": "", **own, **found, "seconds": round(time.perf_counter() - started), **source}


def _address(family: Family, folder: Path) -> str:
    """What --model is: a name, or the folder of a transformers model, which is made here."""
    if not family.config:
        return family.model
    place = folder / family.model
    place.mkdir()
    (place / "config.json").write_text(json.dumps(family.config), encoding="utf-8")
    return f"transformers:{place}"


def _of_report(report: Mapping[str, Any]) -> dict[str, Any]:
    products, parity, floats = report["kernels"]["products"], report["site_parity"], report["float_products"]
    return {
        "output": report["output"]["kind"],
        "sites": report["sites"],
        "float products": dict(floats),
        "products": len(products) + len(floats),
        "integer products": sum(item["integer"] for item in products),
        "checked": len(parity),
        "exact": sum(item["exact"] for item in parity),
        "measured images": report["end_to_end"]["images"],
        "identical percent": report["end_to_end"]["identical"],
        "end to end": report["end_to_end"]["sentence"],
    }


def _size(path: Path) -> list[int]:
    """Height and width of the images that a float file takes."""
    axes = load(path, weights=False).graph.input[0].type.tensor_type.shape.dim
    return [axis.dim_value for axis in axes[2:]]


def _last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "no message")


def _line(row: Mapping[str, Any]) -> str:
    if row["error"]:
        return f"| {row['family']} | {row['model']} | | | | | | | {row['seconds']} | FAILED: {row['error']} |"
    floats = row["float products"]
    words = [
        row["remark"],
        f"float: {', '.join(list(floats)[:2])}{', ..' if len(floats) > 2 else ''}" if floats else "",
    ]
    cells = (
        row["family"], row["model"], " x ".join(map(str, row["size"])), row["output"], row["sites"],
        f"{row['integer products']} of {row['products']}", f"{row['exact']} of {row['checked']}",
        f"{row['identical percent']:.4g} % of {row['measured images']}", row["seconds"],
        "; ".join(word for word in words if word),
    )  # fmt: skip
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


if __name__ == "__main__":
    main()
