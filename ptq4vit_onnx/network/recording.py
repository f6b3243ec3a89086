"""The two sides of every product and the gradient of its output, kept while the model computes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ptq4vit_onnx.network.answers import answers
from ptq4vit_onnx.network.calls import Call
from ptq4vit_onnx.network.dependencies import own_tensor
from ptq4vit_onnx.network.discovery import as_deployed, compute_plainly, watching
from ptq4vit_onnx.plan.sites import Site


@dataclass(frozen=True)
class Recording:
    """One site on all images. lhs, rhs: the two sides, float32; rhs of a linear is its weight [inputs, outputs].

    grad: d loss / d (lhs @ rhs), in the output's shape, of the loss summed over images: independent of batching.
    linear and conv: lhs [rows, inputs], grad [rows, outputs]. matmul: lhs [.., heads, rows, inner].
    share: how much of the product was kept.
    """

    site: Site
    lhs: Tensor
    rhs: Tensor
    grad: Tensor
    share: float = 1.0


@dataclass
class _Pieces:
    site: Site
    lhs: list[Tensor] = field(default_factory=list)
    rhs: list[Tensor] = field(default_factory=list)
    grad: list[Tensor | None] = field(default_factory=list)
    entries: int = 0  # rows or windows seen, kept or not

    @property
    def complete(self) -> bool:
        return all(grad is not None for grad in self.grad)

    def join(self) -> Recording:
        grad = torch.cat([piece for piece in self.grad if piece is not None])
        rhs = self.rhs[0].contiguous() if self.site.rhs_is_weight else torch.cat(self.rhs)
        return Recording(self.site, torch.cat(self.lhs), rhs, grad, len(grad) / self.entries)


class Recorder:
    """A handler that computes each product as the model does and keeps its two sides and its output's gradient.

    most: how many elements of a side to keep at each call. foldable: sites into which a LayerNorm's channels can be
    folded; of other sites the LayerNorm is not recorded. sites: the names of those to
    record; None for all. changed: those of which the model changes a side in place afterwards.
    """

    def __init__(
        self, most: int, seed: int, foldable: Set[str], sites: Set[str] | None = None, changed: Set[str] = frozenset()
    ) -> None:
        self.sites, self.changed = sites, changed
        self.most, self.generator, self.foldable = most, torch.Generator().manual_seed(seed), foldable
        self.pieces: dict[str, _Pieces] = {}

    def __call__(self, call: Call) -> Tensor:
        out = call.plain()
        if not out.requires_grad or (self.sites is not None and call.site.name not in self.sites):
            return out
        out = own_tensor(out)
        site = call.site if call.site.name in self.foldable else replace(call.site, norm="")
        pieces = self.pieces.setdefault(site.name, _Pieces(site))
        slot = len(pieces.lhs)  # the autograd engine delivers gradients in its own order, not in that of the calls
        kept = self._kept(call)
        call = _with_copies(call) if site.name in self.changed else call
        pieces.lhs.append(rows_of(call.lhs, call, kept))
        pieces.rhs.append(call.rhs.detach() if call.site.rhs_is_weight else rows_of(call.rhs, call, kept))
        pieces.grad.append(None)
        pieces.entries += _entries(call)
        out.register_hook(  # type: ignore[no-untyped-call]
            lambda grad: pieces.grad.__setitem__(slot, rows_of(call.unfinish(grad), call, kept))
        )
        return out

    def _kept(self, call: Call) -> Tensor | None:
        """Which rows of a linear, or which entries of a matmul's first axis, are kept; None for all."""
        entries = _entries(call)
        output = call.lhs.numel() // call.lhs.shape[-1] * call.rhs.shape[-1]
        wanted = max(1, self.most * entries // max(call.lhs.numel(), output))
        if wanted >= entries:
            return None
        return torch.randperm(entries, generator=self.generator)[:wanted].sort().values

    def take(self) -> Iterator[Recording]:
        """Hand out the sites whose gradients are all there, last site first, and forget them."""
        for name in [name for name, pieces in reversed(self.pieces.items()) if pieces.complete]:
            yield self.pieces.pop(name).join()


def _with_copies(call: Call) -> Call:
    return replace(call, lhs=call.lhs.detach().clone(), rhs=call.rhs.detach().clone())


def _entries(call: Call) -> int:
    return call.lhs[..., 0].numel() if call.site.rhs_is_weight else len(call.lhs)


def rows_of(x: Tensor, call: Call, kept: Tensor | None) -> Tensor:
    """The kept entries of a left side, right side or gradient; of a linear, as rows."""
    flat = x.detach().flatten(0, -2) if call.site.rhs_is_weight else x.detach()
    return flat if kept is None else flat[kept]


def changed_later(model: nn.Module, image: Tensor) -> Set[str]:
    """The sites whose sides must be copied to be kept. A tensor in memory that was freed counts as well: a copy too
    many costs little. image: [1, C, H, W]."""
    changes = _Changes()
    with torch.no_grad(), as_deployed(model), changes, watching(model, changes.read, compute_plainly):
        answers(model, image.clone())
    return changes.found


class _Changes(TorchFunctionMode):
    """Sees which memory functions write to."""

    def __init__(self) -> None:
        super().__init__()
        self.readers: dict[int, set[str]] = {}  # sites by the memory that they read
        self.found: set[str] = set()

    def read(self, call: Call) -> Tensor:
        for side in (call.lhs, call.rhs):
            self.readers.setdefault(_memory(side), set()).add(call.site.name)
        return call.plain()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = list(_given((*args, *(kwargs or {}).values())))
        before = [item._version for item in given]
        out = func(*args, **kwargs or {})
        for item, version in zip(given, before, strict=True):
            if item._version != version:
                self.found |= self.readers.get(_memory(item), set())
        return out


def _memory(x: Tensor) -> int:
    return x.untyped_storage().data_ptr()


def _given(values: Iterable[Any]) -> list[Tensor]:
    return [item for item in values if isinstance(item, Tensor)]
