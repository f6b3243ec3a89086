"""What kind of output a model has: what the user says, or what can be told from the model.

`auto` takes the first rule that holds:

1. the source of the model knows, as for the classes of transformers                               as it says
2. several tensors, or one of three or four axes                                                   features
3. timm's image tower of a CLIP or SigLIP that was not fine-tuned: its "classes" are coordinates   embedding
4. a tensor [n, d] of a module whose `num_classes` is d                                            logits
5. a tensor [n, d], d of them from a linear called head, fc, classifier, ..                        logits
6. any other tensor [n, d]                                                                         embedding
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ptq4vit_onnx.errors import UserError
from ptq4vit_onnx.output_kinds.kinds import KINDS, KindName, OutputKind
from ptq4vit_onnx.request import AskedKind

if TYPE_CHECKING:
    from torch import nn

RETURNS = "ptq4vit_returns"  # attribute of a module whose source knows the kind of its output: Returns
_TOWERS = ("clip", "pe_core")  # in timm's names and tags; "siglip" has no classes at all
_FINE_TUNED = "ft_in"  # in timm's tags: laion2b_ft_in12k_in1k is a classifier
_CLASSIFIERS = ("head", "heads", "fc", "classifier", "logits")
_OVERRIDE = "--output-kind overrides this"


@dataclass(frozen=True)
class Returns:
    """What a source knows of the output. why: a part of a sentence."""

    kind: KindName
    why: str


@dataclass(frozen=True)
class Taken:
    """What a model is taken for. names: of its outputs, in their order. why: a sentence for the user."""

    kind: OutputKind
    names: tuple[str, ...]
    why: str


def take_for(asked: AskedKind, module: nn.Module, outputs: Any, name: str) -> Taken:
    """The kind of what a forward returned: a tensor [n, ..] or a tuple of them. name: of the model, for messages."""
    shapes = [tuple(item.shape) for item in (outputs if isinstance(outputs, (tuple, list)) else (outputs,))]
    if asked != "auto":
        _require_fits(asked, shapes, name)
        return Taken(KINDS[asked], _names(asked, outputs), f"{asked} {_text(shapes)}, as asked for")
    known = _known(module, shapes)
    return Taken(KINDS[known.kind], _names(known.kind, outputs), f"{known.kind} {_text(shapes)}: {known.why}")


def _known(module: nn.Module, shapes: Sequence[tuple[int, ...]]) -> Returns:
    said = getattr(module, RETURNS, None)
    if isinstance(said, Returns) and (said.kind == "features" or len(shapes[0]) == 2):
        return said
    if len(shapes) > 1:
        return Returns("features", f"it returns {len(shapes)} tensors")
    if len(shapes[0]) > 2:
        return Returns("features", "its output has more than one row an image")
    return _by_rows(module, shapes[0][-1])


def _by_rows(module: nn.Module, width: int) -> Returns:
    """Of a module that returns [n, width]: coordinates and classes have the same shape."""
    classes = getattr(module, "num_classes", None)
    if classes == width and _is_tower(module, width):
        return Returns("embedding", f"the image tower of a CLIP-type model, not fine-tuned to classes ({_OVERRIDE})")
    if classes == width:
        return Returns("logits", f"its num_classes is {width} ({_OVERRIDE})")
    linear = _classifier(module, width)
    if linear and classes != 0:
        return Returns("logits", f"its last linear is called {linear} ({_OVERRIDE})")
    return Returns("embedding", f"it has no classifier head ({_OVERRIDE})")


def _is_tower(module: nn.Module, width: int) -> bool:
    """By what timm says of the weights that the architecture stands for; a head of other width is a fine-tuned one."""
    config: Any = getattr(module, "pretrained_cfg", None)
    if not isinstance(config, dict) or config.get("num_classes") != width:
        return False
    tag = str(config.get("tag") or "")
    return any(word in f"{config.get('architecture')}.{tag}" for word in _TOWERS) and _FINE_TUNED not in tag


def _classifier(module: nn.Module, width: int) -> str:
    """The path of the last linear with `width` outputs, if it is called as classifiers are; else ""."""
    wide = [path for path, part in module.named_modules() if getattr(part, "out_features", None) == width]
    return wide[-1] if wide and set(wide[-1].split(".")[-2:]) & set(_CLASSIFIERS) else ""


def _require_fits(asked: KindName, shapes: Sequence[tuple[int, ...]], name: str) -> None:
    if asked == "features" or (len(shapes) == 1 and len(shapes[0]) == 2):
        return
    expected = "[images, classes]" if asked == "logits" else "[images, coordinates]"
    raise UserError(
        f"--output-kind {asked} does not fit {name}: it returns {_text(shapes)}, expected one tensor {expected}; "
        "leave --output-kind out, or give features"
    )


def _names(kind: KindName, outputs: Any) -> tuple[str, ...]:
    """By their kind; several by the fields of a named tuple, or numbered."""
    if not isinstance(outputs, (tuple, list)) or len(outputs) == 1:
        return (kind,)
    fields: Any = getattr(outputs, "_fields", None)
    if fields:  # one that is called as the file's input is gets another name
        return tuple(f"{kind}_{field}" if field == "image" else field for field in fields)
    return tuple(f"{kind}_{number}" for number in range(len(outputs)))


def _text(shapes: Sequence[tuple[int, ...]]) -> str:
    return ", ".join(f"[{', '.join(['n', *map(str, shape[1:])])}]" for shape in shapes)
