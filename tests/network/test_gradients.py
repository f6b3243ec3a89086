"""Observed: a few images are recorded as ever, and every image is heard once, with its own gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ptq4vit_onnx.model_loading.load import load, resolve
from ptq4vit_onnx.network.recording import Recording
from ptq4vit_onnx.network.tape import observe, record


class Heard:
    """A listener that keeps what it hears, in the order of the calls."""

    def __init__(self) -> None:
        self.rows: list[Tensor] = []
        self.grads: dict[int, Tensor] = {}

    def __call__(self, rows: Tensor) -> Callable[[Tensor], None]:
        number = len(self.rows)
        self.rows.append(rows.clone())

        def answer(grad: Tensor) -> None:
            assert number not in self.grads, "heard twice"
            self.grads[number] = grad.clone()

        return answer

    @property
    def grad(self) -> Tensor:
        assert len(self.grads) == len(self.rows)
        return torch.cat([self.grads[number] for number in range(len(self.rows))])


@pytest.fixture(scope="module", params=["vit_digits", "swin_digits"])
def model(request: Any) -> Any:
    return load(resolve(request.param)).module


@pytest.fixture(scope="module")
def images() -> Any:
    return torch.randn(7, 1, 32, 32, generator=torch.Generator().manual_seed(0))


def weights_of(recordings: dict[str, Recording]) -> list[str]:
    return [name for name, item in recordings.items() if item.site.rhs_is_weight]


@pytest.mark.parametrize(("first", "recorded"), [(4, 4), (3, 4)])
def test_the_recordings_are_those_of_the_first_images_bit_for_bit(
    model: Any, images: Any, first: int, recorded: int
) -> None:
    """Of whole batches."""
    expected = list(record(model, images[:recorded], batch=2))
    heard = {item.site.name: Heard() for item in expected if item.site.rhs_is_weight}
    found = list(observe(model, images, heard, first=first, batch=2))
    assert [item.site for item in found] == [item.site for item in expected]
    for one, other in zip(found, expected, strict=True):
        for side in ("lhs", "rhs", "grad"):
            assert torch.equal(getattr(one, side), getattr(other, side)), (one.site.name, side)


def test_of_a_large_product_the_same_rows_are_kept(model: Any, images: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ptq4vit_onnx.network.tape.MOST_ELEMENTS", 2 * 1500)
    expected = list(record(model, images[:4], batch=2))
    found = list(observe(model, images, {}, first=4, batch=2))
    assert all(torch.equal(one.lhs, other.lhs) for one, other in zip(found, expected, strict=True))
    assert min(item.share for item in found) < 0.5


def test_every_image_is_heard_once_with_the_gradients_of_a_recording(model: Any, images: Any) -> None:
    whole = {item.site.name: item for item in record(model, images, batch=2)}
    heard = {name: Heard() for name in weights_of(whole)}
    taken: list[str] = []
    for item in observe(model, images, heard, first=1, batch=2):
        taken.append(item.site.name)
        if item.site.name in heard:  # all calls were heard when the recording is handed out
            assert len(heard[item.site.name].grad) == len(whole[item.site.name].grad)
    assert taken == list(whole)
    for name, found in heard.items():
        assert torch.equal(torch.cat(found.rows), whole[name].lhs), name
        assert torch.equal(found.grad, whole[name].grad), name


class Overwriting(nn.Module):
    """Changes in place what a linear has read, and what another will have written."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm, self.one, self.two = nn.LayerNorm(16), nn.Linear(16, 16), nn.Linear(16, 4)
        self.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x.reshape(len(x), 4, 16))
        y = self.one(x)
        x.mul_(3)
        return self.two(y.add_(x)).mean(1)  # type: ignore[no-any-return]


@pytest.mark.parametrize("first", [1, 5])
def test_a_model_that_changes_tensors_in_place_is_heard_as_it_is_recorded(first: int) -> None:
    module, images = Overwriting().eval(), torch.randn(5, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    whole = {item.site.name: item for item in record(module, images, batch=2)}
    assert sorted(whole) == ["one", "two"]
    heard = {name: Heard() for name in whole}
    for item in observe(module, images, heard, first=first, batch=2):
        assert torch.equal(item.lhs, whole[item.site.name].lhs[: len(item.lhs)])
    with torch.no_grad():
        expected = module.norm(images.reshape(5, 4, 16)).flatten(0, 1)
    assert torch.allclose(torch.cat(heard["one"].rows), expected, rtol=0, atol=1e-6)
    for name, found in heard.items():
        assert torch.equal(found.grad, whole[name].grad)
