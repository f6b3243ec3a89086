"""Recording: what every product multiplied and how the loss reacts to its output, one site at a time.

One forward pass over all images keeps only what enters each block. Then, from the last block to the first, the block
is run again in small batches with gradients, its sites are handed out, and the memory is free again. So the whole
tape costs two forward passes and one backward pass, and holds one block's recordings at a time, whatever the depth.
Of a product with more than MOST_ELEMENTS on a side, random rows (of a linear) or windows (of attention) are kept:
the first stage of a Swin at 384 pixels has 170 million probabilities, far more than any search looks at.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ptq4vit_onnx.network.blocks import find_blocks
from ptq4vit_onnx.network.channel_folding import foldable
from ptq4vit_onnx.network.products import compute_plainly, discover, watching
from ptq4vit_onnx.network.recording import Recorder, Recording
from ptq4vit_onnx.plan.options import Labels, Options
from ptq4vit_onnx.runtime import process

Array = np.ndarray[Any, Any]
MOST_ELEMENTS = 20_000_000  # of a site's left side or output that are kept: 80 MB; all of a DeiT-B's


@dataclass
class _Segment:
    """The border of one block: what entered it (with the graph that made it) and what left it (a new leaf)."""

    block: nn.Module
    entered: list[Tensor] = field(default_factory=list)
    left: list[Tensor] = field(default_factory=list)
    arguments: list[tuple[tuple[Any, ...], dict[str, Any]]] = field(default_factory=list)


def record(
    model: nn.Module, images: Tensor | Array, seed: int = 0, labels: Labels = Options.labels, batch: int = 4
) -> Iterator[Recording]:
    """Every site of the model on `images` [n, C, H, W], last site first."""
    model.requires_grad_(False)
    images = torch.as_tensor(images)
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
