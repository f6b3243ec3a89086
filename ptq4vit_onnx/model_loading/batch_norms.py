"""Batch normalisation folded into the convolution before it, as torch's exporter folds it into the float file.

Calibration sees then the weights that the file has, and a scale for each output channel takes up the norm's factor.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor, nn

    from ptq4vit_onnx.model_loading.load import LoadedModel

_OWN = ("_parameters", "_buffers", "_modules")  # attributes that every module has, and that are copied


def with_batch_norms_folded(model: LoadedModel, image: np.ndarray[Any, Any]) -> LoadedModel:
    """The model, or a copy in which each batch norm that alone reads a convolution is the identity.

    image: [1, C, H, W].
    """
    import torch
    from torch.nn.modules.batchnorm import _BatchNorm

    if not any(isinstance(item, _BatchNorm) for item in model.module.modules()):
        return model
    module = _copied(model.module)
    for item in module.modules():
        item.training = False
    with torch.no_grad():
        for conv, norm in _pairs(module, torch.as_tensor(image)[:1]):
            _fold(conv, norm)
    return replace(model, module=module)


def _copied(module: nn.Module) -> nn.Module:
    """A copy; attributes that cannot be copied, as a lock or a tensor that was computed, are shared with it."""
    shared: dict[int, Any] = {}
    try:
        return copy.deepcopy(module)
    except Exception:  # of any type: every class may have its own __deepcopy__
        for part in module.modules():
            for value in (value for key, value in vars(part).items() if key not in _OWN):
                try:
                    copy.deepcopy(value)
                except Exception:
                    shared[id(value)] = value
        return copy.deepcopy(module, shared)


def _pairs(model: nn.Module, image: Tensor) -> list[tuple[nn.Conv2d, nn.Module]]:
    """Each convolution whose output one batch norm reads and nothing else, with that norm; both are used once."""
    import torch
    import torch.nn.functional as F
    from torch.overrides import TorchFunctionMode

    convs = {id(item.weight): item for item in model.modules() if isinstance(item, torch.nn.Conv2d)}
    norms = {id(buffer): item for item in model.modules() for buffer in item.buffers(recurse=False)}
    outputs: dict[int, tuple[Tensor, nn.Conv2d]] = {}
    readers: dict[int, list[nn.Module | None]] = {}
    used: list[nn.Module | None] = []

    class Watch(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            out = func(*args, **kwargs)
            norm = norms.get(id(_second(args, kwargs))) if func is F.batch_norm else None
            used.append(norm)
            read = [item for item in (*args, *kwargs.values()) if isinstance(item, torch.Tensor)]
            for item in read if _holds_tensor(out) else ():
                if id(item) in outputs:
                    readers.setdefault(id(item), []).append(norm)
            if func in (F.conv2d, torch.conv2d) and len(args) > 1 and id(args[1]) in convs:
                outputs[id(out)] = (out, convs[id(args[1])])  # holding the tensor keeps its id its own
            return out

    with Watch():
        model(image)
    found = [(conv, readers.get(key, [])) for key, (_, conv) in outputs.items()]
    pairs = [(conv, read[0]) for conv, read in found if len(read) == 1 and read[0] is not None]
    calls = [conv for conv, _ in found]
    return [(conv, norm) for conv, norm in pairs if calls.count(conv) == 1 and used.count(norm) == 1]


def _second(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The running mean of a call of batch_norm; None where it computes its own."""
    return args[1] if len(args) > 1 else kwargs.get("running_mean")


def _holds_tensor(out: Any) -> bool:
    """Functions that return numbers (a shape, a device) read no values."""
    import torch

    return isinstance(out, torch.Tensor) or (isinstance(out, (tuple, list)) and any(map(_holds_tensor, out)))


def _fold(conv: nn.Conv2d, norm: Any) -> None:
    """The convolution takes over what the norm does, computed in float64; the norm becomes exactly the identity."""
    import torch

    width = torch.float64
    mean, variance = norm.running_mean.to(width), norm.running_var.to(width)
    gain = torch.ones_like(mean) if norm.weight is None else norm.weight.to(width)
    shift = torch.zeros_like(mean) if norm.bias is None else norm.bias.to(width)
    before = torch.zeros_like(mean) if conv.bias is None else conv.bias.to(width)
    factor = gain / (variance + norm.eps).sqrt()
    conv.weight.copy_((conv.weight.to(width) * factor.reshape(-1, 1, 1, 1)).float())
    conv.bias = torch.nn.Parameter((shift + (before - mean) * factor).float(), requires_grad=False)
    norm.running_mean.zero_()
    norm.running_var.fill_(1.0)
    norm.eps = 0.0
    if norm.weight is not None:
        norm.weight.fill_(1.0)
    if norm.bias is not None:
        norm.bias.zero_()
