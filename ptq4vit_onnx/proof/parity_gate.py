"""Parity as a gate: does a quantised file hold what it promises, check by check, without torch?

kernels      every product runs on an integer kernel of ONNX Runtime
saturation   no product can overflow 16 bits on a CPU without VNNI
sites        every product equals integer arithmetic on the plan's codes and scales
parameters   what is not quantised (LayerNorms, GELUs, embeddings, tables) is the float model's
openvino_kernels  asked for OpenVINO: every product runs in integers there, too
outputs      in the engine asked for, as their kind measures them. Logits: agreement, kl, drop. Embeddings: cosine,
             worst_cosine, agreement (of nearest neighbours), drop (of k-NN accuracy). Features: cosine, worst_cosine.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal
from xml.etree import ElementTree

import numpy as np

from ptq4vit_onnx.errors import UserError
from ptq4vit_onnx.evaluation.predict import Predictions, not_finite, predict
from ptq4vit_onnx.graph.model_file import ModelFile, require_float, require_reference_of
from ptq4vit_onnx.graph.model_proto import Array, load
from ptq4vit_onnx.images.stream import ImageSource
from ptq4vit_onnx.output_kinds.kinds import OutputKind
from ptq4vit_onnx.output_kinds.output_kind import Reading
from ptq4vit_onnx.plan.scale_plan import ScalePlan
from ptq4vit_onnx.progress import Progress, silent
from ptq4vit_onnx.proof.float_sites import FloatSites, float_parameters, output_tensors, with_channels_folded
from ptq4vit_onnx.proof.kernels import KernelAudit, audit
from ptq4vit_onnx.proof.openvino_kernels import audit_openvino
from ptq4vit_onnx.proof.replay import Divergence, divergences
from ptq4vit_onnx.proof.site_parity import check_sites
from ptq4vit_onnx.runtime.engines import TITLES, EngineName
from ptq4vit_onnx.runtime.inner_tensors import fetch
from ptq4vit_onnx.runtime.session import optimised_model

Status = Literal["passed", "failed", "skipped"]
# Root mean square error of a site over its standard deviation; right models of 8 bits stay at 0.01 to 0.05.
FLOAT_LIMIT = 0.1
_NOT_IN_XML = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True)
class Limits:
    """min_agreement: a share, 0..1, of equal predictions, or of images with the same nearest neighbour. min_cosine,
    min_worst_cosine: mean and smallest, 0..1. max_drop: points of top-1 or of k-NN accuracy. max_kl: nats.

    None: the default of the model's output kind. Each kind has limits of its own, and refuses the others.
    """

    min_agreement: float | None = None
    max_drop: float | None = None
    max_kl: float | None = None
    min_cosine: float | None = None
    min_worst_cosine: float | None = None

    def __post_init__(self) -> None:
        for name, limit in asdict(self).items():
            least = name.startswith("min_")
            if limit is None or (
                isinstance(limit, (int, float)) and 0 <= limit <= (1 if least else sys.float_info.max)
            ):
                continue
            expected = "a share from 0 to 1, as 0.99" if least else "a number of at least 0, or None for no limit"
            raise UserError(f"{name} is {limit!r}; expected {expected}")

    def of(self, kind: OutputKind) -> dict[str, float | None]:
        """By name, for a model of this kind; refuses those of other kinds."""
        given = {name: limit for name, limit in asdict(self).items() if limit is not None}
        odd = next((name for name in given if name not in kind.limits), None)
        if odd is not None:
            known = ", ".join(map(_option, kind.limits))
            raise UserError(f"{_option(odd)} does not fit a model that returns {kind.plural}; its limits are {known}")
        return {**kind.limits, **given}


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


@dataclass(frozen=True)
class Check:
    """One line of the verdict. site: where it fails first (a site, or a node outside of all), if that is known.
    value: what was measured, where that is a number; limit: what it was held against."""

    name: str
    status: Status
    sentence: str
    site: str | None = None
    value: float | None = None
    limit: float | None = None


@dataclass(frozen=True)
class ParityResult:
    """All checks in order. first_divergent: the first site or node that is wrong, and how, if one was found. skipped:
    images that could not be read and are not among `images`. measured_on: as in Evaluations. kind: of its outputs.
    engine: that computed the outputs of the model; those of the reference are ONNX Runtime's."""

    model: str
    reference: str
    images: int
    checks: tuple[Check, ...]
    first_divergent: str | None = None
    skipped: int = 0
    measured_on: str | None = None
    kind: str = "logits"
    engine: EngineName = "onnxruntime"

    @property
    def passed(self) -> bool:
        return all(check.status != "failed" for check in self.checks)

    def to_data(self) -> dict[str, Any]:
        return {"passed": self.passed, **asdict(self)}

    def to_junit(self) -> str:
        """The checks as a JUnit test suite."""
        statuses = [check.status for check in self.checks]
        suite = ElementTree.Element(
            "testsuite", name="ptq4vit-onnx parity", tests=str(len(statuses)), errors="0",
            failures=str(statuses.count("failed")), skipped=str(statuses.count("skipped")),
        )  # fmt: skip
        if self.measured_on is not None:
            properties = ElementTree.SubElement(suite, "properties")
            ElementTree.SubElement(properties, "property", name="measured_on", value=self.measured_on)
        for check in self.checks:
            case = ElementTree.SubElement(suite, "testcase", classname=_in_xml(self.model), name=check.name)
            if check.status == "failed":
                failure = ElementTree.SubElement(case, "failure", message=_in_xml(check.sentence))
                where = check.site or self.first_divergent
                failure.text = _in_xml(f"first divergent site: {where}") if where else "no divergent site was found"
            elif check.status == "skipped":
                ElementTree.SubElement(case, "skipped", message=_in_xml(check.sentence))
            else:
                ElementTree.SubElement(case, "system-out").text = _in_xml(check.sentence)
        ElementTree.indent(suite)
        text: bytes = ElementTree.tostring(suite, encoding="utf-8", xml_declaration=True)
        return text.decode() + "\n"


def _in_xml(text: str) -> str:
    """`text` with what XML 1.0 forbids escaped; a path may hold any of it."""
    return _NOT_IN_XML.sub(lambda found: f"\\x{ord(found.group()):02x}", text)


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
) -> ParityResult:
    """Every check of `model` against its float `reference`; without a plan, some are skipped.

    engine: of the model's outputs. The reference runs in ONNX Runtime, and what looks inside of the model does.
    """
    require_reference_of(model, reference)
    require_float(reference)
    _require_plan_of(model, plan)
    chosen = (limits or Limits()).of(model.kind)
    found = predict([reference, model], source, threads, batch, progress, engine, "onnxruntime")
    if chosen.get("max_drop") is not None and found.labels is None:
        raise UserError(f"--max-drop needs labels, {source} has none; leave it out, or give --data with a labels.csv")
    inside = _inside(model, reference, plan, found.first)
    if engine == "openvino":
        inside = [*map(_of_onnx_runtime, inside), _openvino_kernels(model, plan)]
    checks = inside + _outside(model, reference, found, chosen)
    failed = [check for check in checks if check.status == "failed"]
    named = next((f"{check.site}: {check.sentence}" for check in failed if check.site), None)
    if failed and named is None and plan is not None:
        distances = _from_float(model, reference, plan, found.first)
        named = next((_distance(item) for item in distances if not item.passed), None)
        if named is None:
            checks = [_with_farthest(check, distances, engine) if check is failed[0] else check for check in checks]
    images = len(found.kept[model.path])
    of = found.skipped, found.measured_on, model.kind.name, engine
    return ParityResult(str(model.path), str(reference.path), images, tuple(checks), named, *of)


def _require_plan_of(model: ModelFile, plan: ScalePlan | None) -> None:
    if plan is not None and (plan.model, plan.weights) != (model.model, model.weights):
        raise UserError(
            f"the plan is for {plan.model} with weights {plan.weights[:12]}, {model.path} is {model.model} "
            f"with {model.weights[:12]}; give the plan.json of the same export"
        )


def _inside(model: ModelFile, reference: ModelFile, plan: ScalePlan | None, few: Array) -> list[Check]:
    """What the graph says, and what its kernels return."""
    optimised = optimised_model(model.path)
    kernels = audit(model.path, plan, optimised)
    checks = [_kernels(kernels), _saturation(kernels, plan), _parameters(model, reference, plan)]
    if plan is None:
        return [*checks, Check("sites", "skipped", "no plan; give --plan plan.json")]
    sites = check_sites(model.path, plan, few, FloatSites(reference.path, plan), optimised)
    wrong = [site for site in sites if not site.exact]
    sentence = f"{len(sites) - len(wrong)} of {len(sites)} products equal integer arithmetic"
    if not wrong:
        return [*checks, Check("sites", "passed", sentence)]
    sentence += f"; the first that does not is {wrong[0].site}/{wrong[0].product}: {wrong[0].failure}"
    return [*checks, Check("sites", "failed", sentence, wrong[0].site)]


def _parameters(model: ModelFile, reference: ModelFile, plan: ScalePlan | None) -> Check:
    """Nodes outside the products have the operators, constants and attributes that they have in the float model.

    Without a plan nobody knows what was folded into the LayerNorms: their numbers are left out.
    """
    held, wanted = (float_parameters(load(file.path)) for file in (model, reference))
    if plan is not None:
        wanted = with_channels_folded(wanted, plan)
    else:
        held, wanted = (_without_norms(parameters) for parameters in (held, wanted))
    order = {node: position for position, (node, _) in enumerate(wanted)}
    both = {node for node, _ in held} & set(order)
    shared = [key for key in {**wanted, **held} if key[0] in both]
    wrong = [key for key in shared if not _is_same(held.get(key), wanted.get(key))]
    aside = "" if plan is not None else "; LayerNorms' numbers were left out, no plan"
    sentence = (
        f"{len(shared) - len(wrong)} of {len(shared)} parameters outside the products are the float model's{aside}"
    )
    if not wrong:
        return Check("parameters", "passed", sentence)
    node, what = min(wrong, key=lambda key: order[key[0]])
    return Check("parameters", "failed", f"{sentence}; the first that is not is {what} of {node}", node)


def _without_norms(parameters: dict[tuple[str, str], Any]) -> dict[tuple[str, str], Any]:
    return {
        (node, what): value
        for (node, what), value in parameters.items()
        if not (node.endswith("/LayerNormalization") and what.startswith("input"))
    }


def _is_same(held: Any, wanted: Any) -> bool:
    if isinstance(held, np.ndarray) and isinstance(wanted, np.ndarray):
        return np.array_equal(held, wanted, equal_nan=True)
    return type(held) is type(wanted) and bool(held == wanted)


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
        raise UserError(f"{_option(name)} cannot be held: {reading.sentence}; leave it out, or give other images")
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
