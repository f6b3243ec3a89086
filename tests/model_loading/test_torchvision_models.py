"""Models of torchvision: by name, with weights of a file or none, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from ptq4vit_onnx.errors import UserError
from ptq4vit_onnx.model_loading import torchvision_models
from ptq4vit_onnx.model_loading.load import load, resolve
from ptq4vit_onnx.model_loading.timm_compat import declare_missing_torchvision_operators


@pytest.mark.parametrize(
    ("name", "classes", "kind", "width", "size", "share"),
    [
        ("vit_b_16", None, "logits", 1000, 224, 224 / 256),
        ("swin_t", 0, "embedding", 768, 224, 224 / 232),
        ("swin_v2_t", 5, "logits", 5, 256, 256 / 260),
    ],
)
def test_the_models_have_their_own_head_and_transform(
    name: str, classes: int | None, kind: str, width: int, size: int, share: float
) -> None:
    model = load(resolve(f"torchvision:{name}"), random_weights=True, num_classes=classes)
    assert (model.name, model.origin, model.kind.name, model.classes) == (f"torchvision:{name}", "random", kind, width)
    assert (model.preprocessing.size, model.preprocessing.crop_pct) == ((3, size, size), share)


def test_a_checkpoint_is_loaded_with_as_many_classes_as_it_has(tmp_path: Path) -> None:
    declare_missing_torchvision_operators()
    from torchvision import models

    module = models.get_model("swin_t", weights=None, num_classes=3).eval()
    torch.save(module.state_dict(), tmp_path / "swin.pth")
    model = load(resolve("torchvision:swin_t"), tmp_path / "swin.pth")
    x = torch.randn(1, 3, 224, 224)
    assert (model.origin, model.classes) == ("checkpoint", 3)
    assert torch.equal(model.module(x), module(x))


def test_weights_that_cannot_be_fetched_name_all_ways_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(torchvision_models, "reachable", lambda _: False)
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    with pytest.raises(UserError) as caught:
        load(resolve("torchvision:vit_b_16"))
    for said in ("no weights for torchvision:vit_b_16: https://", "connect", "--checkpoint FILE", "--random-weights"):
        assert said in str(caught.value)


def test_a_name_that_torchvision_lacks_is_answered_without_importing_it() -> None:
    with pytest.raises(UserError, match=r"no model named 'vit_b_61'; closest are vit_b_16, .*list_models\(\)"):
        resolve("torchvision:vit_b_61")


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("vit_b_16", {"img_size": (225, 225)}, "cannot build 'vit_b_16': .*; leave --img-size out or give another"),
        ("vit_b_16", {"img_size": (224, 256)}, "takes square images only; give --img-size 224"),
        (
            "fcn_resnet50",
            {},
            "its forward returns a OrderedDict of out for 1 image, expected a float tensor.*; wrap it",
        ),
    ],
)
def test_what_cannot_be_built_or_does_not_return_tensors_is_refused(name: str, options: Any, said: str) -> None:
    with pytest.raises(UserError, match=said):
        load(resolve(f"torchvision:{name}"), random_weights=True, **options)
