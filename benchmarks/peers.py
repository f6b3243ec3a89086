"""This tool next to others on real photos: ONNX Runtime's quantisers, NNCF, AMD Quark, AIMET, NVIDIA ModelOpt.

    python benchmarks/peers.py --model vit_t deit_t --seed 0 1 2 --environments DIR --work DIR
    python benchmarks/peers.py --model deit_t --tool ours NNCF --limit 100 --environments DIR --work DIR

All start from the same float file and the same 32 calibration photos, and are measured on the same validation photos of
both folds in this ONNX Runtime. The other tools run in virtual environments of their own (peer_tools.py), made in the
folder that --environments names, and used again. Files go to --work; what lies there is measured, not made again. A
tool that cannot be installed, or whose file does not run, is a row with its reason. "In integers" counts the float
model's products: one counts if every kernel that ONNX Runtime runs for it is an integer kernel.

Writes benchmarks/results/peers.json; with --limit, which is for a try, it prints the rows and keeps none. Rows of this
commit are not measured again. Speed is measured by benchmarks/speed.py.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import onnx

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks import real_data, results
from benchmarks.budgets import write_four_bits
from benchmarks.peer_tools import TOOLS, Tool, last_words, say
from ptq4vit_onnx.evaluation.evaluate import Evaluation, evaluate_files
from ptq4vit_onnx.graph.model_file import ModelFile, read_model_file
from ptq4vit_onnx.graph.model_proto import file_bytes
from ptq4vit_onnx.images.stream import ImageSource
from ptq4vit_onnx.plan.options import Options
from ptq4vit_onnx.proof.kernels import KernelAudit, audit
from ptq4vit_onnx.studies.peers import PEERS, quantize_static_peer

CALIBRATION_PHOTOS = 32
OURS = "ptq4vit-onnx"
# Which of quantize_static's settings is best on which model; studies/peers.py says what they are.
BEST_STATIC = {"vit_t": "ort-static-percentile", "deit_t": "ort-static-minmax"}
STATIC_TITLES = {
    "ort-static": "defaults (minmax, u8 x s8, all operators)",
    "ort-static-minmax": "the best of seven: minmax, u8 x u8, per channel, products only",
    "ort-static-percentile": "the best of seven: percentile, u8 x u8, products only",
}
DYNAMIC_KERNELS = ("DynamicQuantizeMatMul", "ConvInteger")  # multiply in integers, too: codes are found while running
KEY = ("model", "tool", "seed")
Row = dict[str, Any]
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Subject:
    """What all tools are given: a float file and calibration photos. folder: for the files of this model and seed."""

    name: str
    seed: int
    folder: Path
    reference: ModelFile
    ours: Path
    images: Array


@dataclass(frozen=True)
class Entry:
    """A tool with a setting. make: writes the file of its first argument; says the tool's version."""

    tool: str
    bits: str
    setting: str
    make: Callable[[Path], str]


def subject(name: str, seed: int, work: Path) -> Subject:
    """Exported as a user would; the calibration photos are those that the export took."""
    from ptq4vit_onnx.pipeline import export
    from ptq4vit_onnx.plan.plan_json import read_plan
    from ptq4vit_onnx.request import ExportRequest

    data, folder = real_data.require_folder(), work / f"{name}_{seed}"
    out = folder / "ours"
    if not (out / "model.onnx").is_file():
        say(f"exporting {name}, seed {seed}")
        weights = data / "weights" / real_data.WEIGHTS[name]
        options = Options(seed=seed)
        export(ExportRequest(name, options, out, weights, data=data / "calibration", force=True), bar)
    images = real_data.calibration_images(real_data.load_model(name), CALIBRATION_PHOTOS, seed)
    assert read_plan(out / "plan.json").images == images.fingerprint, "the export was calibrated on other photos"
    return Subject(name, seed, folder, read_model_file(out / "float.onnx"), out / "model.onnx", images.images)


def entries(given: Subject, environments: Path | None) -> Iterator[Entry]:
    yield Entry(OURS, "W8A8", "defaults", lambda path: version("ptq4vit-onnx"))
    for title, setting in (("defaults", "ort-static"), ("best setting", BEST_STATIC[given.name])):
        make = partial(_static, given, setting)
        yield Entry(f"ONNX Runtime quantize_static, {title}", "W8A8", STATIC_TITLES[setting], make)
    if given.seed == 0:  # these look at no photos
        yield Entry("ONNX Runtime quantize_dynamic", "W8A8", "defaults", partial(_dynamic, given))
        four = "blocks of 32, symmetric, accuracy level 4"
        yield Entry("ONNX Runtime MatMulNBitsQuantizer", "W4", four, partial(_four_bits, given))
    for tool in TOOLS if environments is not None else ():
        assert environments is not None
        yield Entry(tool.title, tool.bits, tool.setting, partial(_elsewhere, given, tool, environments))


def _static(given: Subject, setting: str, path: Path) -> str:
    if not path.is_file():
        with redirect_stdout(sys.stderr):  # it reports on standard output, where the rows go
            quantize_static_peer(given.reference.path, given.images, path, PEERS[setting])
    return version("onnxruntime")


def _dynamic(given: Subject, path: Path) -> str:
    from onnxruntime.quantization import quantize_dynamic

    if not path.is_file():
        model = onnx.load(given.reference.path)
        del model.graph.value_info[:]  # it transposes weights, and then refuses the shapes that the file has for them
        quantize_dynamic(model, path)
    return version("onnxruntime")


def _four_bits(given: Subject, path: Path) -> str:
    if not path.is_file():
        write_four_bits(given.reference.path, path)
    return version("onnxruntime")


def _elsewhere(given: Subject, tool: Tool, environments: Path, path: Path) -> str:
    python = tool.environment(environments)
    if not path.is_file():
        tool.quantize(python, given.reference.path, given.images, path)
    return tool.version(python)


def rows(given: Subject, wanted: Sequence[Entry], limit: int | None) -> Iterator[Row]:
    """Make what is missing, then measure everything that runs, all on the same photos."""
    made: dict[Path, tuple[Row, KernelAudit]] = {}
    for entry in wanted:
        about = {"model": given.name, "tool": entry.tool, "seed": given.seed, "bits": entry.bits,
                 "setting": entry.setting, "version": "", "failure": ""}  # fmt: skip
        path = given.ours if entry.tool == OURS else given.folder / f"{file_name(entry.tool)}.onnx"
        try:
            about["version"] = entry.make(path)
            made[path] = about, audit(path)
        except Exception as error:  # of another tool or of the engine: whatever it is, it is what the row says
            yield {**about, "failure": last_words(str(error)) or type(error).__name__}
    source = ImageSource(real_data.require_folder() / "validation", limit, skip_unreadable=True)
    # Peers do not carry the metadata on: all prepare images as the float model does.
    models = [replace(given.reference, path=path) for path in made]
    found = evaluate_files(models, source, given.reference, progress=bar)
    yield {"model": given.name, "tool": "float", "seed": given.seed, "bits": "", "setting": "", "version": "",
           "failure": "", "photos": found.reference.images, "top1": found.reference.top1,
           "mb": file_bytes(given.reference.path) / 1e6}  # fmt: skip
    for (path, (about, kernels)), judged in zip(made.items(), found.models, strict=True):
        yield {**about, **figures(judged), **counts(kernels), "mb": file_bytes(path) / 1e6}


def figures(judged: Evaluation) -> Row:
    names = {"top1": "top1", "drop": "drop", "drop_error": "drop_error", "agreement": "agreement", "kl": "kl"}
    return {"photos": judged.images, **{key: getattr(judged, name) for key, name in names.items()}}


def counts(kernels: KernelAudit) -> Row:
    """By product of the float model: a twin is two kernels here and one product there."""
    sites = {product.site for product in kernels.products}
    floats = {item.site for item in kernels.products if not item.integer and item.kernel not in DYNAMIC_KERNELS}
    return {"products": len(sites), "integer_products": len(sites) - len(floats)}


def in_integers(kernels: KernelAudit) -> str:
    found = counts(kernels)
    return f"{found['integer_products']} of {found['products']}"


def file_name(tool: str) -> str:
    return "".join(letter if letter.isalnum() else "_" for letter in tool)


def bar(items: Iterable[Any], title: str) -> Iterable[Any]:
    from ptq4vit_onnx.cli.main import progress_bar

    return progress_bar(items, title)


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="+", default=["vit_t", "deit_t"], choices=sorted(real_data.WEIGHTS))
    parser.add_argument("--seed", nargs="+", type=int, default=[0], help="of the calibration photos")
    parser.add_argument("--tool", nargs="+", default=[""], metavar="WORD", help="only tools whose names have this word")
    parser.add_argument("--environments", type=Path, metavar="DIR", help="for those of the other tools; without: none")
    parser.add_argument("--work", type=Path, required=True, help="a folder for the files")
    parser.add_argument("--limit", type=int, help="photos to measure on, for a try")
    return parser.parse_args(arguments)


def measure(name: str, seed: int, parsed: argparse.Namespace) -> Iterator[Row]:
    given = subject(name, seed, parsed.work)
    asked = [entry for entry in entries(given, parsed.environments) if any(word in entry.tool for word in parsed.tool)]
    known = [entry for entry in asked if not parsed.limit and _is_known(entry, name, seed)]
    if len(known) < len(asked):
        yield from rows(given, [entry for entry in asked if entry not in known], parsed.limit)


def _is_known(entry: Entry, name: str, seed: int) -> bool:
    return results.has("peers", {"model": name, "tool": entry.tool, "seed": seed, "failure": ""})


def main() -> None:
    parsed = parse()
    settings = {"calibration_photos": CALIBRATION_PHOTOS, "engine": f"onnxruntime {version('onnxruntime')}"}
    for seed in parsed.seed:
        for name in parsed.model:
            for row in measure(name, seed, parsed):
                print(row, flush=True)
                if not parsed.limit:
                    results.add("peers", row, KEY, **settings)


if __name__ == "__main__":
    main()
