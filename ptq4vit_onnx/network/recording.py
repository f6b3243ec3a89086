"""The two sides of every product and the gradient of its output, kept while the model computes."""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from ptq4vit_onnx.network.calls import Call
from ptq4vit_onnx.network.dependencies import own_tensor
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
    record; None for all.
    """

    def __init__(self, most: int, seed: int, foldable: Set[str], sites: Set[str] | None = None) -> None:
        self.sites = sites
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
        pieces.lhs.append(_rows(call.lhs, call, kept))
        pieces.rhs.append(call.rhs.detach() if call.site.rhs_is_weight else _rows(call.rhs, call, kept))
        pieces.grad.append(None)
        pieces.entries += _entries(call)
        out.register_hook(  # type: ignore[no-untyped-call]
            lambda grad: pieces.grad.__setitem__(slot, _rows(call.unfinish(grad), call, kept))
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


def _entries(call: Call) -> int:
    return call.lhs[..., 0].numel() if call.site.rhs_is_weight else len(call.lhs)


def _rows(x: Tensor, call: Call, kept: Tensor | None) -> Tensor:
    """The kept entries of a left side, right side or gradient; of a linear, as rows."""
    flat = x.detach().flatten(0, -2) if call.site.rhs_is_weight else x.detach()
    return flat if kept is None else flat[kept]
