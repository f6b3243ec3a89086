"""What a model file says about itself: which model it is, with which weights, how its images are prepared."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from ptq4vit_onnx.errors import UserError
from ptq4vit_onnx.graph.integer_products import INTEGER_KERNELS
from ptq4vit_onnx.graph.model_proto import load
from ptq4vit_onnx.images.preprocessing import Preprocessing
from ptq4vit_onnx.models.specs import is_embedded
from ptq4vit_onnx.output_kinds.kinds import KINDS, OutputKind

_PREFIX = "ptq4vit_onnx."
OPENVINO_SUFFIX = ".xml"  # OpenVINO's own format; the weights lie next to it in a .bin
_QUANTISING_OPS = frozenset({"QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"})


@dataclass(frozen=True)
class ModelFile:
    """A model on disk and its metadata. model: the name it was exported by; weights: their SHA-256; kind: of what it
    returns, logits where it does not say."""

    path: Path
    model: str
    weights: str
    preprocessing: Preprocessing
    kind: OutputKind = KINDS["logits"]

    @property
    def embedded(self) -> bool:
        """Whether images for it ship with the package."""
        return is_embedded(self.model)


def read_model_file(path: Path, like: ModelFile | None = None) -> ModelFile:
    """Read a model's metadata; a file without it is refused, since nobody could prepare images for it.

    like: whose metadata stands for that of a file of OpenVINO's own format that has none.
    """
    found = read_metadata(path)
    keys = ("model", "weights_sha256", "preprocessing")
    if like is not None and path.suffix == OPENVINO_SUFFIX and not any(_PREFIX + key in found for key in keys):
        return replace(like, path=path)
    missing = [_PREFIX + key for key in keys if _PREFIX + key not in found]
    if missing:
        raise UserError(
            f"{path} does not say how its images are prepared (no {missing[0]} in its metadata); "
            "give a file that ptq4vit-onnx export has written"
        )
    model, weights, preprocessing = (found[_PREFIX + key] for key in keys)
    kind = found.get(f"{_PREFIX}output_kind", "logits")
    if kind not in KINDS:
        raise UserError(
            f"{path} returns {kind!r}, which this version does not know; expected one of {', '.join(KINDS)}"
        )
    try:
        return ModelFile(path, model, weights, Preprocessing.from_data(json.loads(preprocessing)), KINDS[kind])
    except (ValueError, LookupError, TypeError, ArithmeticError, UserError) as error:
        raise UserError(f"{path}: unusable metadata {_PREFIX}preprocessing: {error}; export it again") from error


def read_metadata(path: Path) -> dict[str, str]:
    """The entries of an ONNX file's metadata, or what OpenVINO has kept of them in a file of its own format."""
    if path.suffix != OPENVINO_SUFFIX:
        return {entry.key: entry.value for entry in load(path, weights=False).metadata_props}
    try:
        root = ElementTree.parse(path).getroot()
    except OSError as error:
        raise UserError(f"cannot read model {path}: {error.strerror or error}") from error
    except ElementTree.ParseError as error:
        raise UserError(f"{path} is not a model of OpenVINO's format: {error}") from error
    return {entry.tag: entry.get("value", "") for entry in root.iterfind("rt_info/framework/*")}


def require_reference_of(model: ModelFile, reference: ModelFile) -> None:
    """Refuse a reference that is another model, or the same one with other weights."""
    if reference.model != model.model:
        raise UserError(
            f"reference {reference.path} is {reference.model}, but {model.path} is {model.model}; "
            "give the float.onnx of the same export"
        )
    if reference.weights != model.weights:
        raise UserError(
            f"reference {reference.path} has other weights of {model.model} ({reference.weights[:12]}) than "
            f"{model.path} ({model.weights[:12]}); give the float.onnx of the same export"
        )
    require_same_kind(model, reference)


def require_same_kind(model: ModelFile, reference: ModelFile) -> None:
    if reference.kind is not model.kind:
        raise UserError(
            f"{model.path} returns {model.kind.plural}, {reference.path} {reference.kind.plural}; "
            "compare models of the same output kind"
        )


def require_float(reference: ModelFile) -> None:
    """Refuse a reference that is itself quantised: nothing in it says what the float model computes."""
    quantised = _quantising_node(reference)
    if quantised is not None:
        raise UserError(
            f"reference {reference.path} is not a float file: it has the {quantised.op_type} {quantised.name}; "
            "give the float.onnx of the same export"
        )


def is_float(model: ModelFile) -> bool:
    """A file of OpenVINO's own format is taken for a quantised one."""
    return model.path.suffix != OPENVINO_SUFFIX and _quantising_node(model) is None


def _quantising_node(model: ModelFile) -> Any:
    """The first node that makes or multiplies codes; None in a float file."""
    nodes = load(model.path, weights=False).graph.node
    return next((node for node in nodes if node.op_type in _QUANTISING_OPS | INTEGER_KERNELS), None)
