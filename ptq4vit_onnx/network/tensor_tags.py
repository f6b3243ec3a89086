"""What a tensor comes from, as attributes of it: softmax, GELU, a LayerNorm, pixels."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ptq4vit_onnx.plan.sites import Source

_SOFTMAX = {F.softmax, torch.softmax, Tensor.softmax}
_GELU = {F.gelu}
_TRANSPARENT = {F.dropout, torch.dropout, Tensor.contiguous, Tensor.float, Tensor.to, Tensor.type_as}
# Functions that move elements and compute nothing: graph/movement.py has the ONNX operators. They usually leave an
# element in its channel, the last axis; channel_folding.py tries whether that is so.
_MOVING = _TRANSPARENT | {
    torch.roll, Tensor.roll, F.pad, Tensor.view, Tensor.reshape, torch.reshape, Tensor.flatten, torch.flatten,
    Tensor.permute, torch.permute, Tensor.transpose, torch.transpose, Tensor.__getitem__,
}  # fmt: skip


def mark_source(func: Any, args: tuple[Any, ...], out: Any) -> None:
    """Tag what softmax and GELU return; dropout and other operations that keep the values hand the tag on."""
    if func in _SOFTMAX:
        out._ptq4vit_source = "softmax"
    elif func in _GELU:
        out._ptq4vit_source = "gelu"
    elif func in _TRANSPARENT and args and source_of(args[0]) != "other":
        out._ptq4vit_source = source_of(args[0])


def source_of(x: Tensor) -> Source:
    source: Source = getattr(x, "_ptq4vit_source", "other")
    return source


def _pads(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether this pads with values that no LayerNorm made, as Swin does where windows do not tile the image."""
    return func is F.pad and any(args[1] if len(args) > 1 else kwargs["pad"])


def norm_of(x: Any) -> str:
    norm: str = getattr(x, "_ptq4vit_norm", "")
    return norm


def mark_norm(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any, owners: Mapping[int, str]) -> None:
    """Tag a tensor with the path of the LayerNorm that made it, if that has a weight and a bias to fold into.

    owners: paths of the modules that parameters belong to, by the parameters' ids.
    """
    if func is F.layer_norm:
        given = dict(zip(("input", "normalized_shape", "weight", "bias"), args, strict=False)) | kwargs
        paths = {owners.get(id(given.get(name))) for name in ("weight", "bias")}
        if len(paths) == 1 and None not in paths:
            out._ptq4vit_norm = paths.pop()
    elif func in _MOVING and args and norm_of(args[0]) and not _pads(func, args, kwargs):
        out._ptq4vit_norm = norm_of(args[0])


def mark_pixels(x: Any) -> None:
    """Tag tensors as computed from pixels."""
    for item in _tensors((x,)):
        item._ptq4vit_pixels = True  # type: ignore[attr-defined]


def made_of_pixels(*values: Any) -> bool:
    return any(hasattr(item, "_ptq4vit_pixels") for item in _tensors(values))


def hand_pixels_on(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
    """What is computed from pixels is tagged; so is what pixels are written into."""
    if made_of_pixels(args, kwargs):
        mark_pixels(args[0] if func is Tensor.__setitem__ else out)


def _tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, Mapping):
            yield from _tensors(value.values())
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)
