"""The quantised model, and the proof that it computes what the plan promised."""

from __future__ import annotations

import gc
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ptq4vit_onnx.errors import ParityError
from ptq4vit_onnx.evaluation.predict import Comparison
from ptq4vit_onnx.graph.model_proto import load
from ptq4vit_onnx.images.choice import ChosenImages, MeasuredOn
from ptq4vit_onnx.model_loading.load import LoadedModel
from ptq4vit_onnx.output_kinds.output_kind import AgainstFloat, Kept, Outputs
from ptq4vit_onnx.passes import PassReport, quantize
from ptq4vit_onnx.plan.file_layout import InputType, Target
from ptq4vit_onnx.plan.scale_plan import ScalePlan
from ptq4vit_onnx.progress import Progress
from ptq4vit_onnx.proof.end_to_end import EndToEnd, check_end_to_end
from ptq4vit_onnx.proof.float_sites import FloatSites
from ptq4vit_onnx.proof.kernels import KernelAudit, audit
from ptq4vit_onnx.proof.layout import layout_of
from ptq4vit_onnx.proof.replay import Divergence, Replay
from ptq4vit_onnx.proof.site_parity import SiteParity, check_sites, require_exact
from ptq4vit_onnx.runtime import process
from ptq4vit_onnx.runtime.session import optimised_model, session

Array = np.ndarray[Any, Any]
SITE_IMAGES = 2  # images on which every product is held against the integer oracle; one, where they are large
LARGE_PIXELS = 512 * 512  # of an image
# How much is simulated: 32 images of 224 x 224 pixels, or all digits. More adds minutes and hardly proof: every product
# has been checked by then, and an image compares all of its outputs bit for bit.
SIMULATED_PIXELS = 32 * 224 * 224
LEAST_SIMULATED = 2


@dataclass(frozen=True)
class Proof:
    """kernels: what each product runs on. sites: each product against integer arithmetic. replay: each site against
    the simulator, from the runtime's own values. end_to_end: both running freely. against_float: what quantisation
    cost. measured_on: the images of that; end_to_end takes the first of them."""

    kernels: KernelAudit
    sites: list[SiteParity]
    replay: list[Divergence]
    end_to_end: EndToEnd
    against_float: AgainstFloat
    measured_on: MeasuredOn


def quantize_model(
    float_model: Any, plan: ScalePlan, path: Path, input: InputType = "float", target: Target = "onnxruntime"
) -> tuple[Path, PassReport]:
    from ptq4vit_onnx.graph.model_proto import save_model

    quantised, report = quantize(float_model, plan, input, target)
    gc.collect()  # a graph of onnx-graphsurgeon, which holds all weights, is full of cycles
    return save_model(quantised, path), report


def prove(
    path: Path, float_path: Path, plan: ScalePlan, model: LoadedModel, images: ChosenImages, progress: Progress,
) -> Proof:  # fmt: skip
    """Audit the kernels, check every product, compare end to end; raises ParityError at the first that fails."""
    optimised = optimised_model(path)
    kernels = audit(path, plan, optimised)
    kernels.require_integer()
    kernels.require_exact()
    large = images.calibration.images[0, 0].size > LARGE_PIXELS
    few = images.calibration.images[: 1 if large else SITE_IMAGES]
    sites = check_sites(path, plan, few, FloatSites(float_path, plan), optimised)
    require_exact(sites)
    del optimised
    process.give_back_freed_memory()  # each step holds the weights once or twice, in forms of its own
    replayed = _replay(path, plan, model, few)
    process.give_back_freed_memory()
    first, kept = _measure(path, float_path, model, images)
    process.give_back_freed_memory()
    end_to_end = _end_to_end(first, path, plan, model, images, progress)
    versus = model.kind.compare(kept[path], kept[float_path])
    return Proof(kernels, sites, replayed, end_to_end, versus, images.measured_on)


def _replay(path: Path, plan: ScalePlan, model: LoadedModel, few: Array) -> list[Divergence]:
    from ptq4vit_onnx.simulation.fake import replay

    hold = Replay(path, plan)
    replay(model.module, plan, hold, few)
    if hold.first_divergent is not None:
        raise ParityError(f"the first site that diverges beyond rounding: {hold.first_divergent}")
    return hold.divergences


def _measure(
    path: Path, float_path: Path, model: LoadedModel, images: ChosenImages
) -> tuple[Outputs, dict[Path, Kept]]:
    """(the quantised file's outputs on the images that are simulated; what is kept of both files on all).

    A batch at a time: whole feature maps of all images do not fit into memory.
    """
    height, width = model.preprocessing.size[1:]
    pixels, count = images.measured.images, max(LEAST_SIMULATED, SIMULATED_PIXELS // (height * width))
    both = Comparison(model.kind, {file: session(file, threads=0) for file in (float_path, path)})
    first: list[Outputs] = []
    for outputs in both.add(dict.fromkeys((float_path, path), pixels)):
        if sum(len(part[0]) for part in first) < count:
            first.append(outputs[path])
    joined = tuple(np.concatenate(parts)[:count] for parts in zip(*first, strict=True))
    return joined, both.kept(None if model.is_random else images.measured.labels)


def _end_to_end(
    first: Outputs, path: Path, plan: ScalePlan, model: LoadedModel, images: ChosenImages, progress: Progress
) -> EndToEnd:
    """first: the file's outputs on the images that are simulated."""
    pixels = images.measured.images[: len(first[0])]
    result = _against_simulator(first, path, plan, model, pixels, progress)
    if not result.passed:
        raise ParityError(result.sentence)
    return result


def _against_simulator(
    quantised: Outputs, path: Path, plan: ScalePlan, model: LoadedModel, pixels: Array, progress: Progress
) -> EndToEnd:
    """The file's outputs against the plan in integers with the runtime's own float kernels: equal, bit for bit.

    A version of ONNX Runtime that fuses float operations otherwise rounds otherwise, and rounding is a cliff. Where
    that brings the two apart, the limit is what the simulator reaches against itself with its last bits nudged.
    """
    from ptq4vit_onnx.simulation.fake import simulate_all, simulate_all_exactly

    exactly = simulate_all_exactly(model.module, plan, layout_of(load(path), plan), pixels, progress=progress)
    result = check_end_to_end(quantised, exactly, model.is_random, kind=model.kind)
    if result.passed:
        return result
    nudged = simulate_all(model.module, plan, pixels, nudge=True, progress=progress, title="simulating, nudged")
    simulated = simulate_all(model.module, plan, pixels, progress=progress)
    return check_end_to_end(quantised, simulated, model.is_random, nudged, model.kind)
