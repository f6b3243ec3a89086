"""How fast the integer models are: next to their float model, and to what peers make of the same float model.

    python benchmarks/speed.py [--model deit_t deit_s deit_b swin_t] [--variant both/w6a8 static ...]
                               [--threads 1 2] [--batch 1 8] [--runs 15] [--seconds N] [--keep DIR] [--profile VARIANT]
    python benchmarks/speed.py --nncf-venv DIR --variant auto/w8a8 nncf openvino:float openvino:auto/w8a8 openvino:nncf
    python benchmarks/speed.py --real [--model vit_t deit_t] [--limit 1000]

Weights are random, which kernels' times do not depend on, and calibration is cut short: every scale
just covers the largest value on two made-up images. So the forms that `auto` takes are no model's of any use; how many
sites took which is printed. All files of a model are timed in turns, in one process, with sleeping threads; times are
medians and quartiles. Where a model had two modes (ptq4vit_onnx/runtime/modes.py) they are the fast one's, and the
slow one stands beside. Rows go to benchmarks/results/speed_*.json.
Every file of ours is proven before it is timed: all products on integer kernels, none can saturate, and each equals
integer arithmetic on two images. --keep DIR: where files stay, and are taken from.
Our files leave out rows that the head does not read (DropUnreadRows), the float file and `quantize_static` do not:
`float-rows` is the float model with the same rows left out, so float over float-rows is what that alone gains.
Peers: `static` is ONNX Runtime's quantize_static. `nncf` is NNCF's, made of the ONNX file; NNCF runs in the environment
that --nncf-venv names. `openvino:` before a variant runs it in OpenVINO, in the same turns: our plans as files for
OpenVINO (`export --target openvino`), the others as they are; `openvino:nncf` is what NNCF makes of OpenVINO's form of
the model. What stays in float is computed in float32 in both engines.
Figures for AVX2 without VNNI from a newer CPU: benchmarks/avx2_runtime.py.
--real: trained weights, calibrated in full on 32 photos (benchmarks/real_data.py), so that `auto` takes what it takes
for users; top-1 and agreement with float, of validation photos through the very files, stand beside the times.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx_graphsurgeon as gs
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks import avx2_runtime, nncf_peer, real_data
from benchmarks.plans import plan_on, plan_on_photos
from benchmarks.speed_rows import STATIC, heading, keep, line, result_name, rows_of
from ptq4vit_onnx.float_export.exporter import export_float
from ptq4vit_onnx.graph.model_proto import load as load_file
from ptq4vit_onnx.graph.model_proto import save_model
from ptq4vit_onnx.images.builtin import built_in_photos
from ptq4vit_onnx.images.loading import ImageSet
from ptq4vit_onnx.model_loading.load import LoadedModel, load, resolve
from ptq4vit_onnx.network.discovery import discover
from ptq4vit_onnx.output_kinds import metrics
from ptq4vit_onnx.passes.drop_unread_rows import DropUnreadRows
from ptq4vit_onnx.passes.work import Work
from ptq4vit_onnx.plan.file_layout import Target
from ptq4vit_onnx.plan.options import Options
from ptq4vit_onnx.plan.plan_json import read_plan, write_plan
from ptq4vit_onnx.plan.scale_plan import ScalePlan
from ptq4vit_onnx.proof.float_sites import FloatSites
from ptq4vit_onnx.proof.kernels import audit
from ptq4vit_onnx.proof.openvino_kernels import audit_openvino
from ptq4vit_onnx.proof.prove import quantize_model
from ptq4vit_onnx.proof.site_parity import check_sites, require_exact
from ptq4vit_onnx.runtime import process
from ptq4vit_onnx.runtime.bench import bench, profile
from ptq4vit_onnx.runtime.cpu import cpu_features
from ptq4vit_onnx.runtime.engines import Opened, open_model
from ptq4vit_onnx.runtime.session import optimised_model, run
from ptq4vit_onnx.studies.peers import quantize_static_peer

IMAGES = 2
FOLD = 3
MODELS = ("deit_t", "deit_s", "deit_b", "swin_t")
TWINS = ("auto", "both", "softmax", "none")
WIDTHS = ("w8a8", "w6a6", "w4a4")
SMALLER_WEIGHTS = ("w6a8", "w4a8")
FLOAT, ROWS, NNCF = "float", "float-rows", "nncf"
UNPLANNED = (FLOAT, ROWS, STATIC, NNCF)
DEFAULT = (*(f"{twin}/{width}" for width in WIDTHS for twin in TWINS), ROWS, STATIC)
VARIANTS = (*DEFAULT, *(f"{twin}/{width}" for width in SMALLER_WEIGHTS for twin in TWINS), NNCF)
OPENVINO = "openvino:"
KNOWN = (*VARIANTS, *(f"{OPENVINO}{variant}" for variant in (FLOAT, *VARIANTS)))
ACCURACY = ("top-1", "agreement")


@dataclass(frozen=True)
class Subject:
    """One float model, and the folder of all files made from it."""

    model: LoadedModel
    images: ImageSet
    folder: Path
    real: bool = False

    @property
    def float_path(self) -> Path:
        return self.path(FLOAT)

    def path(self, variant: str) -> Path:
        """both/w6a6 and openvino:both/w6a6 are two files of one plan; openvino:float is float's file."""
        suffix = ".onnx"
        if variant == OPENVINO + NNCF:
            suffix = nncf_peer.OPENVINO_SUFFIX
        elif target_of(variant) == "openvino":
            suffix = ".openvino.onnx"
        return self.folder / f"{file_of(variant).replace('/', '-')}{suffix}"

    def plan_path(self, variant: str) -> Path:
        return self.folder / f"{file_of(variant).replace('/', '-')}.json"

    def plan(self, variant: str) -> ScalePlan:
        return read_plan(self.plan_path(variant))


def file_of(variant: str) -> str:
    """openvino:both/w6a6 -> both/w6a6"""
    return variant.removeprefix(OPENVINO)


def target_of(variant: str) -> Target:
    """The engine that a file of ours is made for: the one that runs it."""
    return "openvino" if variant.startswith(OPENVINO) and file_of(variant) not in UNPLANNED else "onnxruntime"


def planned(variants: Iterable[str]) -> list[str]:
    """Those that this tool makes, each once."""
    return [item for item in dict.fromkeys(variants) if file_of(item) not in UNPLANNED]


def options_of(variant: str, real: bool) -> Options:
    """both/w6a8 -> twins on both, weights of six bits; not real: one candidate for each scale."""
    twin, _, width = file_of(variant).partition("/")
    weights, activations = int(width[1]), int(width[3])
    short: dict[str, Any] = {} if real else {"images": IMAGES, "candidates": 1, "beta": 1.0, "rounds": 1}
    return Options(twin=twin, weight_bits=weights, activation_bits=activations, **short)  # type: ignore[arg-type]


def open_subject(name: str, folder: Path, real: bool = False) -> Subject:
    folder.mkdir(parents=True, exist_ok=True)
    if real:
        model = real_data.load_model(name)
        return Subject(model, real_data.calibration_images(model), folder, real)
    model = load(resolve(name), random_weights=True)
    return Subject(model, built_in_photos(model.preprocessing, "calibration", IMAGES, 0), folder)


def build(subject: Subject, variants: Sequence[str]) -> None:
    """Write what is missing: float.onnx, a plan and a model per variant, the cut float one, quantize_static's."""
    module, pixels = subject.model.module, torch.from_numpy(subject.images.images)
    files = set(map(file_of, variants))
    if not subject.float_path.is_file():
        save_model(export_float(subject.model, discover(module, pixels[:1])), subject.float_path)
    missing = [variant for variant in planned(variants) if not subject.path(variant).is_file()]
    plans = dict.fromkeys(map(file_of, missing))
    calibrate(subject, [item for item in plans if not subject.plan_path(item).is_file()])
    for variant in missing:
        target = target_of(variant)
        quantize_model(load_file(subject.float_path), subject.plan(variant), subject.path(variant), target=target)
    if ROWS in files and not subject.path(ROWS).is_file():
        save_model(cut_rows(load_file(subject.float_path)), subject.path(ROWS))
    if STATIC in files and not subject.path(STATIC).is_file():
        quantize_static_peer(subject.float_path, subject.images.images, subject.path(STATIC))


def build_nncf(subject: Subject, variants: Sequence[str], environment: Path | None) -> None:
    """Write what is missing of NNCF's files."""
    for variant in [item for item in variants if file_of(item) == NNCF and not subject.path(item).is_file()]:
        if environment is None:
            raise SystemExit(f"{variant} needs a folder for NNCF's environment: give --nncf-venv DIR, or leave it out")
        python = nncf_peer.environment(environment)
        nncf_peer.quantize(python, subject.float_path, subject.images.images, subject.path(variant))


def cut_rows(float_model: Any) -> Any:
    """The float model without the rows that its head does not read."""
    work = Work(gs.import_onnx(float_model), ScalePlan("float", "", "", {}, {}, {}))
    DropUnreadRows().apply(work)
    cut = gs.export_onnx(work.graph.cleanup().toposort())
    cut.ir_version = float_model.ir_version
    return cut


def calibrate(subject: Subject, variants: Sequence[str]) -> None:
    """A plan for each variant."""
    for variant in variants:
        options, model = options_of(variant, subject.real), subject.model
        plan = plan_on_photos(model, options) if subject.real else plan_on(subject.images, model, options)
        write_plan(plan, subject.plan_path(variant))


def prove(subject: Subject, variant: str) -> str:
    """Raise ParityError unless the file that will be timed computes the plan, in integers, exactly; else say so."""
    path, plan = subject.path(variant), subject.plan(variant)
    optimised = optimised_model(path)
    kernels = audit(path, plan, optimised)
    kernels.require_integer()
    kernels.require_exact()
    sites = check_sites(path, plan, subject.images.images[:IMAGES], FloatSites(subject.float_path, plan), optimised)
    require_exact(sites)
    inside = f"; in OpenVINO {audit_openvino(path, plan)}" if target_of(variant) == "openvino" else ""
    return f"{kernels}, {sum(site.exact for site in sites)} of {len(sites)} equal to integer arithmetic{inside}"


def forms(plan: ScalePlan) -> str:
    """What the left sides of softmax's and GELU's products became."""
    parts = []
    for source in ("softmax", "gelu"):
        kinds = Counter(type(site.lhs).__name__ for site in plan.sites.values() if site.lhs_source == source)
        parts.append(f"{source} " + " + ".join(f"{count} {_WORDS[kind]}" for kind, count in sorted(kinds.items())))
    return f"{', '.join(parts)} ({len(plan.sites)} sites)"


_WORDS = {"Uniform": "symmetric", "Affine": "affine", "TwinSoftmax": "twin", "TwinGelu": "twin"}


def accuracies(subject: Subject, files: Mapping[str, Opened], limit: int | None) -> dict[str, dict[str, float]]:
    """Top-1 and agreement with the first file, which is float, of the validation photos; nothing for random weights."""
    if not subject.real:
        return {}
    photos = real_data.validation_images(subject.model, FOLD, limit)
    assert photos.labels is not None
    logits = {label: run(open_model(file.path, file.engine), photos.images) for label, file in files.items()}
    reference = next(iter(logits.values()))
    return {
        label: dict(
            zip(ACCURACY, (metrics.top1(found, photos.labels), metrics.agreement(found, reference)), strict=True)
        )
        for label, found in logits.items()
    }


def opened(subject: Subject, variants: Sequence[str]) -> dict[str, Opened]:
    """By variant its file and engine, the float model in ONNX Runtime first."""
    return {
        item: Opened(subject.path(item), "openvino" if item.startswith(OPENVINO) else "onnxruntime")
        for item in dict.fromkeys((FLOAT, *variants))
    }


def print_profile(subject: Subject, variants: Sequence[str], runs: int) -> None:
    """Milliseconds per run by operation, one column per file."""
    files: Mapping[str, Path] = {item: subject.path(item) for item in variants}
    profiles = {item: profile(path, runs=runs) for item, path in files.items()}
    operations = dict.fromkeys(op for found in profiles.values() for op in found.by_op)
    print("\n| ms per run | " + " | ".join(profiles) + " |\n|" + "---|" * (len(profiles) + 1))
    for op in operations:
        print(f"| {op} | " + " | ".join(f"{found.by_op.get(op, 0.0):.2f}" for found in profiles.values()) + " |")
    print("| all | " + " | ".join(f"{found.total:.2f}" for found in profiles.values()) + " |\n")


def measure(name: str, parsed: argparse.Namespace, folder: Path) -> None:
    subject, variants = open_subject(name, folder / name, parsed.real), parsed.variant
    build(subject, variants)
    build_nncf(subject, variants, parsed.nncf_venv)
    for variant in planned(variants):
        proof = "not proven" if parsed.unproven else prove(subject, variant)
        print(f"{name} {variant}: {forms(subject.plan(variant))}; {proof}", flush=True)
    if parsed.profile:
        print_profile(subject, parsed.profile, parsed.runs)
    files = opened(subject, variants)
    accuracy = accuracies(subject, files, parsed.limit)
    more = ACCURACY if accuracy else ()
    print(f"\n{heading(more)}")
    for threads in parsed.threads:
        for batch in parsed.batch:
            timings = bench(files, [threads], [batch], parsed.runs, seconds=parsed.seconds).timings
            rows = rows_of(name, timings, accuracy)
            print("\n".join(line(row, more) for row in rows), flush=True)
            keep(parsed.results or result_name(parsed.real), rows, runs=parsed.runs, seconds=parsed.seconds)
    print(flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="+", help=f"{' '.join(MODELS)}; with --real: {' '.join(real_data.WEIGHTS)}")
    parser.add_argument("--variant", nargs="+", default=list(DEFAULT), choices=KNOWN, metavar="VARIANT",
                        help=f"any of {', '.join((*VARIANTS, OPENVINO + 'VARIANT'))}")  # fmt: skip
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--batch", nargs="+", type=int, default=[1, 8])
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--seconds", type=float, help="to spread a setting's rounds over (20 with several threads)")
    parser.add_argument(
        "--results", metavar="NAME", help="benchmarks/results/NAME.json (speed_vnni, speed_avx2_real, ..)"
    )
    parser.add_argument("--nncf-venv", type=Path, metavar="DIR", help="a folder for NNCF's environment")
    parser.add_argument("--keep", type=Path, help="folder of the files; without it they are made anew and dropped")
    parser.add_argument("--profile", nargs="+", default=[], choices=(FLOAT, *VARIANTS), metavar="VARIANT")
    parser.add_argument("--unproven", action="store_true", help="leave out the proof, which takes longer than the rest")
    parser.add_argument("--real", action="store_true", help="trained weights and photos, with accuracy")
    parser.add_argument("--limit", type=int, help="photos for the accuracy (all of a fold)")
    parsed = parser.parse_args()
    known = tuple(real_data.WEIGHTS) if parsed.real else MODELS
    if parsed.real:
        process.keep_freed_memory()
    kernels = "ONNX Runtime limited to AVX2, on " if avx2_runtime.is_limited() else ""
    print(f"{kernels}{cpu_features()}; variants: {', '.join(parsed.variant)}\n")
    with tempfile.TemporaryDirectory(prefix="ptq4vit_onnx_") as temporary:
        for name in parsed.model or known:
            measure(name, parsed, parsed.keep or Path(temporary))


if __name__ == "__main__":
    main()
