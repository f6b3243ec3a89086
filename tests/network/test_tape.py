"""Recordings: what autograd would give in one piece, whatever the batch, one block in memory at a time."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from ptq4vit_onnx.model_loading.load import load, resolve
from ptq4vit_onnx.network import tape
from ptq4vit_onnx.network.blocks import find_blocks
from ptq4vit_onnx.network.discovery import watching
from ptq4vit_onnx.network.recording import Recorder
from ptq4vit_onnx.network.tape import LOGITS, draw_labels, draw_signs, loss_of, record


@pytest.fixture(scope="module", params=["vit_digits", "swin_digits"])
def model(request: Any) -> Any:
    return load(resolve(request.param)).module


@pytest.fixture(scope="module")
def images() -> Any:
    return torch.randn(5, 1, 32, 32, generator=torch.Generator().manual_seed(0))


def close(one: torch.Tensor, other: torch.Tensor) -> None:
    # float32 sums in another order: a few units in the last place of the largest element
    torch.testing.assert_close(one, other, rtol=0, atol=2e-5 * float(other.abs().max()) + 1e-12)


def test_recordings_equal_plain_autograd(model: Any, images: Any) -> None:
    recorder = Recorder(10**9, 0, set())
    with watching(model, recorder):
        logits = model(images.clone().requires_grad_(True))
        labels = draw_labels(logits, "sampled", torch.Generator().manual_seed(0))
        F.cross_entropy(logits, labels, reduction="sum").backward()  # type: ignore[no-untyped-call]
    expected = {recording.site.name: recording for recording in recorder.take()}
    found = {recording.site.name: recording for recording in record(model, images, seed=0, labels="sampled", batch=5)}
    assert list(found) == list(expected)
    for name, recording in found.items():
        close(recording.lhs, expected[name].lhs)
        close(recording.grad, expected[name].grad)


@pytest.mark.parametrize("labels", ["sampled", "argmax", "signs"])
def test_gradients_do_not_depend_on_the_batch_size(model: Any, images: Any, labels: Any) -> None:
    whole = {recording.site.name: recording for recording in record(model, images, labels=labels, batch=5)}
    for recording in record(model, images, labels=labels, batch=2):
        close(recording.grad, whole[recording.site.name].grad)


def test_of_a_large_product_matching_rows_of_both_sides_and_of_the_gradient_are_kept(
    model: Any, images: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = {recording.site.name: recording for recording in record(model, images)}
    most = 2 * 1500  # five images are two batches
    monkeypatch.setattr(tape, "MOST_ELEMENTS", most)
    smaller = 0
    for recording in record(model, images):
        full = whole[recording.site.name]
        rows = [int((full.lhs - row).flatten(1).abs().amax(1).argmin()) for row in recording.lhs]
        close(recording.lhs, full.lhs[rows])
        close(recording.grad, full.grad[rows])
        close(recording.rhs, full.rhs if recording.site.rhs_is_weight else full.rhs[rows])
        assert len(rows) <= 2 or max(recording.lhs.numel(), recording.grad.numel()) <= most
        smaller += len(rows) < len(full.lhs)
    assert smaller > 10


def test_sampled_labels_follow_the_models_own_distribution() -> None:
    logits = torch.log(torch.tensor([[0.7, 0.2, 0.1]])).expand(20000, 3)
    labels = draw_labels(logits, "sampled", torch.Generator().manual_seed(1))
    rates = torch.bincount(labels, minlength=3) / len(labels)
    torch.testing.assert_close(rates, torch.tensor([0.7, 0.2, 0.1]), rtol=0, atol=0.015)  # over 4 standard errors
    assert draw_labels(logits, "argmax", torch.Generator()).tolist() == [0] * len(labels)


@pytest.mark.parametrize("labels", ["sampled", "signs"])
def test_the_expected_squared_gradient_is_the_fisher_information(labels: Any) -> None:
    """Of the logits that is diag(p) - p p^T, whole and not just on its diagonal."""
    p = torch.tensor([0.7, 0.2, 0.1])
    logits = torch.log(p).repeat(40000, 1).requires_grad_(True)
    loss_of((logits,), LOGITS, labels, torch.Generator().manual_seed(1)).backward()  # type: ignore[no-untyped-call]
    assert logits.grad is not None
    found = logits.grad.T @ logits.grad / len(logits)
    expected = torch.diag(p) - p[:, None] * p
    torch.testing.assert_close(found, expected, rtol=0, atol=0.01)  # over 4 standard errors


def test_signs_weigh_a_sure_image_at_every_draw() -> None:
    """One drawn label in a hundred would have all of its gradient."""
    logits = torch.log(torch.tensor([[0.99, 0.005, 0.005]])).repeat(50, 1)
    size = LOGITS.direction(logits, draw_signs(logits, torch.Generator().manual_seed(0))).square().sum(-1)
    assert size.min() > 0.5 * size.mean()


def test_blocks_are_the_largest_modules_with_one_attention(model: Any, images: Any) -> None:
    from ptq4vit_onnx.network.discovery import discover

    blocks = find_blocks(model, discover(model, images[:1]), images[:1])
    names = {module: name for name, module in model.named_modules()}
    expected = {
        "VisionTransformer": [f"blocks.{i}" for i in range(6)],
        "SwinTransformer": [f"layers.{i}.blocks.{j}" for i in range(2) for j in range(2)],
    }[type(model).__name__]
    assert [names[block] for block in blocks] == expected


def test_nothing_watches_the_consumer_while_a_recording_is_used(model: Any, images: Any) -> None:
    recordings = record(model, images[:2])
    first = next(recordings)
    _ = first.lhs @ torch.ones(first.lhs.shape[-1], 1)  # a watcher left open would refuse or record this product
    names = [recording.site.name for recording in recordings]
    assert first.site.name not in names and len(set(names)) == len(names)
