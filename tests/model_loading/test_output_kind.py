"""What a model is taken for: by the user's word, by what its source knows, by its shapes, by its head."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from ptq4vit_onnx.errors import UserError
from ptq4vit_onnx.model_loading.load import load, resolve
from ptq4vit_onnx.model_loading.output_kind import Returns, take_for


class Pair(NamedTuple):
    tokens: Tensor
    pooled: Tensor


class Described(NamedTuple):
    image: Tensor  # as the file's input is called
    text: Tensor


class Headed(nn.Module):
    """A module whose last linear has the name `called`; num_classes as given."""

    def __init__(self, called: str, width: int = 8, **attributes: Any) -> None:
        super().__init__()
        self.first = nn.Linear(4, 8)
        setattr(self, called, nn.Linear(8, width))
        for name, value in attributes.items():
            setattr(self, name, value)


def taken(module: nn.Module, outputs: Any, asked: Any = "auto") -> tuple[str, tuple[str, ...]]:
    found = take_for(asked, module, outputs, "it")
    return found.kind.name, found.names


ROW, TOKENS, MAP = torch.zeros(1, 8), torch.zeros(1, 5, 8), torch.zeros(1, 8, 4, 4)
TOWER = {"architecture": "vit_base_patch32_clip_224", "tag": "openai", "num_classes": 8}


@pytest.mark.parametrize(
    ("module", "outputs", "kind", "names"),
    [
        (Headed("head"), ROW, "logits", ("logits",)),
        (Headed("classifier"), (ROW,), "logits", ("logits",)),
        (Headed("proj"), ROW, "embedding", ("embedding",)),
        (Headed("proj", num_classes=8), ROW, "logits", ("logits",)),
        (Headed("proj", num_classes=9), ROW, "embedding", ("embedding",)),
        (Headed("head", num_classes=0), ROW, "embedding", ("embedding",)),
        (Headed("head", width=9), ROW, "embedding", ("embedding",)),
        (Headed("head"), TOKENS, "features", ("features",)),
        (Headed("head"), MAP, "features", ("features",)),
        (Headed("head"), (TOKENS, ROW), "features", ("features_0", "features_1")),
        (Headed("head"), Pair(TOKENS, ROW), "features", ("tokens", "pooled")),
        (Headed("head"), Described(ROW, ROW), "features", ("features_image", "text")),
        (Headed("head", num_classes=8, pretrained_cfg=TOWER), ROW, "embedding", ("embedding",)),
        (Headed("head", num_classes=8, pretrained_cfg={**TOWER, "num_classes": 512}), ROW, "logits", ("logits",)),
        (Headed("head", num_classes=8, pretrained_cfg={**TOWER, "tag": "openai_ft_in1k"}), ROW, "logits", ("logits",)),
        (Headed("head", ptq4vit_returns=Returns("embedding", "")), ROW, "embedding", ("embedding",)),
        (Headed("head", ptq4vit_returns=Returns("embedding", "")), TOKENS, "features", ("features",)),
    ],
)
def test_auto_takes_a_model_for_what_it_tells(module: nn.Module, outputs: Any, kind: str, names: Any) -> None:
    assert taken(module, outputs) == (kind, names)


def test_the_sentence_says_what_it_was_taken_for_and_how_to_override_it() -> None:
    assert take_for("auto", Headed("head"), ROW, "it").why == (
        "logits [n, 8]: its last linear is called head (--output-kind overrides this)"
    )
    assert take_for("features", Headed("head"), MAP, "it").why == "features [n, 8, 4, 4], as asked for"


@pytest.mark.parametrize("asked", ["logits", "embedding", "features"])
def test_the_users_word_decides_between_kinds_of_the_same_shape(asked: str) -> None:
    assert taken(Headed("head"), ROW, asked) == (asked, (asked,))


@pytest.mark.parametrize("outputs", [TOKENS, MAP, (ROW, ROW)])
@pytest.mark.parametrize("asked", ["logits", "embedding"])
def test_a_kind_that_does_not_fit_the_shape_is_refused(asked: Any, outputs: Any) -> None:
    with pytest.raises(
        UserError, match=f"--output-kind {asked} does not fit it: it returns .*; leave --output-kind out"
    ):
        take_for(asked, Headed("head"), outputs, "it")


@pytest.mark.parametrize(
    ("name", "classes", "kind", "width"),
    [
        ("vit_tiny_patch16_224", None, "logits", 1000),
        ("vit_tiny_patch16_224", 0, "embedding", 192),
        ("vit_tiny_patch16_224", 7, "logits", 7),
        ("vit_xsmall_patch16_clip_224.tinyclip_yfcc15m", None, "embedding", 512),
        ("vit_xsmall_patch16_clip_224.tinyclip_yfcc15m", 5, "logits", 5),
    ],
)
def test_timm_models_are_told_by_their_head_and_tag(name: str, classes: int | None, kind: str, width: int) -> None:
    model = load(resolve(name), random_weights=True, num_classes=classes)
    assert (model.kind.name, model.outputs, model.classes) == (kind, (kind,), width)


@pytest.mark.parametrize("name", ["vit_digits", "swin_digits"])
def test_an_embedded_model_without_its_head_returns_what_the_head_reads(name: str) -> None:
    whole, bare = load(resolve(name)), load(resolve(name), num_classes=0)
    head: Any = whole.module.get_submodule("head")
    x = torch.randn(2, *whole.preprocessing.size)
    fc = head if isinstance(head, nn.Linear) else head.fc
    assert bare.kind.name == "embedding"
    assert bare.fingerprint != whole.fingerprint
    torch.testing.assert_close(fc(bare.module(x)), whole.module(x))
