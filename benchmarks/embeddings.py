"""Classifiers without their heads, as embedding models: how faithful is the file in integers?

    python benchmarks/embeddings.py files --nncf-venv DIR      # float, W8A8, W6A6 and NNCF's W8A8 side by side
    python benchmarks/embeddings.py curvature --seed 0 1 2     # the metric of embeddings against that of logits

ViT-T and DeiT-T with real weights, heads off: [n, 192]. Calibrated on 32 training photos. Cosines to the float model
and kept nearest neighbours are over the validation photos; k-NN accuracy is that of the nearest photo in a gallery of
1000 training photos, one per class: of ten neighbours with a vote each the nearest wins. `vit_t dominated` is ViT-T
with four of its embedding's coordinates times 20, as a few coordinates dominate CLIP's embeddings. Writes
benchmarks/results/embeddings_MODE.json.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks import nncf_peer, peers, real_data, results
from benchmarks.plans import plan_on_photos
from ptq4vit_onnx.cli.tables import table
from ptq4vit_onnx.float_export.exporter import export_float
from ptq4vit_onnx.graph.model_proto import load, save_model
from ptq4vit_onnx.images.loading import ImageSet, load_images
from ptq4vit_onnx.model_loading.load import LoadedModel, fingerprint_of
from ptq4vit_onnx.network.discovery import discover
from ptq4vit_onnx.output_kinds.kinds import KINDS
from ptq4vit_onnx.output_kinds.output_kind import Gallery, Kept
from ptq4vit_onnx.plan.options import Options
from ptq4vit_onnx.proof.kernels import audit
from ptq4vit_onnx.proof.prove import quantize_model
from ptq4vit_onnx.runtime import process
from ptq4vit_onnx.runtime.session import run

Array = np.ndarray[Any, Any]
EMBEDDING = KINDS["embedding"]
DOMINATED = "vit_t dominated"
DOMINATING, TIMES = (7, 40, 101, 150), 20.0


@dataclass(frozen=True)
class Subject:
    """One embedding model: its float file, its photos, and what the float file makes of them."""

    model: LoadedModel
    float_path: Path
    calibration: ImageSet
    gallery: ImageSet
    queries: ImageSet
    folder: Path

    def embeddings(self, path: Path, images: ImageSet) -> Array:
        return run(path, images.images, threads=0)


def headless(name: str) -> LoadedModel:
    """The model without its head."""
    model = real_data.load_model(name.partition(" ")[0])
    module: Any = model.module
    module.reset_classifier(0)
    if name == DOMINATED:
        with torch.no_grad():
            for parameter in (module.norm.weight, module.norm.bias):
                parameter[list(DOMINATING)] *= TIMES
    return replace(
        model, name=name, kind=EMBEDDING, outputs=("embedding",), classes=0, fingerprint=fingerprint_of(module)
    )


def subject_of(name: str, limit: int | None, folder: Path, seed: int = 0) -> Subject:
    model, data = headless(name), real_data.require_folder()
    float_path = folder / f"{name.replace(' ', '_')}.float.onnx"
    if not float_path.exists():
        save_model(export_float(model, discover(model.module, torch.zeros(1, *model.preprocessing.size))), float_path)
    gallery, queries = (load_images(data / part, model.preprocessing, limit) for part in ("calibration", "validation"))
    return Subject(model, float_path, real_data.calibration_images(model, seed=seed), gallery, queries, folder)


def quantised(subject: Subject, bits: int, seed: int = 0, curvature: str = "embedding") -> Path:
    """The file in integers. curvature: the kind whose metric the search minimises."""
    model = subject.model
    options = Options(weight_bits=bits, activation_bits=bits, seed=seed)
    plan = plan_on_photos(replace(model, kind=KINDS[curvature]), options)
    path = subject.folder / f"{model.name.replace(' ', '_')}.{curvature}.{options.label}.{seed}.onnx"
    return quantize_model(load(subject.float_path), plan, path)[0]


def faithfulness(held: Array, wanted: Array) -> dict[str, float]:
    """Of embeddings [n, d] to the float model's: cosines, and how many keep their nearest neighbour, in percent."""
    versus = EMBEDDING.compare(Kept(held, ("embedding",)), Kept(wanted, ("embedding",)))
    return {
        "cosine": versus.cosine,
        "worst cosine": versus.worst_cosine,
        "neighbour kept %": versus.agreement,
    }


def accuracy(subject: Subject, path: Path, queries: Array) -> float:
    """Percent of queries whose nearest gallery photo, by cosine, is of their class."""
    assert subject.gallery.labels is not None and subject.queries.labels is not None
    gallery = Gallery(subject.embeddings(path, subject.gallery), subject.gallery.labels)
    found = EMBEDDING.alone(Kept(queries, ("embedding",), subject.queries.labels, gallery))["knn"]
    assert found is not None
    return found


def judged(subject: Subject, files: dict[str, Path]) -> Iterator[dict[str, Any]]:
    """A row for each file; the first is the float one."""
    wanted: Array | None = None
    for title, path in files.items():
        held = subject.embeddings(path, subject.queries)
        wanted = held if wanted is None else wanted
        yield {
            "model": subject.model.name,
            "file": title,
            **(faithfulness(held, wanted) if held is not wanted else {}),
            "k-NN %": accuracy(subject, path, held),
            "in integers": peers.in_integers(audit(path)),
        }


def files_side_by_side(parsed: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for name in parsed.model:
        subject = subject_of(name, parsed.limit, folder)
        files = {"float": subject.float_path}
        files |= {f"W{bits}A{bits}": quantised(subject, bits) for bits in parsed.bits}
        if parsed.nncf_venv is not None:
            python = nncf_peer.environment(parsed.nncf_venv)
            title, target = f"NNCF {nncf_peer.version(python)} W8A8", folder / f"{name}.nncf.onnx"
            files[title] = nncf_peer.quantize(python, subject.float_path, subject.calibration.images, target)
        rows += judged(subject, files)
    return rows


def curvatures(parsed: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for name in (*parsed.model, DOMINATED):
        for seed in parsed.seed:
            subject = subject_of(name, parsed.limit, folder, seed)
            wanted = subject.embeddings(subject.float_path, subject.queries)
            for bits in parsed.bits:
                for curvature in ("embedding", "logits"):
                    held = subject.embeddings(quantised(subject, bits, seed, curvature), subject.queries)
                    rows.append({"model": name, "bits": bits, "curvature": curvature, "seed": seed}
                                | faithfulness(held, wanted))  # fmt: skip
                    print(rows[-1], file=sys.stderr, flush=True)
    return rows + means(rows)


def means(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Over the seeds; the worst cosine stays the worst."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["model"], row["bits"], row["curvature"]), []).append(row)
    return [
        dict(zip(("model", "bits", "curvature", "seed"), (*key, "mean"), strict=True))
        | {name: float(np.mean([row[name] for row in group])) for name in ("cosine", "neighbour kept %")}
        | {"worst cosine": min(row["worst cosine"] for row in group)}
        for key, group in groups.items()
    ]


def shown(rows: list[dict[str, Any]]) -> str:
    titles = list(dict.fromkeys(title for row in rows for title in row))
    cells = [tuple(_cell(title, row.get(title, "")) for title in titles) for row in rows]
    return table([tuple(titles), *cells])


def _cell(title: str, value: Any) -> str:
    return str(value) if not isinstance(value, float) else f"{value:.1f}" if title.endswith("%") else f"{value:.4f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=("files", "curvature"))
    parser.add_argument("--model", nargs="+", default=["vit_t", "deit_t"], choices=sorted(real_data.WEIGHTS))
    parser.add_argument("--bits", nargs="+", type=int, default=[8, 6])
    parser.add_argument("--limit", type=int, help="photos of gallery and queries (all)")
    parser.add_argument("--seed", nargs="+", type=int, default=[0], help="of calibration photos and signs")
    parser.add_argument("--nncf-venv", type=Path, metavar="DIR", help="a folder for NNCF's environment")
    parsed = parser.parse_args()
    process.keep_freed_memory()
    with tempfile.TemporaryDirectory() as scratch:
        rows = (files_side_by_side if parsed.mode == "files" else curvatures)(parsed, Path(scratch))
    print(shown(rows))
    settings = {"bits": parsed.bits, "seeds": parsed.seed, "limit": parsed.limit}
    print(results.write(f"embeddings_{parsed.mode}", rows, **settings))


if __name__ == "__main__":
    main()
