"""Modules that nobody has registered: exported from Python, untouched afterwards, resumed, and refused in one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import ptq4vit_onnx
from ptq4vit_onnx import pipeline
from ptq4vit_onnx.calibration.journal import Journal
from ptq4vit_onnx.errors import UserError
from ptq4vit_onnx.images.choice import choose_images
from ptq4vit_onnx.model_loading.timm_compat import import_timm
from ptq4vit_onnx.report.terminal import rows
from tests.test_restored_state import HalfwayError, differences, fails_at, state_of_module

PREPROCESSING = {"size": 16, "mean": (0.5,) * 3, "std": (0.5,) * 3}
QUICK: dict[str, Any] = {"preprocessing": PREPROCESSING, "images": 8, "candidates": 4}


class Block(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = nn.MultiheadAttention(width, 2, dropout=0.2, batch_first=True)
        self.wide, self.narrow, self.drop = nn.Linear(width, 32), nn.Linear(32, width), nn.Dropout(0.2)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x)
        x = x + self.attn(y, y, y, need_weights=False)[0]
        return x + self.drop(self.narrow(F.gelu(self.wide(self.norm2(x)))))  # type: ignore[no-any-return]


class Tower(nn.Module):
    """As a user trains it: in train mode, with dropout, one block frozen and in eval mode."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.patch, self.block, self.proj = nn.Conv2d(3, 16, 4, 4), Block(), nn.Linear(16, 6)
        self.train()
        self.block.norm2.eval()
        self.proj.weight.requires_grad_(False)

    def tokens(self, x: Tensor) -> Tensor:
        return self.block(self.patch(x).flatten(2).transpose(1, 2))  # type: ignore[no-any-return]

    def forward(self, x: Tensor) -> Any:
        return self.proj(self.tokens(x).mean(1))


def outputs(module: nn.Module) -> Tensor:
    torch.manual_seed(1)
    found: Tensor = module(torch.randn(2, 3, 16, 16))  # in train mode: dropout shows that nothing was switched off
    return found


def test_a_module_is_exported_and_is_afterwards_as_before(tmp_path: Path) -> None:
    module = Tower()
    before, answer = state_of_module(module), outputs(module)
    report = ptq4vit_onnx.export(module, output=tmp_path / "out", **QUICK)
    assert differences(before, state_of_module(module)) == {}
    assert torch.equal(outputs(module), answer)
    assert (report.inputs.model, report.inputs.weights_from) == ("Tower", "module")
    assert report.kernels.fell_back == ()
    said = dict(rows(report))
    assert said["output"] == "embedding [n, 6]: it has no classifier head (--output-kind overrides this)"
    data = json.loads((tmp_path / "out" / "report.json").read_text(encoding="utf-8"))
    assert data["output"] == {"kind": "embedding", "names": ["embedding"], "why": said["output"]}
    assert data["options"]["output_kind"] == "embedding"


def test_a_plan_is_applied_to_the_module_again_with_the_kind_it_was_made_for(tmp_path: Path) -> None:
    module, plan = Tower(), tmp_path / "one" / "plan.json"
    ptq4vit_onnx.export(module, output=tmp_path / "one", name="mine", output_kind="logits", **QUICK)
    given: dict[str, Any] = {"preprocessing": PREPROCESSING, "images": 8, "plan": plan, "name": "mine"}
    again = ptq4vit_onnx.export(module, output=tmp_path / "two", **given)
    assert again.inputs.output.kind.name == "logits"
    files = [(tmp_path / folder / "model.onnx").read_bytes() for folder in ("one", "two")]
    assert files[0] == files[1]
    with pytest.raises(UserError, match="made for --output-kind logits, not for embedding; leave --output-kind out"):
        ptq4vit_onnx.export(module, output=tmp_path / "three", output_kind="embedding", **given)
    with pytest.raises(UserError, match=r"plan .* is for mine, not for Tower"):
        ptq4vit_onnx.export(module, output=tmp_path / "three", **{**given, "name": None})
    nn.init.zeros_(module.proj.bias)
    with pytest.raises(UserError, match="the plan was made for other weights of mine"):
        ptq4vit_onnx.export(module, output=tmp_path / "three", **given)


def test_an_interrupted_export_of_a_module_is_resumed_and_leaves_it_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, journal = Tower(), tmp_path / ".out.resume.jsonl"
    before = state_of_module(module)
    with pytest.raises(HalfwayError):
        ptq4vit_onnx.export(module, output=tmp_path / "out", progress=fails_at, **QUICK)
    assert differences(before, state_of_module(module)) == {}
    assert len(journal.read_text(encoding="utf-8").splitlines()) == 1 + 1, "the inputs, and the site that was searched"
    known: list[set[str]] = []
    read = Journal.read

    def seen(self: Journal) -> Any:
        found = read(self)
        known.append(set(found))
        return found

    monkeypatch.setattr(Journal, "read", seen)
    report = ptq4vit_onnx.export(module, output=tmp_path / "out", **QUICK)
    assert len(known[0]) == 1 and known[0] < set(report.plan.sites)
    assert not journal.exists()


def test_an_embedded_model_without_its_head_is_exported_and_its_plan_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def few(*arguments: Any) -> Any:
        chosen = choose_images(*arguments)
        return replace(chosen, measured=chosen.measured.part(slice(8)))

    monkeypatch.setattr(pipeline, "choose_images", few)
    quick: dict[str, Any] = {"images": 8}
    report = ptq4vit_onnx.export("vit_digits", num_classes=0, output=tmp_path / "one", candidates=4, **quick)
    assert (report.inputs.output.kind.name, report.plan.options["num_classes"]) == ("embedding", 0)
    assert "head" not in report.plan.sites
    plan = tmp_path / "one" / "plan.json"
    again = ptq4vit_onnx.export("vit_digits", plan=plan, output=tmp_path / "two", **quick)
    assert again.inputs.output.kind.name == "embedding"
    with pytest.raises(UserError, match="made for --num-classes 0, not for 10 classes; leave --num-classes out"):
        ptq4vit_onnx.export("vit_digits", plan=plan, num_classes=10, output=tmp_path / "three", **quick)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.rnn = nn.Linear(16, 8), nn.LSTM(8, 8, batch_first=True)

    def forward(self, x: Tensor) -> Any:
        return self.rnn(self.first(x.flatten(1, 2)))[0][:, -1]


class Text(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.fc = nn.Embedding(9, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Any:
        return self.fc(self.table(x)).mean(1)


class Detector(Tower):
    def forward(self, x: Tensor) -> Any:
        return [{"boxes": row, "labels": row.argmax()} for row in self.proj(self.tokens(x))]


class Branching(Tower):
    def forward(self, x: Tensor) -> Any:
        out = super().forward(x)
        return out + 1 if out.mean() > 0 else out


class OneImage(Tower):
    def forward(self, x: Tensor) -> Any:
        return super().forward(x.reshape(1, 3, 16, 16))


def tiny_vit() -> nn.Module:
    made: nn.Module = import_timm().models.vision_transformer.VisionTransformer(
        img_size=32, patch_size=8, embed_dim=16, depth=1, num_heads=2, num_classes=3
    )
    return made


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (
            lambda: nn.LSTM(16, 8),
            r"cannot quantise LSTM: its forward failed on images \[1, 3, 16, 16\]: .*; it must take",
        ),
        (
            Recurrent,
            "cannot quantise this model: rnn computes lstm, which .*; export it with torch.onnx.export instead",
        ),
        (Text, r"cannot quantise Text: its forward failed on images \[1, 3, 16, 16\]: RuntimeError: .*; it must take"),
        (
            Detector,
            "cannot quantise Detector: its forward returns a list of a dict of boxes, labels for 1 .*; wrap it in",
        ),
        (Branching, "torch cannot export Branching to ONNX: .*; its forward must not branch on the values of tensors"),
        (OneImage, r"its forward failed on images \[2, 3, 16, 16\]: .* with any number of images: give"),
        (
            tiny_vit,
            r"its forward failed on images \[1, 3, 16, 16\]: AssertionError: Input height .*: give the image size",
        ),
        (
            nn.Identity,
            "no linear, convolution or attention product was found.*; export it with torch.onnx.export instead",
        ),
    ],
)
def test_what_cannot_be_exported_is_refused_in_one_line_with_a_way_on(
    make: Callable[[], nn.Module], said: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=said) as caught:
        ptq4vit_onnx.export(make(), output=tmp_path / "out", **QUICK)
    assert "\n" not in str(caught.value)
    assert "use a ViT" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_labels_that_an_output_does_not_have_are_said_to_be_left_out(tmp_path: Path) -> None:
    report = ptq4vit_onnx.export(Tower(), output=tmp_path / "out", labels="sampled", **QUICK)
    assert ("WARNING", "embedding output has no labels: calibration weighs errors by signs, not by sampled labels") in (
        rows(report)
    )


def test_a_module_can_be_exported_inside_inference_mode_and_autocast(tmp_path: Path) -> None:
    module = Tower()
    with torch.inference_mode(), torch.autocast("cpu"):
        ptq4vit_onnx.export(module, output=tmp_path / "out", **QUICK)
        assert torch.is_inference_mode_enabled() and torch.is_autocast_enabled("cpu")
        with pytest.raises(UserError, match=r"made in torch.inference_mode .*; make the module outside"):
            ptq4vit_onnx.export(Tower(), output=tmp_path / "other", **QUICK)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda tower, x: tower.forward(x.sub_(0.5)),
            "changes the images .* in place.*; let it begin with x = x.clone",
        ),
        (lambda tower, x: tower.forward(x) / 0, "returns embedding that are not finite .* weights and its"),
    ],
    ids=["images are overwritten", "infinite"],
)
def test_what_would_spoil_every_measurement_is_refused(change: Any, said: str, tmp_path: Path) -> None:
    class Changed(Tower):
        def forward(self, x: Tensor) -> Any:
            return change(super(), x)

    with pytest.raises(UserError, match=said):
        ptq4vit_onnx.export(Changed(), output=tmp_path / "out", **QUICK)
    assert not (tmp_path / "out").exists()
