"""Where a model can be cut for recording: modules that can be run again by themselves, one behind the other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ptq4vit_onnx.network.answers import answers
from ptq4vit_onnx.network.dependencies import behind, graph_alone
from ptq4vit_onnx.network.discovery import as_deployed
from ptq4vit_onnx.plan.sites import FloatProduct, Site

_CONTAINERS = (nn.ModuleList, nn.ModuleDict)  # they hold modules, and compute nothing
MOST_CONVOLUTIONS = 4  # in a block without attention: an inverted bottleneck and its shortcut


@dataclass(frozen=True)
class Passage:
    """One call of a block at which the autograd graph was cut.

    entered: the block's first argument, with the graph that made it. left: a leaf of the graph behind the block, which
    gets the gradient of the block's output; it has no values. args, kwargs: the block's other arguments.
    """

    entered: Tensor
    left: Tensor
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


@contextmanager
def cut_graph(blocks: Iterable[nn.Module]) -> Iterator[dict[nn.Module, list[Passage]]]:
    """While it is open, the autograd graph is cut at every call of `blocks`; yields the calls as they happen.

    Between its borders a block computes without a graph, if its parameters have no gradients. A call into which more
    than one tensor with a gradient goes, or out of which something other than a tensor comes, is not listed.
    """
    passages: dict[nn.Module, list[Passage]] = {}
    with ExitStack() as stack:
        for block in blocks:
            border = _Border(passages)
            # The block's own hooks run again when the block does: it is handed what entered before the first of them.
            enter = block.register_forward_pre_hook(border.enter, prepend=True, with_kwargs=True)
            stack.callback(enter.remove)
            leave = block.register_forward_hook(border.leave)
            stack.callback(leave.remove)
        yield passages


class _Border:
    """The two hooks of a block: `enter` takes the graph off the first argument, `leave` starts another one."""

    def __init__(self, passages: dict[nn.Module, list[Passage]]) -> None:
        self.passages = passages
        self.arguments: tuple[Tensor, tuple[Any, ...], Mapping[str, Any]] | None = None

    def enter(
        self, _block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        self.arguments = None
        others = [item for item in _tensors((args[1:], kwargs.values())) if item.requires_grad]
        if not args or not isinstance(args[0], Tensor) or others:
            return None
        self.arguments = (args[0], args[1:], kwargs)
        return (args[0].detach().clone(), *args[1:]), kwargs  # a copy: the block may change it in place

    def leave(self, block: nn.Module, _args: tuple[Any, ...], out: Any) -> Tensor | None:
        if self.arguments is None or not isinstance(out, Tensor):
            return None
        entered, args, kwargs = self.arguments
        left = _without_values(out).requires_grad_(True)
        self.passages.setdefault(block, []).append(Passage(entered, left, args, kwargs))
        handed_on: Tensor = _HandOn.apply(left, out)  # type: ignore[no-untyped-call]
        return handed_on


class _HandOn(torch.autograd.Function):
    """A block's output for what comes behind it, which may change it in place; its gradient goes to a leaf."""

    @staticmethod
    def forward(_context: Any, _leaf: Tensor, out: Tensor) -> Tensor:
        return out.detach().clone()

    @staticmethod
    def backward(_context: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


def _without_values(like: Tensor) -> Tensor:
    """A tensor of the same shape and strides that holds no memory: one is kept of every block and batch."""
    empty = torch.empty_strided(like.shape, like.stride(), dtype=like.dtype)
    empty.untyped_storage().resize_(0)
    return empty


def find_blocks(model: nn.Module, products: Sequence[Site | FloatProduct], image: Tensor) -> list[nn.Module]:
    """The largest modules that hold exactly one attention each: `blocks.0`, `layers.1.blocks.0`, ...; between them
    those of a few convolutions: `stem`, `stages.0.blocks.1`, ...

    Where a module with an attention cannot be cut out, the one around it is taken, whatever it holds; where that is the
    model itself, none. One of convolutions is left out then. products: all of the model, in the order of its forward
    pass. image: [1, C, H, W].
    """
    paths = _with_one_attention(model, [item for item in products if isinstance(item, Site)])
    while entangled := _entangled(model, paths, image):
        paths = _outermost([_around(model, path) if path in entangled else path for path in paths])
    paths = _in_order([*paths, *_of_convolutions(model, products, paths, image)], products)
    return [model.get_submodule(path) for path in paths]


def _of_convolutions(
    model: nn.Module, products: Sequence[Site | FloatProduct], taken: Sequence[str], image: Tensor
) -> list[str]:
    """Modules outside `taken` that hold up to MOST_CONVOLUTIONS, and can be cut out.

    None in a model whose only convolution outside is its patch embedding: little is kept in front of it.
    """
    outside = [item.scope for item in products if not any(_inside(item.scope, path) for path in taken)]
    scopes = [scope for scope in outside if scope and isinstance(model.get_submodule(scope), nn.Conv2d)]
    found = list(dict.fromkeys(_around_few(model, scope, [item.scope for item in products]) for scope in scopes))
    found = [path for path in found if not any(_inside(other, path) for other in taken)]
    if len(scopes) < 2:
        return []
    while entangled := _entangled(model, [*taken, *found], image):
        if not entangled & set(found):
            return []
        found = [path for path in found if path not in entangled]
    return found


def _around_few(model: nn.Module, path: str, scopes: Sequence[str]) -> str:
    """The largest module around a path whose products are few, and that is not the model itself."""
    while "." in path:
        parent = path.rpartition(".")[0]
        many = sum(_inside(scope, parent) for scope in scopes) > MOST_CONVOLUTIONS
        if many or isinstance(model.get_submodule(parent), _CONTAINERS):
            break
        path = parent
    return path


def _inside(scope: str, path: str) -> bool:
    return scope == path or scope.startswith(f"{path}.")


def _in_order(paths: Sequence[str], products: Sequence[Site | FloatProduct]) -> list[str]:
    """By the first product of each."""
    scopes = [item.scope for item in products]
    return sorted(paths, key=lambda path: next(place for place, scope in enumerate(scopes) if _inside(scope, path)))


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

    `cut_graph` refuses the module, or its input and something else are computed from the same operations: a residual
    around the module, a neighbour at its side. The backward pass would run through those operations twice, each time
    with a part of the gradient.
    """
    blocks = {model.get_submodule(path): path for path in paths}
    with graph_alone(), as_deployed(model), cut_graph(blocks) as passages:
        outputs = answers(model, image.detach().clone().requires_grad_(True))
    found = set(paths) - {blocks[block] for block in passages}
    claimed = behind([output.grad_fn for output in outputs])
    for block, calls in reversed(passages.items()):
        own = behind([call.entered.grad_fn for call in calls])
        if own & claimed:
            found.add(blocks[block])
        claimed |= own
    return found


def _tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, Iterable) and not isinstance(value, str):
            yield from _tensors(value)
