"""The checks `plan` and `graph`: the passes run again on the float file, and everything is compared with the file."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from typing import Any, get_args

import onnx

from ptq4vit_onnx import __version__
from ptq4vit_onnx.errors import UserError
from ptq4vit_onnx.graph.model_file import ModelFile
from ptq4vit_onnx.graph.model_proto import load
from ptq4vit_onnx.passes import PLAN, TARGET, quantize
from ptq4vit_onnx.plan.file_layout import InputType, Target
from ptq4vit_onnx.plan.plan_json import fingerprint
from ptq4vit_onnx.plan.scale_plan import ScalePlan
from ptq4vit_onnx.proof.parity_result import Check
from ptq4vit_onnx.proof.whole_graph.differences import Difference, differences
from ptq4vit_onnx.proof.whole_graph.sound_constants import unsound_constants
from ptq4vit_onnx.proof.whole_graph.structure import structure_differences

MOST_DETAILS = 100
UNKNOWN = (
    "weights' codes, scales and zero points against a plan",
    "LayerNorms' weights and biases",
    "the nodes that products are made of",
)
_VERSION = "ptq4vit_onnx.version"
# What passes and checks may raise on a plan or a graph that is broken; a UserError comes with its own words.
NOT_FOLLOWED = (UserError, AssertionError, ValueError, TypeError, LookupError, ArithmeticError, AttributeError)


def check_graph(model: ModelFile, reference: ModelFile, plan: ScalePlan | None, require_plan: bool) -> list[Check]:
    """Whether the file is made of this plan, and whether every part of it is what export writes."""
    held, wanted = _loaded(model), _loaded(reference)
    if plan is None:
        found = _without_plan(held, wanted)
        sentence = "by its structure it is the float model, with products of other numbers"
        return [_no_plan(model, require_plan), _verdict(sentence, "the float model's structure", found, held, plan)]
    try:
        expected, _ = quantize(wanted, plan, _input_of(held), _target_of(held))
    except NOT_FOLLOWED as error:
        sentence = f"the plan cannot be applied to {reference.path}: {' '.join(str(error).split())}"
        return [_plan(held, plan), Check("graph", "failed", sentence)]
    gc.collect()  # a graph of onnx-graphsurgeon, which holds all weights, is full of cycles
    parts = f"all {len(expected.graph.node)} nodes and {len(expected.graph.initializer)} constants"
    sentence = f"{parts} are those that export writes for the float model and this plan"
    _use_plan_of(held, expected)
    return [_plan(held, plan), _verdict(sentence, "what export writes", differences(held, expected), held, plan)]


def _without_plan(held: onnx.ModelProto, wanted: onnx.ModelProto) -> list[Difference]:
    try:
        return [*unsound_constants(held, wanted), *structure_differences(held, wanted)]
    except (*NOT_FOLLOWED, RecursionError) as error:
        return [Difference("", f"the graph cannot be followed: {type(error).__name__}: {error}")]


def _loaded(model: ModelFile) -> onnx.ModelProto:
    """Weights from a file beside count as if they stood inside."""
    held = load(model.path)
    for tensor in held.graph.initializer:
        tensor.ClearField("data_location")
    return held


def _input_of(model: onnx.ModelProto) -> InputType:
    kinds = [item.type.tensor_type.elem_type for item in model.graph.input]
    return "uint8" if kinds[:1] == [onnx.TensorProto.UINT8] else "float"


def _target_of(model: onnx.ModelProto) -> Target:
    """As the file says; the usual one where that is none, and the difference in metadata shows."""
    said = _metadata(model).get(TARGET)
    return next((target for target in get_args(Target) if target == said), "onnxruntime")


def _metadata(model: onnx.ModelProto) -> Mapping[str, str]:
    return {entry.key: entry.value for entry in model.metadata_props}


def _use_plan_of(held: Any, expected: Any) -> None:
    """Of which plan a file says it is: the check `plan` answers for that."""
    said = [entry.value for entry in held.metadata_props if entry.key == PLAN]
    for entry in expected.metadata_props:
        if entry.key == PLAN and len(said) == 1:
            entry.value = said[0]


def _no_plan(model: ModelFile, require_plan: bool) -> Check:
    said = f"NOT CHECKED without a plan: {'; '.join(UNKNOWN)}. Give --plan; there is no plan.json next to {model.path}"
    return Check("plan", "failed" if require_plan else "skipped", said)


def _plan(held: onnx.ModelProto, plan: ScalePlan) -> Check:
    own, given = _metadata(held).get(PLAN), fingerprint(plan)
    if own == given:
        return Check("plan", "passed", f"the file was made from this plan ({given[:12]})")
    said = "does not say which plan it was made from" if own is None else f"was made from another plan ({own[:12]})"
    return Check("plan", "failed", f"the file {said}, this one is {given[:12]}; give the plan.json of the same export")


def _verdict(right: str, what: str, found: list[Difference], held: onnx.ModelProto, plan: ScalePlan | None) -> Check:
    """found: differences from `what`. Those that have a place in the network lead."""
    if not found:
        return Check("graph", "passed", right)
    ordered = sorted(found, key=lambda difference: not difference.where)
    first, count = ordered[0], f"{len(found)} differences" if len(found) > 1 else "1 difference"
    version = _metadata(held).get(_VERSION)
    older = "" if version in (None, __version__) else f"; the file is of version {version}, this is {__version__}"
    site = first.where.partition("/")[0]
    where = site if plan is not None and site in plan.sites else first.where
    details = tuple(difference.sentence for difference in ordered[:MOST_DETAILS])
    return Check("graph", "failed", f"{count} from {what}: {first.sentence}{older}", where or None, details=details)
