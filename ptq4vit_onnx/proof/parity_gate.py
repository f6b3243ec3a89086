"""Parity as a gate: does a quantised file hold what it promises, check by check, without torch?

kernels      every product runs on an integer kernel of ONNX Runtime
saturation   no product can overflow 16 bits on a CPU without VNNI
sites        every product equals integer arithmetic on the plan's codes and scales
parameters   what is not quantised (LayerNorms, GELUs, embeddings, tables) is the float model's
agreement    predictions equal the float model's
kl, drop     distance of the predicted distributions; loss of top-1 where there are labels
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal
from xml.etree import ElementTree

import numpy as np

from ptq4vit_onnx.errors import UserError
from ptq4vit_onnx.evaluation.compare import AgainstFloat, compare_with_float
from ptq4vit_onnx.evaluation.evaluate import Predictions, not_finite, predict
from ptq4vit_onnx.graph.model_file import ModelFile, require_float, require_reference_of
from ptq4vit_onnx.graph.model_proto import Array, load
from ptq4vit_onnx.images.stream import ImageSource
from ptq4vit_onnx.plan.scale_plan import ScalePlan
from ptq4vit_onnx.progress import Progress, silent
from ptq4vit_onnx.proof.float_sites import FloatSites, float_parameters, output_tensors, with_channels_folded
from ptq4vit_onnx.proof.kernels import KernelAudit, audit
from ptq4vit_onnx.proof.replay import Divergence, divergences
from ptq4vit_onnx.proof.site_parity import check_sites
from ptq4vit_onnx.runtime.inner_tensors import fetch
from ptq4vit_onnx.runtime.session import optimised_model

Status = Literal["passed", "failed", "skipped"]
# Root mean square error of a site over its standard deviation; right models of 8 bits stay at 0.01 to 0.05.
FLOAT_LIMIT = 0.1
_NOT_IN_XML = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True)
class Limits:
    """min_agreement: a share, 0..1. max_drop: points of top-1. max_kl: nats. None: measured, not judged."""

    min_agreement: float = 0.99
    max_drop: float | None = None
    max_kl: float | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.min_agreement, (int, float)) or not 0 <= self.min_agreement <= 1:
            raise UserError(f"min_agreement is {self.min_agreement!r}; expected a share from 0 to 1, as 0.99")
        for name, limit in (("max_drop", self.max_drop), ("max_kl", self.max_kl)):
            if limit is not None and (not isinstance(limit, (int, float)) or not 0 <= limit < math.inf):
                raise UserError(f"{name} is {limit!r}; expected a number of at least 0, or None for no limit")


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
    images that could not be read and are not among `images`. measured_on: as in Evaluations."""

    model: str
    reference: str
    images: int
    checks: tuple[Check, ...]
    first_divergent: str | None = None
    skipped: int = 0
    measured_on: str | None = None

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
) -> ParityResult:
    """Every check of `model` against its float `reference`; without a plan, some are skipped."""
    require_reference_of(model, reference)
    require_float(reference)
    _require_plan_of(model, plan)
    chosen = limits or Limits()
    found = predict([model, reference], source, threads, batch, progress)
    if chosen.max_drop is not None and found.labels is None:
        raise UserError(f"--max-drop needs labels, {source} has none; leave it out, or give --data with a labels.csv")
    checks = _inside(model, reference, plan, found.first) + _outside(model, reference, found, chosen)
    failed = [check for check in checks if check.status == "failed"]
    named = next((f"{check.site}: {check.sentence}" for check in failed if check.site), None)
    if failed and named is None and plan is not None:
        distances = _from_float(model, reference, plan, found.first)
        named = next((_distance(item) for item in distances if not item.passed), None)
        if named is None:
            checks = [_with_farthest(check, distances) if check is failed[0] else check for check in checks]
    images = len(found.logits[model.path])
    paths = str(model.path), str(reference.path)
    return ParityResult(*paths, images, tuple(checks), named, found.skipped, found.measured_on)


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


def _saturation(kernels: KernelAudit, plan: ScalePlan | None) -> Check:
    if not kernels.unsafe:
        return Check("saturation", "passed", "no product can saturate, on any CPU")
    first, count = kernels.unsafe[0], len(kernels.unsafe)
    if plan is None:
        return Check("saturation", "skipped", f"no plan; the graph alone does not bound {count} products")
    sentence = f"{count} products can saturate on CPUs without VNNI, the first is {first}: {first.unsafe}"
    return Check("saturation", "failed", sentence, first.site)


def _outside(model: ModelFile, reference: ModelFile, found: Predictions, limits: Limits) -> list[Check]:
    """What the predictions say; nothing, where one of the models predicts no numbers."""
    for file in (model, reference):
        if sentence := not_finite(file.path, found.logits[file.path]):
            unknown = [Check(name, "skipped", "not all logits are finite") for name in ("kl", "drop")]
            return [Check("agreement", "failed", sentence), *unknown]
    versus = compare_with_float(found.logits[model.path], found.logits[reference.path], found.labels)
    share, floor = versus.agreement / 100, limits.min_agreement
    equal = f"{versus.agreement:.2f} % of {versus.images} predictions equal the float model's"
    reached = _status(share >= floor - 1e-9)  # 0.99 of 500 images is 495 of them, whatever the rounding
    return [
        Check("agreement", reached, f"{equal} (at least {100 * floor:g} %)", None, share, floor),
        _at_most("kl", f"KL {versus.kl:.2g} from the float model", versus.kl, limits.max_kl),
        _drop(versus, limits),
    ]


def _drop(versus: AgainstFloat, limits: Limits) -> Check:
    if versus.drop is None:
        return Check("drop", "skipped", "no labels")
    sentence = (
        f"top-1 {versus.top1_quantised:.2f} %, float {versus.top1_float:.2f} %: drop "
        f"{versus.drop.points:.2f} +- {versus.drop.standard_error:.2f} points"
    )
    return _at_most("drop", sentence, versus.drop.points, limits.max_drop)


def _at_most(name: str, sentence: str, value: float, limit: float | None) -> Check:
    said = "no limit" if limit is None else f"at most {limit:g}"
    within = math.isfinite(value) and (limit is None or value <= limit + 1e-9)
    held = value if math.isfinite(value) else None  # JSON has no word for NaN
    return Check(name, _status(within), f"{sentence} ({said})", None, held, limit)


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


def _with_farthest(check: Check, distances: Sequence[Divergence]) -> Check:
    """Some site is always the farthest; while all are near, that is no more than the noise of quantisation."""
    farthest = max(distances, key=lambda item: item.relative_error)
    return replace(check, sentence=f"{check.sentence}; no site is far off, the farthest is {_distance(farthest)}")
