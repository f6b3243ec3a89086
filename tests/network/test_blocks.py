"""Blocks: cut out where nothing else reads what enters them, else the module around them is taken."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ptq4vit_onnx.errors import UserError
from ptq4vit_onnx.network.blocks import find_blocks
from ptq4vit_onnx.network.discovery import compute_plainly, discover, discover_products, watching
from ptq4vit_onnx.network.recording import Recorder
from ptq4vit_onnx.network.tape import draw_labels, record


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: Tensor, other: Tensor | None = None) -> Tensor:
        x = self.fc(x).add_(1)  # what it made is changed in place, as by timm's positions
        out: Tensor = (x @ x.transpose(-2, -1)).softmax(-1) @ (x if other is None else other)
        return out


class Pair(nn.Module):
    """Two attentions in a list, and a norm whose gradient needs what it kept, so that it can be asked once."""

    def __init__(self, compute: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.norm, self.attentions, self.compute = nn.LayerNorm(4), nn.ModuleList([Attention(), Attention()]), compute

    def forward(self, x: Tensor) -> Tensor:
        return self.compute(self.attentions, self.norm(x))


class Model(nn.Module):
    def __init__(self, compute: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem, self.blocks = nn.Linear(4, 4), nn.Sequential(Pair(compute), Pair(compute))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.blocks(self.stem(x)).flatten(1)
        return out


SINGLY = [f"blocks.{block}.attentions.{place}" for block in (0, 1) for place in (0, 1)]
IN_PAIRS = ["blocks.0", "blocks.1"]
FORMS: list[Any] = [
    pytest.param(lambda both, x: both[1](both[0](x)), SINGLY, id="a chain"),
    pytest.param(lambda both, x: both[0](x) + both[1](x), IN_PAIRS, id="neighbours"),
    pytest.param(lambda both, x: both[1](x + both[0](x)), IN_PAIRS, id="a residual around the first"),
    pytest.param(lambda both, x: both[1](both[0](x), x), IN_PAIRS, id="a second tensor enters"),
    pytest.param(lambda both, x: both[1](both[0](x=x)), IN_PAIRS, id="it enters by its name"),
    pytest.param(lambda both, x: both[1](both[0](x).mul_(2)), SINGLY, id="what leaves is changed in place"),
]


def image(count: int = 1) -> Tensor:
    return torch.randn(count, 2, 3, 4, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(("compute", "expected"), FORMS)
def test_modules_that_cannot_be_cut_out_grow_until_they_can(compute: Any, expected: list[str]) -> None:
    model = Model(compute).requires_grad_(False)
    names = {module: name for name, module in model.named_modules()}
    assert [names[block] for block in find_blocks(model, discover(model, image()), image())] == expected


@pytest.mark.parametrize("hooked", [False, True], ids=["", "hooks"])
@pytest.mark.parametrize(("compute", "_expected"), FORMS)
def test_recordings_are_those_of_plain_autograd_whatever_surrounds_a_block(
    compute: Any, _expected: Any, hooked: bool
) -> None:
    model = Model(compute).requires_grad_(False)
    if hooked:  # the user's own: each runs once in a replay, too
        for module in model.modules():
            if isinstance(module, (Pair, Attention)):
                module.register_forward_pre_hook(lambda _module, args: (args[0] * 1.5, *args[1:]) if args else None)
                module.register_forward_hook(lambda _module, _args, out: out * 0.5)
    recorder = Recorder(10**9, 0, set())
    with watching(model, recorder):
        logits = model(image(3).requires_grad_(True))
        labels = draw_labels(logits, "sampled", torch.Generator().manual_seed(0))
        nn.functional.cross_entropy(logits, labels, reduction="sum").backward()  # type: ignore[no-untyped-call]
    expected = {recording.site.name: recording for recording in recorder.take()}
    found = {recording.site.name: recording for recording in record(model, image(3), labels="sampled")}
    assert len(expected) == 13 and found.keys() == expected.keys()
    for name, recording in found.items():
        torch.testing.assert_close(recording.grad, expected[name].grad, rtol=1e-4, atol=1e-6)


def test_a_model_that_is_one_entangled_block_is_not_cut() -> None:
    model = Pair(lambda both, x: (both[0](x) + both[1](x)).flatten(1)).requires_grad_(False)
    assert find_blocks(model, discover(model, image()), image()) == []
    assert len(list(record(model, image(3)))) == 6


class Bottleneck(nn.Module):
    """Three convolutions around which the block itself carries a shortcut; the middle one stays in float."""

    def __init__(self) -> None:
        super().__init__()
        self.widen, self.deep = nn.Conv2d(24, 32, 1), nn.Conv2d(32, 32, 3, padding=1, groups=32)
        self.narrow = nn.Conv2d(32, 24, 1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.narrow(self.deep(self.widen(x)).relu())
        return out


class Hybrid(nn.Module):
    """around: a shortcut around the second bottleneck, which then cannot be cut out."""

    def __init__(self, around: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.around = around
        self.stem = nn.Sequential(nn.Conv2d(2, 24, 3, padding=1), nn.ReLU(), nn.Conv2d(24, 24, 1))
        self.stages = nn.ModuleList([Bottleneck(), Bottleneck()])
        self.attention = Attention()

    def forward(self, x: Tensor) -> Tensor:
        x = self.stages[0](self.stem(x)).sin()
        x = x + self.stages[1](x) if self.around else self.stages[1](x)
        out: Tensor = self.attention(x[:, :4].flatten(2).transpose(1, 2)).flatten(1)
        return out


@pytest.mark.parametrize("around", [False, True])
def test_convolutions_outside_attention_are_cut_out_by_the_few(around: bool) -> None:
    model = Hybrid(around).requires_grad_(False)
    names = {module: name for name, module in model.named_modules()}
    found = [names[block] for block in find_blocks(model, discover_products(model, image()).found, image())]
    assert found == ["stem", "stages.0", *([] if around else ["stages.1"]), "attention"]
    recorder = Recorder(10**9, 0, set())
    with watching(model, recorder, compute_plainly):
        logits = model(image(3).requires_grad_(True))
        labels = draw_labels(logits, "sampled", torch.Generator().manual_seed(0))
        nn.functional.cross_entropy(logits, labels, reduction="sum").backward()  # type: ignore[no-untyped-call]
    expected = {recording.site.name: recording for recording in recorder.take()}
    recorded = {recording.site.name: recording for recording in record(model, image(3), labels="sampled")}
    assert recorded.keys() == expected.keys() and len(expected) == 3 + 5
    for name, recording in recorded.items():
        torch.testing.assert_close(recording.grad, expected[name].grad, rtol=1e-4, atol=1e-6)


class Overwriting(nn.Module):
    """A post-norm attention that adds to what it was given, which its own linear has read."""

    def __init__(self, in_place: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.attention, self.in_place = Attention(), in_place

    def forward(self, x: Tensor) -> Tensor:
        if self.in_place:
            x += self.attention(x)
            return x
        return x + self.attention(x)  # type: ignore[no-any-return]


def test_what_a_product_has_read_is_recorded_as_it_was_before_it_was_overwritten() -> None:
    def recorded(in_place: bool) -> dict[str, Any]:
        parts = (Overwriting(in_place), Overwriting(in_place), nn.Flatten())
        first = nn.Linear(4, 4)
        model = nn.Sequential(first, *parts).requires_grad_(False)
        with torch.no_grad():
            first.weight.copy_(torch.eye(4))
        return {recording.site.name: recording for recording in record(model, image(3))}

    torch.manual_seed(0)
    found, expected = recorded(True), recorded(False)
    assert len(found) == 7 and found.keys() == expected.keys()
    for name, recording in found.items():
        for side in ("lhs", "rhs", "grad"):
            torch.testing.assert_close(getattr(recording, side), getattr(expected[name], side), msg=f"{side} of {name}")


def test_a_forward_that_overwrites_what_its_gradient_needs_is_refused_in_one_line() -> None:
    class Softmax(Attention):
        def forward(self, x: Tensor, other: Tensor | None = None) -> Tensor:
            scores = self.fc(x) @ x.transpose(-2, -1)
            scores.sub_(scores.amax(-1, keepdim=True))
            out: Tensor = (scores.softmax(-1) @ x).flatten(1)
            return out

    with pytest.raises(UserError, match=r"cannot be differentiated.*; compute a tensor anew where it is changed in pl"):
        list(record(Softmax().requires_grad_(False), image(3)))


def test_a_forward_without_gradients_is_refused_with_its_reason() -> None:
    class Frozen(Attention):
        @torch.no_grad()
        def forward(self, x: Tensor, other: Tensor | None = None) -> Tensor:
            return super().forward(x).flatten(1)

    with pytest.raises(UserError, match=r"gradients do not flow .*; give a module whose forward has no torch.no_grad"):
        discover(Frozen().requires_grad_(False), image())
