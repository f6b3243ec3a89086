"""This tool next to its peers on real photos: ONNX Runtime's `quantize_static` and NNCF, all at W8A8.

    python benchmarks/peers.py --model vit_t deit_t --nncf-venv DIR
    python benchmarks/peers.py --model vit_t --ours vit_t_w8a8/model.onnx --without nncf --limit 200

All start from the same float file and the same 32 calibration photos, and are measured on the same validation photos in
ONNX Runtime. NNCF runs in a virtual environment of its own, made in the folder that --nncf-venv names (kept, and used
again), so that its requirements do not meet this tool's. "In integers" counts the float model's products: one counts if
every kernel that ONNX Runtime runs for it is an integer kernel. Speed: runs of all models take turns.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks import nncf_peer, real_data
from benchmarks.nncf_peer import say
from ptq4vit_onnx.errors import UserError
from ptq4vit_onnx.evaluation.evaluate import Evaluation, evaluate_files
from ptq4vit_onnx.graph.model_file import ModelFile, read_model_file, require_reference_of
from ptq4vit_onnx.graph.model_proto import file_bytes
from ptq4vit_onnx.images.loading import ImageSet, load_images
from ptq4vit_onnx.images.stream import ImageSource, Where
from ptq4vit_onnx.proof.kernels import KernelAudit, audit
from ptq4vit_onnx.runtime.bench import Timing, bench
from ptq4vit_onnx.runtime.cpu import cpu_features
from ptq4vit_onnx.studies.peers import PEERS, quantize_static_peer

CALIBRATION_IMAGES = 32
COLUMNS = ("model", "tool", "top-1 %", "drop", "agreement %", "KL", "products in integers", "MB",
           "ms (quartiles)", "speed")  # fmt: skip
OURS = "ptq4vit-onnx"
# Which of quantize_static's settings is best on which model; static_peer says what they are.
BEST_STATIC = {"vit_t": "ort-static-percentile", "deit_t": "ort-static-minmax"}


@dataclass(frozen=True)
class Peer:
    """One row of the table."""

    tool: str
    evaluation: Evaluation
    kernels: KernelAudit
    bytes: int
    timing: Timing

    def cells(self) -> tuple[str, ...]:
        judged = self.evaluation
        drop = "" if judged.drop is None else f"{judged.drop:.1f} ± {judged.drop_error:.1f}"
        return (
            self.tool, _shown(judged.top1, ".1f"), drop, _shown(judged.agreement, ".1f"), _shown(judged.kl, ".4f"),
            in_integers(self.kernels), f"{self.bytes / 1e6:.1f}",
            f"{self.timing.median:.1f} ({self.timing.low:.1f} - {self.timing.high:.1f})", f"{self.timing.speed:.2f}x",
        )  # fmt: skip


def in_integers(kernels: KernelAudit) -> str:
    """By product of the float model: a twin is two kernels here and one product there."""
    sites = {product.site for product in kernels.products}
    return f"{len(sites) - len(kernels.fell_back)} of {len(sites)}"


def rows(name: str, parsed: argparse.Namespace, folder: Path) -> list[Peer]:
    """Build what is missing, then measure everything that was built."""
    reference, ours = float_and_ours(name, parsed.ours, folder)
    images = load_images(real_data.require_folder() / "calibration", reference.preprocessing, CALIBRATION_IMAGES)
    files = {"float": reference.path, OURS: ours}
    if "static" not in parsed.without:
        files |= static_files(name, reference, images, folder)
    if "nncf" not in parsed.without:
        python = nncf_peer.environment(parsed.nncf_venv)
        target = folder / f"{reference.model}.nncf.onnx"
        files[f"NNCF {nncf_peer.version(python)}"] = nncf_peer.quantize(python, reference.path, images.images, target)
    return measure(files, reference, parsed)


def measure(files: Mapping[str, Path], reference: ModelFile, parsed: argparse.Namespace) -> list[Peer]:
    say(f"measuring {len(files)} models")
    timings = bench(files, runs=parsed.runs).timings
    where = Where("fold", str(parsed.fold))
    source = ImageSource(real_data.require_folder() / "validation", parsed.limit, where, skip_unreadable=True)
    # Peers do not carry the metadata on: all prepare images as the float model does.
    models = [replace(reference, path=path) for path in files.values()]
    found = evaluate_files(models, source, reference, progress=bar).models
    return [
        Peer(tool, judged, audit(path), file_bytes(path), timing)
        for (tool, path), judged, timing in zip(files.items(), found, timings, strict=True)
    ]


def float_and_ours(name: str, given: list[Path], folder: Path) -> tuple[ModelFile, Path]:
    """The float file, and this tool's: the one that was given, or one exported with the default options."""
    ours = next((path for path in given if read_model_file(path).model == name), None)
    if ours is None:
        return export(name, folder)
    reference = export_float_file(name, folder)
    require_reference_of(read_model_file(ours), reference)
    return reference, ours


def export(name: str, folder: Path) -> tuple[ModelFile, Path]:
    from ptq4vit_onnx.pipeline import export as run
    from ptq4vit_onnx.request import ExportRequest

    data, out = real_data.require_folder(), folder / name
    say(f"exporting {name}")
    weights = data / "weights" / real_data.WEIGHTS[name]
    run(ExportRequest(name, output=out, checkpoint=weights, data=data / "calibration", force=True), bar)
    return read_model_file(out / "float.onnx"), out / "model.onnx"


def export_float_file(name: str, folder: Path) -> ModelFile:
    import torch

    from ptq4vit_onnx.float_export.exporter import export_float
    from ptq4vit_onnx.graph.model_proto import save_model
    from ptq4vit_onnx.network.discovery import discover

    model = real_data.load_model(name)
    sites = discover(model.module, torch.zeros(1, *model.preprocessing.size))
    return read_model_file(save_model(export_float(model, sites), folder / f"{name}.float.onnx"))


def static_files(name: str, reference: ModelFile, images: ImageSet, folder: Path) -> dict[str, Path]:
    """quantize_static's defaults, and the setting that serves it best on this model."""
    made = {}
    for title, setting in (("defaults", "ort-static"), ("best of seven", BEST_STATIC[name])):
        say(f"quantize_static, {title}")
        path = folder / f"{name}.{setting}.onnx"
        with redirect_stdout(sys.stderr):  # it reports on standard output, where the table goes
            quantize_static_peer(reference.path, images.images, path, PEERS[setting])
        made[f"quantize_static, {title}"] = path
    return made


def bar(items: Iterable[Any], title: str) -> Iterable[Any]:
    from ptq4vit_onnx.cli.main import progress_bar

    return progress_bar(items, title)


def _shown(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="+", default=["vit_t", "deit_t"], choices=sorted(real_data.WEIGHTS))
    parser.add_argument("--ours", nargs="+", type=Path, default=[], metavar="FILE",
                        help="exported files to measure instead of exporting again; each knows its model")  # fmt: skip
    parser.add_argument("--nncf-venv", type=Path, metavar="DIR", help="a folder for NNCF's environment")
    parser.add_argument("--without", nargs="+", default=[], choices=("static", "nncf"))
    parser.add_argument("--fold", type=int, default=3, help="of the validation photos (3)")
    parser.add_argument("--limit", type=int, help="photos to measure on (all of the fold)")
    parser.add_argument("--runs", type=int, default=50, help="timed runs per model, 1 thread, batch 1 (50)")
    parser.add_argument("--save", type=Path, metavar="DIR", help="keep all models in this folder")
    parsed = parser.parse_args(arguments)
    if parsed.nncf_venv is None and "nncf" not in parsed.without:
        parser.error("NNCF needs a folder for its environment: give --nncf-venv DIR, or --without nncf")
    return parsed


def main() -> None:
    parsed = parse()
    print("| " + " | ".join(COLUMNS) + " |\n|" + "---|" * len(COLUMNS), flush=True)
    try:
        with tempfile.TemporaryDirectory() as scratch:
            folder = parsed.save or Path(scratch)
            folder.mkdir(parents=True, exist_ok=True)
            for name in parsed.model:
                for peer in rows(name, parsed, folder):
                    print(f"| {name} | " + " | ".join(peer.cells()) + " |", flush=True)
    except UserError as error:
        raise SystemExit(f"peers: {error}") from error
    print(f"\nmeasured on {cpu_features()}, 1 thread, batch 1 for the speed; fold {parsed.fold} of the photos")


if __name__ == "__main__":
    main()
