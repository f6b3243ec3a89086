"""Parity as a gate: does a quantised file hold what it promises, check by check, without torch?

plan         the file was made from this plan
graph        everything in the file is what export writes for the float file and the plan; without a plan: by its
             structure it is the float model, and no constant is one that no export writes
kernels      every product runs on an integer kernel of ONNX Runtime
saturation   no product can overflow 16 bits on a CPU without VNNI
sites        every product equals integer arithmetic on the plan's codes and scales
openvino_kernels  asked for OpenVINO: every product runs in integers there, too
outputs      in the engine asked for, as their kind measures them. Logits: agreement, kl, drop. Embeddings: cosine,
             worst_cosine, agreement (of nearest neighbours), drop (of k-NN accuracy). Features: cosine, worst_cosine.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ptq4vit_onnx.errors import UserError
from ptq4vit_onnx.evaluation.predict import Predictions, not_finite, predict
from ptq4vit_onnx.graph.model_file import ModelFile, require_float, require_reference_of
from ptq4vit_onnx.graph.model_proto import Array, load
from ptq4vit_onnx.images.stream import ImageSource
from ptq4vit_onnx.output_kinds.output_kind import Reading
from ptq4vit_onnx.plan.scale_plan import ScalePlan
from ptq4vit_onnx.progress import Progress, silent
from ptq4vit_onnx.proof.float_sites import FloatSites, output_tensors
from ptq4vit_onnx.proof.kernels import KernelAudit, audit
from ptq4vit_onnx.proof.openvino_kernels import audit_openvino
from ptq4vit_onnx.proof.parity_result import Check, Limits, ParityResult, Status, option_of
from ptq4vit_onnx.proof.replay import Divergence, divergences
from ptq4vit_onnx.proof.site_parity import check_sites
from ptq4vit_onnx.proof.whole_graph.checks import NOT_FOLLOWED, UNKNOWN, check_graph
from ptq4vit_onnx.runtime.engines import TITLES, EngineName
from ptq4vit_onnx.runtime.inner_tensors import fetch
from ptq4vit_onnx.runtime.session import optimised_model

# Root mean square error of a site over its standard deviation; right models of 8 bits stay at 0.01 to 0.05.
FLOAT_LIMIT = 0.1


def check_files(
    model: ModelFile,
    reference: ModelFile,
    source: ImageSource,
    plan: ScalePlan | None = None,
    limits: Limits | None = None,
    threads: int = 1,
    batch: int = 8,
    progress: Progress = silent,
    engine: EngineName = "onnxruntime",
    require_plan: bool = False,
) -> ParityResult:
    """Every check of `model` against its float `reference`. Without a plan some are skipped, which fails if one is
    required.

    engine: of the model's outputs. The reference runs in ONNX Runtime, and what looks inside of the model does.
    """
    require_reference_of(model, reference)
    require_float(reference)
    _require_plan_of(model, plan)
    chosen = (limits or Limits()).of(model.kind)
    with np.errstate(all="ignore"):  # a scale of zero, an infinite weight: the checks have words for them
        whole = check_graph(model, reference, plan, require_plan)
    wrong = next((check for check in whole if check.name == "graph" and check.status == "failed"), None)
    of: dict[str, Any] = {"kind": model.kind.name, "engine": engine, "not_checked": UNKNOWN if plan is None else ()}
    try:
        optimised = optimised_model(model.path)
    except UserError as error:
        if wrong is None:
            raise
        checks = [*whole, Check("kernels", "failed", str(error))]
        return _result(model, reference, checks, 0, _first_named(checks), of)
    found = predict([reference, model], source, threads, batch, progress, engine, "onnxruntime")
    if chosen.get("max_drop") is not None and found.labels is None:
        raise UserError(f"--max-drop needs labels, {source} has none; leave it out, or give --data with a labels.csv")
    with np.errstate(all="ignore"):
        inside = _inside(model, reference, plan, found.first, optimised, wrong)
    if engine == "openvino":
        inside = [*map(_of_onnx_runtime, inside), _openvino_kernels(model, plan)]
    checks = [*whole, *inside, *_outside(model, reference, found, chosen)]
    failed = [check for check in checks if check.status == "failed"]
    named = _first_named(checks)
    if failed and named is None and plan is not None and wrong is None:
        distances = _from_float(model, reference, plan, found.first)
        named = next((_distance(item) for item in distances if not item.passed), None)
        if named is None:
            checks = [_with_farthest(check, distances, engine) if check is failed[0] else check for check in checks]
    of.update(skipped=found.skipped, measured_on=found.measured_on)
    return _result(model, reference, checks, len(found.kept[model.path]), named, of)


def _result(
    model: ModelFile, reference: ModelFile, checks: Sequence[Check], images: int, named: str | None, of: dict[str, Any]
) -> ParityResult:
    return ParityResult(str(model.path), str(reference.path), images, tuple(checks), named, **of)


def _first_named(checks: Sequence[Check]) -> str | None:
    return next(
        (f"{check.site}: {check.sentence}" for check in checks if check.status == "failed" and check.site), None
    )


def _require_plan_of(model: ModelFile, plan: ScalePlan | None) -> None:
    if plan is not None and (plan.model, plan.weights) != (model.model, model.weights):
        raise UserError(
            f"the plan is for {plan.model} with weights {plan.weights[:12]}, {model.path} is {model.model} "
            f"with {model.weights[:12]}; give the plan.json of the same export"
        )


def _inside(
    model: ModelFile, reference: ModelFile, plan: ScalePlan | None, few: Array, optimised: Any, wrong: Check | None
) -> list[Check]:
    """What the graph says, and what its kernels return. wrong: what was found in the graph, if anything: such a graph
    may be one that these checks cannot follow."""
    checks: list[Check] = []
    try:
        kernels = audit(model.path, plan, optimised)
        checks += [_kernels(kernels), _saturation(kernels, plan)]
        if plan is None:
            return [*checks, Check("sites", "skipped", "no plan; give --plan plan.json")]
        return [*checks, _sites(model, reference, plan, few, optimised)]
    except (*NOT_FOLLOWED, RecursionError) as error:
        if wrong is None:
            raise
        failed = Check("sites" if checks else "kernels", "failed", f"this graph cannot be followed: {error}")
        return [*checks, failed]


def _sites(model: ModelFile, reference: ModelFile, plan: ScalePlan, few: Array, optimised: Any) -> Check:
    sites = check_sites(model.path, plan, few, FloatSites(reference.path, plan), optimised)
    wrong = [site for site in sites if not site.exact]
    sentence = f"{len(sites) - len(wrong)} of {len(sites)} products equal integer arithmetic"
    if not wrong:
        return Check("sites", "passed", sentence)
    sentence += f"; the first that does not is {wrong[0].site}/{wrong[0].product}: {wrong[0].failure}"
    return Check("sites", "failed", sentence, wrong[0].site)


def _kernels(kernels: KernelAudit) -> Check:
    if not kernels.products:
        return Check("kernels", "failed", "no product carries a site's name; give a file of ptq4vit-onnx export")
    if not kernels.fell_back:
        return Check("kernels", "passed", str(kernels))
    site = kernels.fell_back[0]
    return Check("kernels", "failed", f"{kernels}; {site} is the first that is not", site)


def _of_onnx_runtime(check: Check) -> Check:
    """Checks that only ONNX Runtime's graph can answer say so where another engine was asked for."""
    kernels = check.name in ("kernels", "saturation", "sites")
    return replace(check, sentence=f"in ONNX Runtime: {check.sentence}") if kernels else check


def _openvino_kernels(model: ModelFile, plan: ScalePlan | None) -> Check:
    found = _kernels(audit_openvino(model.path, plan))
    return replace(found, name="openvino_kernels", sentence=f"in OpenVINO: {found.sentence}")


def _saturation(kernels: KernelAudit, plan: ScalePlan | None) -> Check:
    if not kernels.unsafe:
        return Check("saturation", "passed", "no product can saturate, on any CPU")
    first, count = kernels.unsafe[0], len(kernels.unsafe)
    if plan is None:
        return Check("saturation", "skipped", f"no plan; the graph alone does not bound {count} products")
    sentence = f"{count} products can saturate on CPUs without VNNI, the first is {first}: {first.unsafe}"
    return Check("saturation", "failed", sentence, first.site)


def _outside(
    model: ModelFile, reference: ModelFile, found: Predictions, limits: Mapping[str, float | None]
) -> list[Check]:
    """What the outputs say; nothing, where those of one model are no numbers."""
    names = [_check_name(limit) for limit in limits]
    for file in (model, reference):
        if sentence := not_finite(found.kind, file.path, found.kept[file.path]):
            unknown = [Check(name, "skipped", f"not all {found.kind.plural} are finite") for name in names[1:]]
            return [Check(names[0], "failed", sentence), *unknown]
    versus = found.kind.compare(found.kept[model.path], found.kept[reference.path])
    return [_judged(name, reading, limits[name]) for name, reading in versus.readings.items()]


def _check_name(limit: str) -> str:
    return limit.removeprefix("min_").removeprefix("max_")


def _judged(name: str, reading: Reading, limit: float | None) -> Check:
    """A reading held against the limit called `name`: min_.. or max_.., by which the check is called as well."""
    value, least = reading.value, name.startswith("min_")
    if value is None and limit is not None:
        raise UserError(f"{option_of(name)} cannot be held: {reading.sentence}; leave it out, or give other images")
    if value is None:
        return Check(_check_name(name), "skipped", reading.sentence)
    held = value if math.isfinite(value) else None  # JSON has no word for NaN
    if limit is None:
        return Check(_check_name(name), _status(held is not None), f"{reading.sentence} (no limit)", None, held, None)
    # 0.99 of 500 images is 495 of them, whatever the rounding
    within = held is not None and (value >= limit - 1e-9 if least else value <= limit + 1e-9)
    said = f"{100 * limit:g} %" if reading.as_share else f"{limit:g}"
    sentence = f"{reading.sentence} (at {'least' if least else 'most'} {said})"
    return Check(_check_name(name), _status(within), sentence, None, held, limit)


def _status(passed: bool) -> Status:
    return "passed" if passed else "failed"


def _from_float(model: ModelFile, reference: ModelFile, plan: ScalePlan, few: Array) -> list[Divergence]:
    """How far every site of the quantised model is from the float one, in network order."""
    proto = load(reference.path)
    tensors = output_tensors(proto, plan.sites)
    values = fetch(proto, list(tensors.values()), few)
    wanted = {site: values[tensor] for site, tensor in tensors.items()}
    return divergences(model.path, plan, wanted, few, FLOAT_LIMIT)


def _distance(found: Divergence) -> str:
    if not math.isfinite(found.relative_error):
        return f"{found.site}: its output is not finite, or not there, in one of the two files"
    return f"{found.site}: {found.relative_error:.2g} of its spread away from the float model"


def _with_farthest(check: Check, distances: Sequence[Divergence], engine: EngineName) -> Check:
    """Some site is always the farthest; while all are near, that is no more than the noise of quantisation."""
    farthest = max(distances, key=lambda item: item.relative_error)
    where = "" if engine == "onnxruntime" else f" in ONNX Runtime, so look at what {TITLES[engine]} computes"
    sentence = f"{check.sentence}; no site is far off{where}, the farthest is {_distance(farthest)}"
    return replace(check, sentence=sentence)
