"""What a model file says about itself: which model it is, with which weights, how its images are prepared."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import onnx

from ptq4vit_onnx.errors import UserError
from ptq4vit_onnx.files.inputs import read_bytes
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
    proto = None if path.suffix == OPENVINO_SUFFIX else load(path, weights=False)
    found = read_metadata(path) if proto is None else _entries(proto)
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
        rule = Preprocessing.from_json(preprocessing)
        if proto is not None:
            _require_takes(proto, rule)
    except UserError as error:
        raise UserError(f"{path}: unusable metadata {_PREFIX}preprocessing: {error}; export it again") from error
    return ModelFile(path, model, weights, rule, KINDS[kind])


def _require_takes(proto: onnx.ModelProto, rule: Preprocessing) -> None:
    """Refuse images that the model does not take, before there are any: [N, C, H, W], or bytes [N, H, W, C]."""
    if len(proto.graph.input) != 1 or len(proto.graph.input[0].type.tensor_type.shape.dim) != 4:
        return  # what its input is to be is said where it runs
    kind = proto.graph.input[0].type.tensor_type
    sizes = [axis.dim_value for axis in kind.shape.dim[1:]]
    sizes = [sizes[2], *sizes[:2]] if kind.elem_type == onnx.TensorProto.UINT8 else sizes
    if any(size not in (0, wanted) for size, wanted in zip(sizes, rule.size, strict=True)):  # 0: a free length
        raise UserError(f"it prepares images {list(rule.size)}, the model takes {sizes}")


def read_metadata(path: Path) -> dict[str, str]:
    """The entries of an ONNX file's metadata, or what OpenVINO has kept of them in a file of its own format."""
    if path.suffix != OPENVINO_SUFFIX:
        return _entries(load(path, weights=False))
    text = read_bytes(path, "model", "give a model of OpenVINO's format")
    try:
        root = ElementTree.fromstring(text)
    except (ElementTree.ParseError, ValueError, LookupError) as error:  # the last two: unknown encodings
        raise UserError(f"{path} is not a model of OpenVINO's format: {error}") from error
    return {entry.tag: entry.get("value", "") for entry in root.iterfind("rt_info/framework/*")}


def _entries(proto: onnx.ModelProto) -> dict[str, str]:
    return {entry.key: entry.value for entry in proto.metadata_props}


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
