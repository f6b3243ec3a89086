"""One file, many engines: do they load it, run its products in integers, and predict the same?

    python benchmarks/engines.py --environments DIR --exports DIR [--only NAME ...] [--photos 1000]

Every engine and version gets an environment of its own in --environments (made where it is missing, kept). Models
are exported to --exports, or taken from there if the export is of this commit. ViT-T and DeiT-T need the weights and
photos that benchmarks/real_data.py describes; digits are embedded. The float model is computed by the newest ONNX
Runtime, this interpreter's own. Writes benchmarks/results/engines.json after every model. The exit code is 1 where an
engine that we claim breaks a limit; engine_runs.py has the limits, CLAIMED and TRIED the engines.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks import real_data, results
from benchmarks.engine_runs import (
    CLAIMED,
    ONNX_RUNTIMES,
    TRIED,
    Array,
    Engine,
    FailedError,
    UnavailableError,
    compare,
    run,
)
from ptq4vit_onnx import api
from ptq4vit_onnx.graph.model_file import read_model_file
from ptq4vit_onnx.images.embedded import embedded_digits
from ptq4vit_onnx.images.loading import load_images
from ptq4vit_onnx.images.preprocessing import Preprocessing

FOLD, SLOW_IMAGES = 3, 16  # of the validation photos; how many the reference evaluator computes


@dataclass(frozen=True)
class Exported:
    """A model of the table. options: of the export."""

    title: str
    model: str
    options: Mapping[str, Any]

    @property
    def folder(self) -> str:
        return self.title.lower().replace(" ", "_").replace(",", "")


MODELS = (
    *(
        Exported(f"{title} W{bits}A8", model, {"weight_bits": bits, "activation_bits": 8})
        for title, model in (("ViT-T", "vit_t"), ("DeiT-T", "deit_t"))
        for bits in (8, 6, 4)
    ),
    Exported("vit_digits W8A8", "vit_digits", {"bits": 8}),
    Exported("vit_digits W6A8, both twins", "vit_digits", {"weight_bits": 6, "activation_bits": 8, "twin": "both"}),
    Exported("vit_digits W4A8", "vit_digits", {"weight_bits": 4, "activation_bits": 8}),
    Exported("swin_digits W8A8", "swin_digits", {"bits": 8}),
    Exported(
        "vit_digits W4A8, for OpenVINO", "vit_digits", {"weight_bits": 4, "activation_bits": 8, "target": "openvino"}
    ),
)


def main() -> None:
    parsed = parse()
    known = {(row["model"], row["engine"]): row for row in results.read("engines").get("rows", ())}
    broken = []
    for model in MODELS:
        if parsed.only and not any(name.lower() in model.title.lower() for name in parsed.only):
            continue
        for row in measured(model, parsed):
            known[row["model"], row["engine"]] = row
            broken += [f"{row['model']} in {row['engine']}: {line}" for line in row["broken"]]
            print(row, flush=True)
        results.write("engines", _in_order(known), fold=FOLD)
    if broken:
        raise SystemExit("\n".join(broken))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--environments", type=Path, required=True, metavar="DIR", help="where engines are installed")
    parser.add_argument("--exports", type=Path, required=True, metavar="DIR", help="where exported models are kept")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="models whose names contain one of these")
    parser.add_argument("--photos", type=int, default=1000, help="validation photos of fold 3 (1000)")
    return parser.parse_args()


def measured(model: Exported, parsed: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A row for every engine."""
    folder = export(model, parsed.exports)
    with tempfile.TemporaryDirectory(prefix="ptq4vit_onnx_") as scratch:
        images, few = Path(scratch) / "images.npy", Path(scratch) / "few.npy"
        prepared = prepared_images(model, folder, parsed.photos)
        np.save(images, prepared)
        np.save(few, prepared[:SLOW_IMAGES])
        newest = run(Engine("onnxruntime"), folder / "model.onnx", images, parsed.environments).outputs
        floats = run(Engine("onnxruntime"), folder / "float.onnx", images, parsed.environments).outputs
        for engine in (*CLAIMED, Engine("onnxruntime"), *TRIED):
            fed = few if engine.package == "onnx" else images
            found = row(engine, folder / "model.onnx", fed, parsed.environments, newest, floats)
            claimed = engine not in TRIED
            found = found if claimed else {**found, "broken": []}
            source = {key: value for key, value in results.provenance().items() if key in ("commit", "date")}
            yield {"model": model.title, "engine": str(engine), "claimed": claimed, **found, **source}


def row(engine: Engine, model: Path, images: Path, environments: Path, newest: Array, floats: Array) -> dict[str, Any]:
    """What is measured of one engine; where it cannot run the model, why."""
    try:
        outcome = run(engine, model, images, environments)
    except (FailedError, UnavailableError) as error:
        return {"error": _short(error), "why": str(error), "broken": [str(error)]}
    judged = compare(outcome.outputs, newest, floats)
    return {
        "error": "", "images": judged.images, "integers": outcome.integers, "products": outcome.products,
        "identical %": judged.identical, "agreement %": judged.agreement, "kl": judged.kl,
        "newest kl": judged.newest_kl, "broken": judged.broken,
    }  # fmt: skip


def _short(error: Exception) -> str:
    return "cannot be had" if isinstance(error, UnavailableError) else "does not load"


def export(model: Exported, folder: Path) -> Path:
    """The model's folder, exported there unless this very commit did so."""
    place = folder / model.folder
    # next to the folder: an export does not replace a folder with a file that is none of its own
    stamp, commit = folder / f"{model.folder}.commit", results.provenance()["commit"]
    if not (place.is_dir() and stamp.is_file() and stamp.read_text(encoding="utf-8") == commit):
        print(f"exporting {model.title}", file=sys.stderr, flush=True)
        real = model.model in real_data.WEIGHTS
        data = real_data.require_folder() if real else None
        weights: dict[str, Any] = (
            {}
            if data is None
            else {
                "checkpoint": data / "weights" / real_data.WEIGHTS[model.model],
                "data": data / "calibration",
            }
        )
        api.export(model.model, output=place, force=True, **model.options, **weights)
        stamp.write_text(commit, encoding="utf-8")
    return place


def prepared_images(model: Exported, folder: Path, photos: int) -> Array:
    preprocessing: Preprocessing = read_model_file(folder / "float.onnx").preprocessing
    if model.model not in real_data.WEIGHTS:
        return embedded_digits(preprocessing, "test").images
    validation = real_data.require_folder() / "validation"
    return load_images(validation, preprocessing, photos, where=lambda entry: entry["fold"] == str(FOLD)).images


def _in_order(rows: Mapping[tuple[str, str], Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Model after model, each with the engines from the oldest to the newest of a kind."""
    engines = [str(engine) for engine in (*CLAIMED, *TRIED)]
    newest = engines.index(str(Engine("onnxruntime", ONNX_RUNTIMES[-1]))) + 1
    engines.insert(newest, f"ONNX Runtime {version('onnxruntime')}")
    wanted = [(model.title, engine) for model in MODELS for engine in engines]
    return [rows[key] for key in wanted if key in rows]


if __name__ == "__main__":
    main()
