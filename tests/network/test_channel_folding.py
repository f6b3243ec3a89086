"""Folding channels into the torch model: nothing else changes, and only where nobody else reads the LayerNorm."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ptq4vit_onnx.model_loading.timm_compat import import_timm
from ptq4vit_onnx.network.channel_folding import _folded, _probe, foldable, folded
from ptq4vit_onnx.network.discovery import discover, unfuse_attention
from ptq4vit_onnx.plan.quantizers import Uniform
from ptq4vit_onnx.plan.scale_plan import SitePlan


def image(size: int = 32) -> Tensor:
    return torch.randn(1, 1, size, size, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("name", "norms"),
    [
        ("vit_digits", {"blocks.3.attn.qkv": "blocks.3.norm1", "blocks.0.mlp.fc1": "blocks.0.norm2", "head": "norm"}),
        (
            "swin_digits",
            {
                "layers.0.blocks.1.attn.qkv": "layers.0.blocks.1.norm1",
                "layers.1.downsample.reduction": "layers.1.downsample.norm",
            },
        ),
    ],
)
def test_layers_behind_a_norm_are_found_and_can_take_its_channels(
    name: str, norms: dict[str, str], load_model: Callable[[str], Any]
) -> None:
    model = load_model(name).module
    sites = discover(model, image())
    assert norms.items() <= {site.name: site.norm for site in sites}.items()
    found = foldable(model, sites, image())
    assert found == {site.name for site in sites if site.norm} >= set(norms)
    assert not any(name.endswith((".proj", ".fc2", ".qk", ".pv")) for name in found)


def test_the_folded_model_computes_the_same_and_is_itself_again_afterwards(load_model: Callable[[str], Any]) -> None:
    model = load_model("vit_digits").module
    before = {name: value.clone() for name, value in model.state_dict().items()}
    site = next(site for site in discover(model, image()) if site.name == "blocks.0.attn.qkv")
    side = Uniform(8, (1.0,))
    plan = {site.name: SitePlan("linear", "other", side, side, channels=_probe(model, site))}
    with torch.no_grad():
        expected = model(image())
        with folded(model, plan):
            changed = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
            torch.testing.assert_close(model(image()), expected, rtol=1e-4, atol=1e-4)
    layers = ("norm1", "attn.qkv")
    assert changed == {f"blocks.0.{layer}.{what}" for layer in layers for what in ("weight", "bias")}
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_an_error_inside_leaves_the_model_as_it_was(load_model: Callable[[str], Any]) -> None:
    model = load_model("vit_digits").module
    site = next(site for site in discover(model, image()) if site.norm)
    before = model.get_submodule(site.name).weight.clone()
    with pytest.raises(RuntimeError, match="interrupted"), _folded(model, {site.name: _probe(model, site)}):
        assert not torch.equal(model.get_submodule(site.name).weight, before)
        raise RuntimeError("interrupted")
    assert torch.equal(model.get_submodule(site.name).weight, before)


def padded_swin(size: int) -> Any:
    """Patches of 4 in windows of 4: 24 pixels leave two rows of zeros behind the norm, 32 leave none."""
    import_timm()
    from timm.models.swin_transformer import SwinTransformer

    torch.manual_seed(0)
    model = SwinTransformer(
        img_size=size, patch_size=4, in_chans=1, num_classes=4, embed_dim=8, depths=(1,), num_heads=(2,), window_size=4
    ).eval()
    unfuse_attention(model)
    return model


@pytest.mark.parametrize(("size", "norm"), [(24, ""), (32, "layers.0.blocks.0.norm1")])
def test_windows_that_are_padded_with_zeros_do_not_come_from_the_norm_alone(size: int, norm: str) -> None:
    sites = {site.name: site for site in discover(padded_swin(size), image(size))}
    assert sites["layers.0.blocks.0.attn.qkv"].norm == norm


def test_what_the_marks_do_not_see_is_tried() -> None:
    """With a mark where zeros were filled in, a shift would change what the model computes."""
    model = padded_swin(24)
    sites = [replace(site, norm=site.norm or norm_of(site.name)) for site in discover(model, image(24))]
    marked = {site.name for site in sites if site.norm}
    assert foldable(model, sites, image(24)) == marked - {"layers.0.blocks.0.attn.qkv"}


def norm_of(site: str) -> str:
    return "layers.0.blocks.0.norm1" if site.endswith(".qkv") else ""


class ComputedBias(nn.Module):
    """A linear whose bias is put together from parameters, as BEiT's: there is no one bias to take up a shift."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv = nn.LayerNorm(8), nn.Linear(8, 8, bias=False)
        self.low, self.high = (nn.Parameter(torch.randn(4)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.norm(x.flatten(1).reshape(len(x), 1, -1, 8))
        y = nn.functional.linear(tokens, self.qkv.weight, torch.cat([self.low, self.high]))
        out: Tensor = ((y @ y.transpose(-1, -2)).softmax(-1) @ y).sum((1, 2))
        return out


def test_a_bias_that_is_computed_is_none_to_fold_a_shift_into() -> None:
    model = ComputedBias().eval()
    (site,) = (site for site in discover(model, image(8)) if site.kind == "linear")
    assert (site.name, site.norm, site.has_bias) == ("qkv", "norm", False)
    assert foldable(model, [site], image(8)) == {"qkv"} and not any(_probe(model, site).shift)
    shifted = replace(_probe(model, site), shift=(1.0,) * 8)
    with pytest.raises(AssertionError, match="qkv has no bias to take up a shift"), _folded(model, {"qkv": shifted}):
        pass


class Reads(nn.Module):
    """One attention, and a LayerNorm that several layers read: `twice` by two linears, else also by a residual."""

    def __init__(self, twice: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm, self.first, self.second = nn.LayerNorm(8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.twice = twice

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(1).reshape(len(x), 1, -1, 8)
        normed = self.norm(tokens)
        y = self.first(normed)
        y = y + (self.second(normed) if self.twice else normed)
        out: Tensor = ((y @ y.transpose(-1, -2)).softmax(-1) @ y).sum((1, 2))
        return out


@pytest.mark.parametrize("twice", [True, False])
def test_a_norm_that_others_read_as_well_is_left_alone(twice: bool) -> None:
    model = Reads(twice).eval()
    sites = discover(model, image(8))
    assert [site.norm for site in sites if site.kind == "linear"] == ["norm"] * (1 + twice)
    assert foldable(model, sites, image(8)) == set()


class SideBySide(nn.Module):
    """Two LayerNorms that read the same, each in front of a linear."""

    def __init__(self, different: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norms = nn.ModuleList([nn.LayerNorm(8), nn.LayerNorm(8)])
        self.linears = nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 8)])
        if different:
            nn.init.normal_(self.norms[1].weight)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(1).reshape(len(x), 1, -1, 8)
        first, second = (linear(norm(tokens)) for linear, norm in zip(self.linears, self.norms, strict=True))
        out: Tensor = ((first @ second.transpose(-1, -2)).softmax(-1) @ second).sum((1, 2))
        return out


@pytest.mark.parametrize("different", [True, False])
def test_norms_that_compute_the_same_from_the_same_are_one_in_the_file_and_left_alone(different: bool) -> None:
    model = SideBySide(different).eval()
    expected = {"linears.0", "linears.1"} if different else set()
    assert foldable(model, discover(model, image(8)), image(8)) == expected
