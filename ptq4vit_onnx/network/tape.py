"""Recording: the two sides of every product and the gradient of its output, one site at a time.

This is activation checkpointing by blocks. One forward pass over all images keeps only the tensors that enter the
blocks. Then each block, the last one first, is run again in small batches with gradients; its sites are handed out and
its memory is freed. The tape costs two forward passes and one backward pass, and holds one block's recordings at a
time. Of a product with more than MOST_ELEMENTS on a side, random rows (of a linear) or windows (of attention) are kept:
the first stage of a Swin at 384 pixels has 170 million probabilities, far more than any search looks at.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ptq4vit_onnx.network.answers import answers
from ptq4vit_onnx.network.blocks import Passage, cut_graph, find_blocks
from ptq4vit_onnx.network.channel_folding import foldable
from ptq4vit_onnx.network.dependencies import cannot_differentiate
from ptq4vit_onnx.network.discovery import as_deployed, compute_plainly, discover_products, watching
from ptq4vit_onnx.network.gradients import GradientRecorder, Listener
from ptq4vit_onnx.network.recording import Recorder, Recording, changed_later
from ptq4vit_onnx.output_kinds.kinds import KINDS, OutputKind
from ptq4vit_onnx.plan.options import Labels, Options
from ptq4vit_onnx.runtime import process
from ptq4vit_onnx.threads.fixed_order import fixed_order

Array = np.ndarray[Any, Any]
LOGITS = KINDS["logits"]
LARGE_PIXELS = 512 * 512  # of an image; a convolutional stage keeps gigabytes of four images of 1024 x 1024
MOST_ELEMENTS = 20_000_000  # of a site's left side or output that are kept: 80 MB; all of a DeiT-B's


def record(
    model: nn.Module,
    images: Tensor | Array,
    seed: int = 0,
    labels: Labels = Options.labels,
    batch: int | None = None,
    kind: OutputKind = LOGITS,
) -> Iterator[Recording]:
    """Every site of the model on `images` [n, C, H, W], last site first.

    batch: how many images are computed at once; None for four, or one of large images. While the caller holds a
    recording, the model is as it was handed in: hooks and flags are set only to compute.
    """
    images = torch.as_tensor(images)
    batch = _batch_of(images) if batch is None else batch
    film = _Film.of(model, images, batch)
    yield from _play(film, Recorder(film.most_of(len(images)), seed, *film.sites), seed, labels, kind)


def observe(
    model: nn.Module,
    images: Tensor | Array,
    listeners: Mapping[str, Listener],
    first: int = 0,
    batch: int | None = None,
    seed: int = 0,
    labels: Labels = Options.labels,
    kind: OutputKind = LOGITS,
) -> Iterator[Recording]:
    """As `record` of the first images (of whole batches), while `listeners`, by site, hear of all images.

    It takes as much memory as `record` does of so few images, and what enters the blocks.
    """
    images = torch.as_tensor(images)
    film = _Film.of(model, images, batch or _batch_of(images))
    heard = math.ceil(first / film.batch)
    recorder = GradientRecorder(film.most_of(max(1, first)), seed, *film.sites, listeners, heard)
    yield from _play(film, recorder, seed, labels, kind)


def _batch_of(images: Tensor) -> int:
    return 4 if images[0, 0].numel() <= LARGE_PIXELS else 1


@dataclass(frozen=True)
class _Film:
    """What a tape is recorded from. sites: what a `Recorder` must know of them: into which a LayerNorm folds, the names
    of all, those whose sides are changed in place."""

    model: nn.Module
    images: Tensor
    batch: int
    blocks: list[nn.Module]
    sites: tuple[Set[str], Set[str], Set[str]]

    @classmethod
    def of(cls, model: nn.Module, images: Tensor, batch: int) -> _Film:
        image = images[:1]
        products = discover_products(model, image)
        names = {site.name for site in products.sites}
        sites = foldable(model, products.sites, image), names, changed_later(model, image)
        return cls(model, images, batch, find_blocks(model, products.found, image), sites)

    def most_of(self, images: int) -> int:
        """How many elements of a side are kept at each call, if so many images are recorded."""
        return MOST_ELEMENTS // math.ceil(images / self.batch)


def _play(film: _Film, recorder: Recorder, seed: int, labels: Labels, kind: OutputKind) -> Iterator[Recording]:
    """What the recorder has after each block, the last block first."""
    model, blocks = film.model, film.blocks
    with _recording(model, recorder), cut_graph(blocks) as passages:
        _differentiate(model, film.images, seed, labels, film.batch, kind)
    yield from recorder.take()
    for block in reversed(blocks):
        process.give_back_freed_memory()
        calls = passages.pop(block)
        with _recording(model, recorder):
            upstream = _run_again(block, calls)
        yield from recorder.take()
        _backward_into(calls, upstream)
        yield from recorder.take()


@contextmanager
def _recording(model: nn.Module, recorder: Recorder) -> Iterator[None]:
    """While it is open, the model's products are recorded, with gradients of activations and not of parameters, and
    with the same bits on any number of threads."""
    with torch.enable_grad(), as_deployed(model), watching(model, recorder, compute_plainly), fixed_order():
        yield


def _differentiate(model: nn.Module, images: Tensor, seed: int, labels: Labels, batch: int, kind: OutputKind) -> None:
    """One forward pass over all images, and the backward pass as far as the graph reaches: to the last cut."""
    losses = []
    generator = torch.Generator().manual_seed(seed)
    for start in range(0, len(images), batch):
        outputs = answers(model, images[start : start + batch].clone().requires_grad_(True))
        losses.append(loss_of(outputs, kind, labels, generator))
    _backward([torch.stack(losses).sum()], None)


def loss_of(outputs: tuple[Tensor, ...], kind: OutputKind, labels: Labels, generator: torch.Generator) -> Tensor:
    """The scalar that is differentiated, summed over the images and over all outputs [n, ...].

    The paper's metric stands on the Fisher diagonal. Cross-entropy against the soft prediction itself has a gradient of
    exactly zero. The squared gradients of these two have the Fisher diagonal as their expectation:
    sampled: cross-entropy with one label per image, drawn from the model's own softmax.
    signs: a Rademacher sketch, which combines all labels of an image with random signs. For a confident prediction,
    sampled gradients are nearly always tiny and rarely huge; the sketch has the same expectation and less variance.
    Embeddings and features have no labels: their sketch is always of the curvature that their kind has.
    """
    if labels == "signs" or kind.name != "logits":
        directions = [kind.direction(output, draw_signs(output, generator)) for output in outputs]
        return torch.stack([(output * v).sum() for output, v in zip(outputs, directions, strict=True)]).sum()
    (logits,) = outputs
    return F.cross_entropy(logits, draw_labels(logits, labels, generator), reduction="sum")


def draw_signs(like: Tensor, generator: torch.Generator) -> Tensor:
    """A Rademacher vector: independent signs, 1 or -1, in the tensor's shape."""
    return 2 * torch.randint(0, 2, like.shape, generator=generator) - 1


def draw_labels(logits: Tensor, labels: Labels, generator: torch.Generator) -> Tensor:
    """Labels for the loss, one per image: drawn from the model's own softmax, or its prediction."""
    if labels == "argmax":
        return logits.detach().argmax(-1)
    probabilities = logits.detach().double().softmax(-1)
    draws = torch.rand(len(logits), 1, generator=generator, dtype=torch.float64)
    return (probabilities.cumsum(-1) < draws).sum(-1).clamp(max=logits.shape[-1] - 1)


def _run_again(block: nn.Module, calls: list[Passage]) -> list[Tensor]:
    """Run the block again with gradients; returns d loss / d entered for each batch."""
    upstream = []
    for call in calls:
        x = call.entered.detach().requires_grad_(True)
        out = block(x.clone(), *call.args, **call.kwargs)  # a copy: a leaf cannot be changed in place
        assert call.left.grad is not None, "a block's output does not reach the loss"
        _backward([out], [call.left.grad])
        assert x.grad is not None
        upstream.append(x.grad)
        call.left.grad = None
    return upstream


def _backward_into(calls: list[Passage], upstream: list[Tensor]) -> None:
    """Carry the gradient on through the operations between this block and the one before it."""
    pairs = [(call.entered, grad) for call, grad in zip(calls, upstream, strict=True) if call.entered.requires_grad]
    if pairs:
        with fixed_order():
            _backward([x for x, _ in pairs], [grad for _, grad in pairs])
    calls.clear()


def _backward(outputs: list[Tensor], grads: list[Tensor] | None) -> None:
    try:
        torch.autograd.backward(outputs, grads)
    except RuntimeError as error:
        raise cannot_differentiate(error) or error from error
