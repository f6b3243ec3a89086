"""A module of the user's: whether it can be taken, and how its images are prepared. It is only read."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ptq4vit_onnx.errors import UserError
from ptq4vit_onnx.images.preprocessing import Preprocessing
from ptq4vit_onnx.models.specs import is_embedded
from ptq4vit_onnx.request import GivenModule

if TYPE_CHECKING:
    from torch.nn import Module as Module

_EXAMPLE = "preprocessing=dict(size=224, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))"
_DEFAULTS = {"crop_pct": 1.0, "crop_mode": "center", "interpolation": "bicubic"}
_SIZES = ("size", "input_size")  # the second is what timm.data.resolve_model_data_config calls it


def name_or_module(model: Any, preprocessing: Any, name: str | None) -> tuple[str, GivenModule | None]:
    """What the user gave as a model: (its name, the module if it is one)."""
    if isinstance(model, (str, os.PathLike)):
        for option, value in (("preprocessing", preprocessing), ("name", name)):
            if value is not None:
                raise UserError(f"{option} is for a module; {model} has its own, leave {option} out")
        return os.fspath(model), None
    module = _plain(model)
    return _named(module, name), GivenModule(module, preprocessing_from(preprocessing, module))


def _plain(model: Any) -> Any:
    """The module, from under torch.compile; a UserError where it cannot be read as float32 on the CPU."""
    from torch import jit, nn

    if not isinstance(model, nn.Module):
        raise UserError(f"model is a {type(model).__name__}; expected a name or a torch.nn.Module")
    model = getattr(model, "_orig_mod", model)
    if isinstance(model, jit.ScriptModule):
        raise UserError("model is a TorchScript module, which cannot be looked into; give the nn.Module it was made of")
    for path, tensor in [*model.named_parameters(), *model.named_buffers()]:
        _require_float32(path, tensor)
    return model


def _require_float32(path: str, tensor: Any) -> None:
    if tensor.is_meta:
        raise UserError(f"{path} of the module is a meta tensor without values; load its weights first")
    if tensor.device.type != "cpu":
        raise UserError(f"{path} of the module is on {tensor.device}; give module.cpu()")
    if tensor.layout.__str__() != "torch.strided" or tensor.is_quantized:
        raise UserError(f"{path} of the module is sparse or quantised; give the float module")
    if tensor.is_inference():
        raise UserError(
            f"{path} of the module was made in torch.inference_mode and can have no gradients; make the module outside"
        )
    kind = str(tensor.dtype).removeprefix("torch.")
    if (tensor.is_floating_point() or tensor.is_complex()) and kind != "float32":
        raise UserError(f"{path} of the module is {kind}, expected float32; give copy.deepcopy(module).float()")


def _named(module: Any, name: str | None) -> str:
    chosen = type(module).__name__ if name is None else name
    if not isinstance(chosen, str) or not chosen.strip() or not chosen.isprintable():
        raise UserError(f"name is {name!r}; expected a word for the model, its files are named after it")
    if is_embedded(chosen):
        raise UserError(f"name is {chosen!r}, which is a model of the package; give another")
    return chosen


def preprocessing_from(given: Any, module: Any = None) -> Preprocessing:
    """A Preprocessing, of one or of a mapping: size (224, (height, width) or (channels, height, width)), mean, std;
    crop_pct, crop_mode and interpolation may be left out. timm's own data config is such a mapping."""
    if isinstance(given, Preprocessing):
        return given
    if given is None:
        known = ", or timm.data.resolve_model_data_config(module)" if hasattr(module, "pretrained_cfg") else ""
        raise UserError(f"a module does not say how its images are prepared; give {_EXAMPLE}{known}")
    if not isinstance(given, Mapping):
        raise UserError(f"preprocessing is a {type(given).__name__}; expected {_EXAMPLE}")
    _require_keys(given)
    size = next(given[key] for key in _SIZES if key in given)
    try:
        mean, std = (tuple(map(float, given[key])) for key in ("mean", "std"))
        data = {**_DEFAULTS, **given, "mean": mean, "std": std, "size": _shape(size, len(mean))}
        return Preprocessing.from_data(data)
    except (TypeError, ValueError, LookupError) as error:
        raise UserError(f"preprocessing is {dict(given)!r}; expected {_EXAMPLE}") from error


def _require_keys(given: Mapping[str, Any]) -> None:
    needed = {"mean", "std", next((key for key in _SIZES if key in given), "size")}
    missing, unknown = sorted(needed - set(given)), sorted(set(given) - needed - set(_DEFAULTS))
    if missing or unknown:
        problem = f"preprocessing lacks {missing[0]}" if missing else f"preprocessing has {unknown[0]!r}"
        raise UserError(f"{problem}; expected size, mean and std, and perhaps {', '.join(_DEFAULTS)}, as {_EXAMPLE}")


def _shape(size: Any, channels: int) -> tuple[int, ...]:
    """224, (height, width) or (channels, height, width) -> the last."""
    sides = (size, size) if isinstance(size, int) else tuple(size)
    if len(sides) not in (2, 3):
        raise ValueError(f"{len(sides)} sides")
    return (channels, *sides) if len(sides) == 2 else sides
