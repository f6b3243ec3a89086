"""Models of torchvision by the names of its functions: torchvision:vit_b_16."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ptq4vit_onnx.errors import UserError, one_line
from ptq4vit_onnx.images.preprocessing import Preprocessing
from ptq4vit_onnx.model_loading.checkpoints import load_state, read_state
from ptq4vit_onnx.model_loading.hub import reachable
from ptq4vit_onnx.model_loading.timm_compat import declare_missing_torchvision_operators
from ptq4vit_onnx.model_loading.wanted import Built, Wanted, no_pretrained_head
from ptq4vit_onnx.models.specs import ModelSpec, closest
from ptq4vit_onnx.request import ImageSize

if TYPE_CHECKING:
    from torch import nn

_IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


def spec_of(address: str) -> ModelSpec:
    """Of a name that torchvision registers, read from its source files: importing it takes seconds."""
    spec = importlib.util.find_spec("torchvision")
    folders = list(spec.submodule_search_locations or []) if spec else []
    pattern = re.compile(r"^@register_model\(.*?^def (\w+)\(", re.MULTILINE | re.DOTALL)
    files = [file for folder in folders for file in (Path(folder) / "models").rglob("*.py")]
    known = {name for file in files for name in pattern.findall(file.read_text(encoding="utf-8"))}
    if address not in known:
        near = closest(address, sorted(known))
        hint = f"; closest are {', '.join(near)}" if near else ""
        raise UserError(f"torchvision has no model named {address!r}{hint} (all: torchvision.models.list_models())")
    name = f"torchvision:{address}"
    return ModelSpec(name, "", 0, name, library="torchvision", address=address)


def from_torchvision(wanted: Wanted) -> Built:
    declare_missing_torchvision_operators()
    weights = _weights(wanted.spec.address)
    rule = preprocessing_of(weights, wanted.img_size)
    if wanted.checkpoint is not None:
        state = read_state(wanted.checkpoint)
        module = _build(wanted, wanted.num_classes or _classes_in(state))
        load_state(module, state, wanted.checkpoint, wanted.spec.name)
        return Built(_headless(module, wanted), rule, "checkpoint")
    if wanted.random_weights:
        return Built(_headless(_build(wanted, wanted.num_classes or None), wanted), rule, "random")
    return Built(_headless(_pretrained(wanted, weights), wanted), rule, "pretrained")


def _weights(address: str) -> Any:
    """The weights that torchvision recommends for a model; None where it has none."""
    from torchvision import models

    return getattr(models.get_model_weights(address), "DEFAULT", None)


def _build(wanted: Wanted, classes: int | None) -> nn.Module:
    from torchvision import models

    options: dict[str, Any] = {} if classes is None else {"num_classes": classes}
    if wanted.img_size is not None and wanted.spec.address.startswith("vit_"):
        if wanted.img_size[0] != wanted.img_size[1]:
            raise UserError(f"{wanted.spec.name} takes square images only; give --img-size {wanted.img_size[0]}")
        options["image_size"] = wanted.img_size[0]
    if any(name in wanted.spec.address for name in ("rcnn", "ssd", "retinanet", "fcos", "deeplab", "lraspp", "fcn")):
        options["weights_backbone"] = None  # else it is fetched
    try:
        module: nn.Module = models.get_model(wanted.spec.address, weights=None, **options)
    except (RuntimeError, ValueError, TypeError, AssertionError) as error:
        advice = "try it without --num-classes" if wanted.img_size is None else "leave --img-size out or give another"
        raise UserError(f"torchvision cannot build {wanted.spec.address!r}: {one_line(error)}; {advice}") from error
    return module


def _pretrained(wanted: Wanted, weights: Any) -> nn.Module:
    """With torchvision's own weights, which it keeps in torch's hub folder."""
    import torch
    from torchvision import models

    name = wanted.spec.name
    ways = "give --checkpoint FILE, or use --random-weights for a dry run"
    if weights is None:
        raise UserError(f"torchvision has no weights for {name}; {ways}")
    own = len(weights.meta.get("categories") or ())
    if wanted.num_classes and wanted.num_classes != own:
        raise no_pretrained_head(wanted, own)
    cached = Path(torch.hub.get_dir()) / "checkpoints" / weights.url.rpartition("/")[2]
    if not cached.is_file() and not reachable(weights.url):
        raise UserError(f"no weights for {name}: {weights.url} cannot be reached; connect to the network, {ways}")
    _build(wanted, None)  # refuses an image size, before anything is fetched
    try:
        options = {"image_size": wanted.img_size[0]} if wanted.img_size and "vit_" in name else {}
        module: nn.Module = models.get_model(wanted.spec.address, weights=weights, progress=False, **options)
    except (OSError, RuntimeError, ValueError) as error:
        raise UserError(f"no weights for {name}: {one_line(error)}; {ways}") from error
    return module


def _headless(module: nn.Module, wanted: Wanted) -> nn.Module:
    """The module without its last linear, if that was asked for."""
    from torch import nn

    if not wanted.headless:
        return module
    linears = [path for path, part in module.named_modules() if isinstance(part, nn.Linear)]
    if not linears or not set(linears[-1].split(".")) & {"head", "heads", "fc", "classifier"}:
        raise UserError(f"{wanted.spec.name} has no classifier that could be taken off; leave --num-classes out")
    owner, _, last = linears[-1].rpartition(".")
    setattr(module.get_submodule(owner), last, nn.Identity())
    return module


def _classes_in(state: dict[str, Any]) -> int | None:
    """The number of classes of a checkpoint's head, so that fine-tuned models load without another option."""
    heads = ("heads.head.weight", "head.weight", "fc.weight", "classifier.weight")
    return next((len(state[key]) for key in heads if key in state), None)


def preprocessing_of(weights: Any, img_size: ImageSize | None = None) -> Preprocessing:
    """The transform of the recommended weights; ImageNet's usual one where there are none."""
    preset = weights.transforms() if weights is not None else None
    crop, resize = (_side(getattr(preset, key, None)) for key in ("crop_size", "resize_size"))
    size, share = (img_size or (crop or 224,) * 2), (crop or 224) / (resize or crop or 224)
    mean, std = (tuple(getattr(preset, key, usual)) for key, usual in zip(("mean", "std"), _IMAGENET, strict=True))
    filter_name = getattr(getattr(preset, "interpolation", None), "value", "bilinear")
    return Preprocessing((3, *size), share, "center", filter_name, mean, std)


def _side(given: Any) -> int | None:
    return int(given[0]) if isinstance(given, (list, tuple)) else given
