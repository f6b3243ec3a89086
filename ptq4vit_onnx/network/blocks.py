"""Where a model can be cut for recording: modules that can be run again by themselves, one behind the other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from typing import Any

from torch import Tensor, nn

from ptq4vit_onnx.network.dependencies import behind, graph_alone
from ptq4vit_onnx.plan.sites import Site

_CONTAINERS = (nn.ModuleList, nn.ModuleDict)  # they hold modules, and compute nothing


def find_blocks(model: nn.Module, sites: list[Site], image: Tensor) -> list[nn.Module]:
    """The largest modules that hold exactly one attention each: `blocks.0`, `layers.1.blocks.0`, ...

    Where such a module cannot be cut out, the one around it is taken, whatever it holds; where that is the model
    itself, none. image: [1, C, H, W].
    """
    paths = _with_one_attention(model, sites)
    while entangled := _entangled(model, paths, image):
        paths = _outermost([_around(model, path) if path in entangled else path for path in paths])
    return [model.get_submodule(path) for path in paths]


def _with_one_attention(model: nn.Module, sites: list[Site]) -> list[str]:
    attentions = [site.scope for site in sites if site.lhs_source == "softmax"]
    paths = []
    for scope in attentions:
        path = scope
        while "." in path:
            parent = path.rpartition(".")[0]
            inside = [other for other in attentions if other.startswith(parent + ".")]
            if len(inside) > 1 or isinstance(model.get_submodule(parent), _CONTAINERS):
                break
            path = parent
        paths.append(path)
    return [path for path in paths if path]


def _around(model: nn.Module, path: str) -> str:
    """The next larger module that computes something; empty for the model itself."""
    path = path.rpartition(".")[0]
    while path and isinstance(model.get_submodule(path), _CONTAINERS):
        path = path.rpartition(".")[0]
    return path


def _outermost(paths: list[str]) -> list[str]:
    """Each path once, without those that lie inside another."""
    known = {path for path in paths if path}
    return [path for path in dict.fromkeys(paths) if path and not any(path.startswith(f"{one}.") for one in known)]


def _entangled(model: nn.Module, paths: list[str], image: Tensor) -> set[str]:
    """The modules that cannot be cut out.

    More than one tensor with a gradient enters or leaves, or others read what led to the one that enters: a residual
    around the module, a neighbour at its side. The gradient would go through what lies before it twice, each time
    with a part of itself.
    """
    logits, passages = _passages(model, paths, image)
    found = set(paths) - set(passages)
    claimed = behind([logits.grad_fn])
    for path, entered in reversed(passages.items()):
        own = behind([entered.grad_fn])
        if own & claimed:
            found.add(path)
        claimed |= own
    return found


def _passages(model: nn.Module, paths: list[str], image: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """The logits, and what enters each module through which one tensor goes in and one out; the graph is cut there."""
    entered: dict[str, Tensor] = {}

    def cut(path: str, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> Tensor | None:
        others = [item for item in _tensors((args[1:], kwargs.values())) if item.requires_grad]
        if not args or not all(isinstance(item, Tensor) for item in (args[0], out)) or others:
            return None
        entered[path] = args[0]
        left: Tensor = out.detach().requires_grad_(True)
        return left

    with graph_alone(), ExitStack() as stack:
        for path in paths:
            hook = model.get_submodule(path).register_forward_hook(
                lambda _module, args, kwargs, out, path=path: cut(path, args, kwargs, out), with_kwargs=True
            )
            stack.callback(hook.remove)
        return model(image.detach().clone().requires_grad_(True)), entered


def _tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, Iterable) and not isinstance(value, str):
            yield from _tensors(value)
