"""Weights from a file: reading a checkpoint, and giving it to a model that it fits."""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ptq4vit_onnx.errors import UserError, one_line
from ptq4vit_onnx.files.inputs import unfit
from ptq4vit_onnx.request import size_text

if TYPE_CHECKING:
    import torch
    from torch import nn

_WRAPPERS = ("state_dict_ema", "model_ema", "state_dict", "model")  # EMA weights first, as timm does
MOST_WRAPPERS = 8  # one in the other


def read_state(path: Path) -> dict[str, Any]:
    """A flat state dict from .safetensors, .pth, .pt or .bin; pickled code is never run."""
    import pickle

    import torch
    from safetensors.torch import load_file

    reason = unfit(path)
    if reason is not None:
        raise UserError(f"no checkpoint at {path}: {reason}; give a .safetensors, .pth, .pt or .bin file")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's advice about pickles is not for our user
            is_safe = path.suffix.lower() == ".safetensors"
            data = load_file(path) if is_safe else torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise UserError(
            f"checkpoint {path} is not a plain file of tensors: loading it would run code from it or it is "
            "damaged; save the state dict alone, best as .safetensors"
        ) from error
    except Exception as error:  # a damaged file makes the readers raise nearly anything
        raise UserError(f"cannot read checkpoint {path}: {one_line(error)}; is it complete?") from error
    return _unnest(path, data)


def _unnest(path: Path, data: Any) -> dict[str, Any]:
    """The tensors of a checkpoint, from under the usual wrappers."""
    import torch

    for _ in range(MOST_WRAPPERS):  # a pickle may hold itself
        inner = next((key for key in _WRAPPERS if isinstance(data, dict) and isinstance(data.get(key), dict)), None)
        if inner is None:
            break
        data = data[inner]
    tensors = _items(data, torch.Tensor)
    if not tensors:
        raise UserError(
            f"checkpoint {path} holds no state dict; expected tensors by name, at the top or under "
            "state_dict, model or model_ema"
        )
    prefixes = ("module.", "_orig_mod.")
    clean: dict[str, Any] = {}
    for key, value in tensors.items():
        name = key
        while name.startswith(prefixes):
            name = name.partition(".")[2]
        if name in clean:
            raise UserError(
                f"checkpoint {path} holds {name} twice, as {key} as well; save the state dict of one module"
            )
        _require_plain(path, key, value)
        clean[name] = value
    return clean


def _require_plain(path: Path, key: str, value: torch.Tensor) -> None:
    """Refuse what is no array of real numbers, and weights in whole numbers: their scales lie elsewhere."""
    import torch

    kind = str(value.dtype).removeprefix("torch.")
    if value.is_quantized or value.is_complex():
        what = kind
    elif value.layout != torch.strided:
        what = "sparse"
    elif value.device.type == "meta":
        what = "a shape without values (on torch's device meta)"
    elif not value.is_floating_point() and value.dim() and key.endswith((".weight", ".bias")):
        what = kind
    else:
        return
    raise UserError(f"checkpoint {path} cannot be used: {key} is {what}; save the float weights as plain tensors")


def _items(data: Any, kind: type) -> dict[str, Any]:
    """The named values of one type; some files hold counters and settings next to the weights."""
    entries = data.items() if isinstance(data, dict) else ()
    return {key: value for key, value in entries if isinstance(key, str) and isinstance(value, kind)}


def classes_in(state: dict[str, Any]) -> int | None:
    """The number of classes of the checkpoint's head, so that fine-tuned models load without another option."""
    for key in ("head.weight", "head.fc.weight"):
        if key in state and getattr(state[key], "ndim", 0) == 2:
            return int(state[key].shape[0])
    return None


def _without_head(state: dict[str, Any], module: nn.Module) -> dict[str, Any]:
    """The weights without those of the classifier, for a module that was built without one."""
    config: Any = getattr(module, "pretrained_cfg", None)
    named = config.get("classifier") if isinstance(config, dict) else None
    heads = (named,) if isinstance(named, str) else tuple(named or ("head", "head.fc"))
    own = module.state_dict()
    prefixes = tuple(f"{head}." for head in heads)
    return {key: value for key, value in state.items() if key in own or not key.startswith(prefixes)}


def load_state(module: nn.Module, state: dict[str, Any], path: Path, name: str, headless: bool = False) -> None:
    """Give the weights of `path` to the module, converted as timm does; name: of the model, for messages.

    headless: the module was built without its classifier, whose weights are left out. That comes last: timm's
    conversion tells old files by their head.
    """
    filter_state = getattr(sys.modules[type(module).__module__], "checkpoint_filter_fn", None)
    try:
        state = filter_state(state, module) if filter_state else state
    except (LookupError, AttributeError, RuntimeError, ValueError, TypeError, AssertionError) as error:
        raise UserError(f"checkpoint {path} does not fit {name}: {one_line(error)}") from error
    state = _without_head(state, module) if headless else state
    _require_match(name, path, module, state)
    module.load_state_dict(state)
    broken = [key for key, value in module.state_dict().items() if not value.isfinite().all()]
    if broken:
        raise UserError(f"checkpoint {path} holds NaN or infinite weights: {_listed('in', broken)}")


def resampled_tables(module: nn.Module, before: Mapping[str, torch.Tensor]) -> str:
    """A sentence if position tables of the module are resampled ones; "" if none is.

    before: the weights that were loaded, before timm converted them.
    """
    for key, table in module.state_dict().items():
        if key not in before or before[key].shape == table.shape:
            continue
        owner: Any = module.get_submodule(key.rpartition(".")[0])
        if key == "pos_embed" and hasattr(getattr(module, "patch_embed", None), "grid_size"):
            return _resampled_positions(module, before[key].shape)
        if key.endswith("relative_position_bias_table") and hasattr(owner, "window_size"):
            return _resampled_windows(module, len(before[key]), owner.window_size)
        if key.endswith(("pos_embed", "relative_position_bias_table")):
            return f"{key} resampled from {list(before[key].shape)} to {list(table.shape)}, for images of another size"
    return ""


def _resampled_positions(module: Any, shape: Sequence[int]) -> str:
    """Of a table [1, prefix + height * width, channels], whose image was square."""
    prefix = 0 if getattr(module, "no_embed_class", False) else getattr(module, "num_prefix_tokens", 1)
    side = math.isqrt(max(math.prod(shape[1:-1]) - prefix, 0))
    grid = _by(module.patch_embed.grid_size)
    return f"position table resampled from {side} x {side} to {grid}; {_trained_at(module, side)}"


def _resampled_windows(module: Any, entries: int, window: Sequence[int]) -> str:
    """Of tables with an entry for each of (2 side - 1) squared offsets, in BEiT and three for its class token."""
    side = (math.isqrt(entries) + 1) // 2
    said = f"relative position tables resampled from windows of {side} x {side} to {_by(window)}; "
    if tuple(window) == tuple(getattr(module.patch_embed, "grid_size", ())):
        return said + _trained_at(module, side)
    return said + f"if timm has the architecture with windows of {side} x {side}, give that as --model"


def _trained_at(module: Any, side: int) -> str:
    size = (side * module.patch_embed.patch_size[0], side * module.patch_embed.patch_size[1])
    return f"--img-size {size_text(size)} is the size that the weights were trained at"


def _by(sides: Sequence[int]) -> str:
    return " x ".join(map(str, sides))


def _require_match(name: str, path: Path, module: nn.Module, state: dict[str, Any]) -> None:
    expected = module.state_dict()
    problems = [
        _listed("missing", [key for key in expected if key not in state]),
        _listed("unexpected", [key for key in state if key not in expected]),
        _listed("of another shape", [
            f"{key} {list(state[key].shape)} instead of {list(expected[key].shape)}"
            for key in expected
            if key in state and state[key].shape != expected[key].shape
        ]),
        _listed("of another type", [
            f"{key} {str(state[key].dtype).removeprefix('torch.')}"
            for key in expected
            if key in state and state[key].is_floating_point() != expected[key].is_floating_point()
        ]),
    ]  # fmt: skip
    found = [problem for problem in problems if problem]
    if found:
        bare = all(key.startswith(("head.", "head_dist.", "fc_norm.")) for key in expected if key not in state)
        advice = (
            "if it has no head, give --num-classes 0"
            if bare and found[0] == problems[0]
            else ("is it of another architecture? (ptq4vit-onnx models)")
        )
        raise UserError(f"checkpoint {path} does not fit {name}: {'; '.join(found)}; {advice}")


def _listed(what: str, items: list[str]) -> str:
    shown = ", ".join(items[:3]) + (f" and {len(items) - 3} more" if len(items) > 3 else "")
    return f"{what}: {shown}" if items else ""
