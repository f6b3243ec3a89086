"""Batch norms behind convolutions are folded into a copy; others, and the user's module, stay as they are."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ptq4vit_onnx.model_loading.batch_norms import with_batch_norms_folded

IMAGE = np.random.default_rng(0).standard_normal((2, 3, 8, 8)).astype(np.float32)


class Norms(nn.Module):
    """read: what else reads the convolution's output. twice: the norm is used again behind the activation."""

    def __init__(self, read: bool = False, twice: bool = False, bias: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm = nn.Conv2d(3, 4, 3, bias=bias), nn.BatchNorm2d(4)
        self.alone = nn.BatchNorm2d(4)
        self.read, self.twice = read, twice
        for norm in (self.norm, self.alone):
            for values in (norm.running_mean, norm.running_var, norm.weight, norm.bias):
                assert values is not None
                values.data.uniform_(0.5, 2.0)

    def forward(self, x: Tensor) -> Tensor:
        out = self.first(x)
        y = self.norm(out).relu()
        y = self.norm(y) if self.twice else y
        y = y + out if self.read else y
        return self.alone(y).mean((2, 3))  # type: ignore[no-any-return]


def _folded(module: nn.Module, load_model: Callable[[str], Any]) -> Any:
    return with_batch_norms_folded(replace(load_model("vit_digits"), module=module.eval()), IMAGE).module


@pytest.mark.parametrize("bias", [False, True])
def test_a_norm_behind_a_convolution_becomes_exactly_the_identity(bias: bool, load_model: Callable[[str], Any]) -> None:
    module = Norms(bias=bias)
    before, images = {name: value.clone() for name, value in module.state_dict().items()}, torch.from_numpy(IMAGE)
    folded = _folded(module, load_model)
    x = folded.first(images)
    assert torch.equal(folded.norm(x), x)
    torch.testing.assert_close(folded(images), module.eval()(images), rtol=1e-5, atol=1e-5)
    assert not torch.equal(folded.first.weight, module.first.weight)
    assert torch.equal(folded.alone.weight, module.alone.weight), "it reads no convolution"
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


@pytest.mark.parametrize("other", [{"read": True}, {"twice": True}])
def test_what_others_read_is_not_folded(other: dict[str, bool], load_model: Callable[[str], Any]) -> None:
    module = Norms(**other)
    folded = _folded(module, load_model)
    assert torch.equal(folded.first.weight, module.first.weight)
    assert torch.equal(folded(torch.from_numpy(IMAGE)), module(torch.from_numpy(IMAGE)))


def test_a_model_without_batch_norms_is_itself(load_model: Callable[[str], Any]) -> None:
    model = load_model("vit_digits")
    assert with_batch_norms_folded(model, IMAGE) is model


def test_what_cannot_be_copied_is_shared_with_the_copy(load_model: Callable[[str], Any]) -> None:
    module = Norms()
    module.lock, module.first.computed = threading.Lock(), module.first.weight * 2  # type: ignore[assignment]
    folded = _folded(module, load_model)
    assert folded.lock is module.lock and folded.first is not module.first
    assert not torch.equal(folded.first.weight, module.first.weight)
