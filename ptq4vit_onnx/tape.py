"""Recording: what every product multiplied and how the loss reacts to its output, one site at a time.

One forward pass over all images keeps only what enters each block. Then, from the last block to the first, the block
is run again in small batches with gradients, its sites are handed out, and the memory is free again. So the whole
tape costs two forward passes and one backward pass, and holds one block's recordings at a time, whatever the depth.
Of a product with more than MOST_ELEMENTS on a side, random rows (of a linear) or windows (of attention) are kept:
the first stage of a Swin at 384 pixels has 170 million probabilities, far more than any search looks at.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Set
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ptq4vit_onnx import process
from ptq4vit_onnx.autograd_paths import own_tensor
from ptq4vit_onnx.blocks import find_blocks
from ptq4vit_onnx.folding import foldable
from ptq4vit_onnx.options import Labels, Options
from ptq4vit_onnx.products import Call, compute_plainly, discover, watching
from ptq4vit_onnx.sites import Site

MOST_ELEMENTS = 20_000_000  # of a site's left side or output that are kept: 80 MB; all of a DeiT-B's


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
    """A handler that lets the model compute and keeps each product's sides and, when it comes, its gradient.

    most: how many elements of a side to keep at each call. foldable: sites that a LayerNorm's channels can be folded
    into; the others' are forgotten.
    """

    def __init__(self, most: int, seed: int, foldable: Set[str]) -> None:
        self.most, self.generator, self.foldable = most, torch.Generator().manual_seed(seed), foldable
        self.pieces: dict[str, _Pieces] = {}

    def __call__(self, call: Call) -> Tensor:
        out = call.plain()
        if not out.requires_grad:
            return out
        out = own_tensor(out)
        site = call.site if call.site.name in self.foldable else replace(call.site, norm="")
        pieces = self.pieces.setdefault(site.name, _Pieces(site))
        slot = len(pieces.lhs)  # gradients come back in the engine's order, not in that of the calls
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
        """Hand out and forget what is complete, last site first."""
        for name in [name for name, pieces in reversed(self.pieces.items()) if pieces.complete]:
            yield self.pieces.pop(name).join()


def _entries(call: Call) -> int:
    return call.lhs[..., 0].numel() if call.site.rhs_is_weight else len(call.lhs)


def _rows(x: Tensor, call: Call, kept: Tensor | None) -> Tensor:
    """A left side, right side or gradient, a linear's as rows; only the entries kept."""
    flat = x.detach().flatten(0, -2) if call.site.rhs_is_weight else x.detach()
    return flat if kept is None else flat[kept]


@dataclass
class _Segment:
    """The border of one block: what entered it (with the graph that made it) and what left it (a new leaf)."""

    block: nn.Module
    entered: list[Tensor] = field(default_factory=list)
    left: list[Tensor] = field(default_factory=list)
    arguments: list[tuple[tuple[Any, ...], dict[str, Any]]] = field(default_factory=list)


def record(
    model: nn.Module, images: Tensor, seed: int = 0, labels: Labels = Options.labels, batch: int = 4
) -> Iterator[Recording]:
    """Every site of the model on `images` [n, C, H, W], last site first."""
    model.requires_grad_(False)
    sites = discover(model, images[:1])
    segments = [_Segment(block) for block in find_blocks(model, sites, images[:1])]
    most = MOST_ELEMENTS // math.ceil(len(images) / batch)
    recorder = Recorder(most, seed, foldable(model, sites, images[:1]))
    with torch.enable_grad(), watching(model, recorder, compute_plainly):
        _forward(model, images, segments, seed, labels, batch)
    yield from recorder.take()
    for segment in reversed(segments):
        process.give_back_freed_memory()
        with torch.enable_grad(), watching(model, recorder, compute_plainly):
            upstream = _replay(segment)
        yield from recorder.take()
        _backward_into(segment, upstream)
        yield from recorder.take()


def _forward(model: nn.Module, images: Tensor, segments: list[_Segment], seed: int, labels: Labels, batch: int) -> None:
    """One pass over all images, cut at the blocks; leaves the loss's gradient in what left the last block."""
    with ExitStack() as stack:
        for segment in segments:
            original = segment.block.forward
            stack.callback(setattr, segment.block, "forward", original)
            segment.block.forward = _cutting(segment, original)
        losses = []
        generator = torch.Generator().manual_seed(seed)
        for start in range(0, len(images), batch):
            logits = model(images[start : start + batch].clone().requires_grad_(True))
            losses.append(loss_of(logits, labels, generator))
    torch.autograd.backward(torch.stack(losses).sum())


def loss_of(logits: Tensor, labels: Labels, generator: torch.Generator) -> Tensor:
    """What is differentiated, summed over the images of logits [n, classes].

    The paper's metric stands on the Fisher diagonal. Cross-entropy against the soft prediction itself has a gradient of
    exactly zero; the squared gradients of these two are the Fisher diagonal in expectation:
    sampled: cross-entropy with one label per image, drawn from the model's own softmax.
    signs: all labels of an image at once, with random signs. A sure prediction has hardly any gradient for the label
    that is nearly always drawn, and a huge one for the others; here every image weighs what it should at every draw.
    """
    if labels == "signs":
        return (logits * draw_direction(logits, generator)).sum()
    return F.cross_entropy(logits, draw_labels(logits, labels, generator), reduction="sum")


def draw_direction(logits: Tensor, generator: torch.Generator) -> Tensor:
    """A random v [n, classes] with E v v^T = diag(p) - p p^T, the Hessian of cross-entropy with prediction p.

    With random signs e: v = sqrt(p) * e - p <sqrt(p), e>.
    """
    p = logits.detach().double().softmax(-1)
    signed = p.sqrt() * (2 * torch.randint(0, 2, p.shape, generator=generator) - 1)
    return (signed - p * signed.sum(-1, keepdim=True)).to(logits.dtype)


def draw_labels(logits: Tensor, labels: Labels, generator: torch.Generator) -> Tensor:
    """Labels for the loss, one per image: drawn from the model's own softmax, or its prediction."""
    if labels == "argmax":
        return logits.detach().argmax(-1)
    probabilities = logits.detach().double().softmax(-1)
    draws = torch.rand(len(logits), 1, generator=generator, dtype=torch.float64)
    return (probabilities.cumsum(-1) < draws).sum(-1).clamp(max=logits.shape[-1] - 1)


def _cutting(segment: _Segment, forward: Any) -> Any:
    def run(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        segment.entered.append(x)
        segment.arguments.append((args, kwargs))
        with torch.no_grad():
            out: Tensor = forward(x, *args, **kwargs)
        segment.left.append(out.detach().requires_grad_(True))
        return segment.left[-1]

    return run


def _replay(segment: _Segment) -> list[Tensor]:
    """Run the block again with gradients; returns d loss / d entered for each batch."""
    upstream = []
    for entered, left, (args, kwargs) in zip(segment.entered, segment.left, segment.arguments, strict=True):
        x = entered.detach().requires_grad_(True)
        out = segment.block(x, *args, **kwargs)
        assert left.grad is not None, "a block's output does not reach the loss"
        torch.autograd.backward(out, left.grad)
        assert x.grad is not None
        upstream.append(x.grad)
        left.grad = None
    return upstream


def _backward_into(segment: _Segment, upstream: list[Tensor]) -> None:
    """Carry the gradient through whatever lies between this block and the one before it; forget this block."""
    pairs = [(x, grad) for x, grad in zip(segment.entered, upstream, strict=True) if x.requires_grad]
    if pairs:
        torch.autograd.backward([x for x, _ in pairs], [grad for _, grad in pairs])
    segment.entered.clear()
    segment.left.clear()
