"""One forward pass of a model, to see what it returns, or to say in one line that it fails."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ptq4vit_onnx.errors import UserError, is_out_of_memory, one_line

if TYPE_CHECKING:
    from torch import Tensor, nn


def run_once(module: nn.Module, images: Tensor, name: str = "this model") -> Any:
    """What the module returns for images [n, C, H, W]; a UserError where its forward fails.

    The module, and torch's random generator, are afterwards as before.
    """
    import torch

    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad(), in_eval_mode(module):
            version = images._version
            outputs = module(images)
    except UserError:
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise
        raise UserError(
            f"cannot quantise {name}: its forward failed on images {list(images.shape)}: {type(error).__name__}: "
            f"{one_line(error).rstrip('.')}; it must take one float tensor [images, channels, height, width] with any "
            "number of images: give the image size that it takes, or wrap it in a module that does"
        ) from error
    if images._version != version:
        raise UserError(
            f"cannot quantise {name}: its forward changes the images it is given in place, so that whoever gave them "
            "has others afterwards; let it begin with x = x.clone(), or write x = x - mean for x -= mean"
        )
    return outputs


@contextmanager
def outside_modes() -> Iterator[None]:
    """While it is open, torch computes in float32 and can record gradients, also where the caller has opened
    torch.autocast or torch.inference_mode."""
    torch = sys.modules.get("torch")
    if torch is None:  # then nobody has
        yield
        return
    with torch.inference_mode(False), torch.autocast("cpu", enabled=False):
        yield


@contextmanager
def in_eval_mode(module: nn.Module) -> Iterator[None]:
    """While it is open, dropout and batch norms are as in deployment. The flags are set one by one, not by
    `module.eval()`: a subclass may override `train` with more than can be undone."""
    training = [part for part in module.modules() if part.training]
    try:
        for part in training:
            part.training = False
        yield
    finally:
        for part in training:
            part.training = True


def require_outputs(outputs: Any, images: int, name: str = "this model") -> tuple[Tensor, ...]:
    """What a forward returned, as a tuple of float tensors [images, ..] of two to four axes; else a UserError."""
    from torch import Tensor

    found = outputs if isinstance(outputs, (tuple, list)) else (outputs,)
    if len(found) and all(isinstance(item, Tensor) and _is_usable(item, images) for item in found):
        return tuple(found)
    raise UserError(
        f"cannot quantise {name}: its forward returns {_described(outputs)} for {images} "
        f"image{'s' if images > 1 else ''}, expected a float tensor or a tuple of them, each [images, channels], "
        "[images, tokens, channels] or [images, channels, height, width]; wrap it in a module that returns such tensors"
    )


def _is_usable(output: Tensor, images: int) -> bool:
    return output.is_floating_point() and 2 <= output.dim() <= 4 and len(output) == images


def _described(outputs: Any) -> str:
    """(logits, [boxes]) -> "a tuple of float32 [1, 10], a list of float32 [4]" """
    from torch import Tensor

    if isinstance(outputs, Tensor):
        return f"{str(outputs.dtype).removeprefix('torch.')} {list(outputs.shape)}"
    kind = type(outputs).__name__
    if isinstance(outputs, dict):
        return f"a {kind} of {', '.join(map(str, list(outputs)[:4])) or 'nothing'}"
    if isinstance(outputs, (tuple, list)):
        few = ", ".join(_described(item) for item in outputs[:3])
        return f"a {kind} of {few or 'nothing'}{' and more' if len(outputs) > 3 else ''}"
    return "nothing" if outputs is None else f"a {kind}"
