"""Every product of a model, found and named; models that cannot be quantised are refused with a reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ptq4vit_onnx.errors import UserError
from ptq4vit_onnx.model_loading.timm_compat import import_timm
from ptq4vit_onnx.network.calls import Call, conv_call, window_of
from ptq4vit_onnx.network.discovery import (
    as_deployed,
    discover,
    discover_products,
    require_all_integer,
    unfuse_attention,
    watching,
)
from ptq4vit_onnx.network.patches import patches
from ptq4vit_onnx.plan.quantizers.patch_order import pair_far_inputs
from ptq4vit_onnx.plan.sites import Site


def sites_of(model: Any) -> dict[str, Site]:
    found = discover(model.module, torch.zeros(1, *model.preprocessing.size))
    return {site.name: site for site in found}


def test_a_vit_has_six_products_per_block_an_embedding_and_a_head(load_model: Callable[[str], Any]) -> None:
    sites = sites_of(load_model("vit_digits"))
    parts = ("attn.qkv", "attn.qk", "attn.pv", "attn.proj", "mlp.fc1", "mlp.fc2")
    blocks = [f"blocks.{block}.{part}" for block in range(6) for part in parts]
    assert list(sites) == ["patch_embed.proj", *blocks, "head"]


def test_a_swin_has_also_its_reductions(load_model: Callable[[str], Any]) -> None:
    sites = sites_of(load_model("swin_digits"))
    assert len(sites) == 6 * 4 + 3
    assert Counter(site.kind for site in sites.values()) == {"linear": 18, "matmul": 8, "conv": 1}
    assert sites["layers.1.downsample.reduction"].kind == "linear"
    weight = load_model("swin_digits").module.get_submodule("layers.1.downsample.reduction").weight
    assert sites["layers.1.downsample.reduction"].weight_shape == tuple(weight.shape[::-1])
    assert sites["layers.0.blocks.1.attn.pv"].heads == 2
    assert sites["layers.1.blocks.0.attn.pv"].heads == 4


def test_sites_know_what_feeds_them_and_how_they_are_grouped(load_model: Callable[[str], Any]) -> None:
    for name in ("vit_digits", "swin_digits"):
        for site in sites_of(load_model(name)).values():
            last = site.name.rpartition(".")[2]
            assert site.lhs_source == {"pv": "softmax", "fc2": "gelu"}.get(last, "other")
            assert site.weight_groups == (3 if last == "qkv" else 1)
            assert (site.weight_shape is None) == (site.kind == "matmul")
            assert site.scope == (site.name.rpartition(".")[0] if last in ("qk", "pv") else site.name)


@pytest.mark.parametrize("name", ["vit_digits", "swin_digits"])
def test_watching_does_not_change_a_value(name: str, load_model: Callable[[str], Any], digits: Any) -> None:
    module, images = load_model(name).module, torch.from_numpy(digits)
    with as_deployed(module):
        expected = module(images)
    with as_deployed(module), watching(module, lambda call: call.plain()):
        assert torch.equal(module(images), expected)


@pytest.mark.parametrize("name", ["vit_digits", "swin_digits"])
def test_finishing_the_product_of_the_two_sides_gives_what_the_model_computes(
    name: str, load_model: Callable[[str], Any], digits: Any
) -> None:
    module, images = load_model(name).module, torch.from_numpy(digits)
    expected = module(images)

    def multiply(call: Call) -> Tensor:
        out = call.finish(call.lhs @ call.rhs)
        assert out.shape == call.plain().shape
        # The order of float32 additions differs by kernel: some units in the last place of the largest value.
        assert torch.allclose(out, call.plain(), rtol=0, atol=1e-5 * float(out.abs().max()))
        assert call.unfinish(out).shape == (call.lhs @ call.rhs).shape
        return out

    with watching(module, multiply):
        torch.testing.assert_close(module(images), expected, rtol=1e-4, atol=1e-4)


def test_nothing_is_watched_once_the_context_is_left(load_model: Callable[[str], Any], digits: Any) -> None:
    module, images = load_model("vit_digits").module, torch.from_numpy(digits[:1])
    seen: list[str] = []

    def fail_at_head(call: Call) -> Tensor:
        seen.append(call.site.name)
        if call.site.name == "head":
            raise RuntimeError("stop")
        return call.plain()

    with pytest.raises(RuntimeError, match="stop"), watching(module, fail_at_head):
        module(images)
    assert len(seen) == 38
    module(images)
    assert len(seen) == 38
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in module.modules())


@pytest.mark.parametrize("size", [4, 3])  # an even and an odd number of inputs
def test_patches_are_ordered_as_a_convolutions_weight(size: int) -> None:
    x, weight = torch.randn(2, 3, 9, 12), torch.randn(5, 3, size, size)
    product = patches(x, size, size) @ pair_far_inputs(weight.flatten(1)).t()
    expected = F.conv2d(x, weight, stride=size).flatten(2).transpose(1, 2)
    torch.testing.assert_close(product, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "options",
    [
        {"kernel": 3, "stride": 1, "padding": 1},
        {"kernel": 3, "stride": 2, "padding": (0, 1)},
        {"kernel": 3, "stride": 1, "padding": 2, "dilation": 2},
        {"kernel": 7, "stride": 4, "padding": 3},
        {"kernel": 2, "stride": 2, "padding": 1},
        {"kernel": 1, "stride": 1},
        {"kernel": 1, "stride": (2, 3)},
    ],
)
def test_a_convolution_is_the_product_of_its_two_sides(options: dict[str, Any]) -> None:
    kernel, given = options["kernel"], {name: value for name, value in options.items() if name != "kernel"}
    x, weight = torch.randn(2, 24, 9, 12), torch.randn(5, 24, kernel, kernel)
    window = window_of("conv", "", x, weight, given)
    call = conv_call("conv", "", x, weight, torch.arange(5.0), window, lambda: x)
    expected = F.conv2d(x, weight, torch.arange(5.0), **given)
    torch.testing.assert_close(call.finish(call.lhs @ call.rhs), expected, rtol=1e-4, atol=1e-4)  # 1176 terms
    assert call.lhs.shape[1] == expected[0, 0].numel()


def _convolve(channels: int, x: Tensor, **options: Any) -> Tensor:
    wide = x.repeat(1, channels // 2, 1, 1)
    return F.conv2d(wide, torch.ones(channels, channels // options.get("groups", 1), 2, 2), **options)


@pytest.mark.parametrize(
    ("forward", "said"),
    [
        (lambda _, x: _convolve(22, x), r"conv: .* kernel \(2, 2\) and stride \(1, 1\) over 22 channels"),
        (lambda _, x: _convolve(48, x, groups=2), "conv: a convolution in 2 groups"),
        (lambda _, x: _convolve(48, x[..., :3], stride=2), r"conv: a convolution of \(4, 3\) pixels, no whole number"),
        (lambda _, x: F.conv1d(x[:, 0], torch.ones(4, 4, 1)), "conv1d: .* is not a product this tool understands"),
        (lambda _, x: F.conv_transpose2d(x, torch.ones(2, 2, 2, 2)), "conv_transpose2d: .* is not a product"),
    ],
)
def test_convolutions_that_stay_in_float_say_why(forward: Any, said: str) -> None:
    def both(model: Any, x: Tensor) -> Tensor:
        return model.fc(x).mean() + forward(model, x)  # type: ignore[no-any-return]

    products = discover_products(_Model(both), torch.randn(1, 2, 4, 4))
    assert [site.name for site in products.sites] == ["fc"]
    with pytest.raises(UserError, match=f"1 of 2 products .*{said}.*--allow-float"):
        require_all_integer(products)


def test_a_convolution_with_enough_channels_is_a_site() -> None:
    found = discover(_Model(lambda _, x: _convolve(24, x)), torch.randn(1, 2, 4, 4))
    assert [(site.name, site.kind) for site in found] == [("conv", "conv")]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "resnet18",
            r"1 of 21 products .* \(conv1: a convolution of kernel \(7, 7\) and stride \(2, 2\) over 3 channels",
        ),
        ("convnext_atto", r"12 of \d+ products .*a convolution in 40 groups.*; and 9 more"),
    ],
)
def test_products_that_would_stay_in_float_are_named(name: str, said: str) -> None:
    model = import_timm().create_model(name, pretrained=False).eval()
    with pytest.raises(UserError, match=f"{said}.*; give --allow-float"):
        discover(model, torch.zeros(1, 3, 224, 224))


class _Model(nn.Module):
    def __init__(self, forward: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.compute = forward

    def forward(self, x: Tensor) -> Tensor:
        out = self.compute(self, x)
        return out.flatten(1) if isinstance(out, Tensor) and out.dim() in (3, 4) else out


def _fused(_: nn.Module, x: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(x, x, x)


def _computed_weight(model: Any, x: Tensor) -> Tensor:
    return F.linear(x, model.fc.weight * 2)


def _twice(model: Any, x: Tensor) -> Tensor:
    return model.fc(model.fc(x))  # type: ignore[no-any-return]


def _broadcast(_: nn.Module, x: Tensor) -> Tensor:
    return x @ x[0, 0].t()


@pytest.mark.parametrize(
    ("forward", "said"),
    [
        (_twice, "fc: its weight is used by more than one product"),
        (
            lambda _, x: torch.inner(x, x[0, 0]),
            "inner: .* computes inner, which is not a product this tool understands",
        ),
        (lambda model, x: F.linear(x, x[0, 0] * model.fc.weight, x[0, 0, 0]), "weight and bias depend on the image"),
        (lambda _, x: x + x, "no linear, convolution or attention product was found"),
        (
            lambda model, x: model.fc(x).sum(),
            r"its forward returns float32 \[\] for 1 image, expected a float tensor or a tuple of them",
        ),
        (
            lambda model, x: [[model.fc(x)]],
            r"its forward returns a list of a list of float32 \[1, 2, 4, 4\] for 1 image",
        ),
        (
            lambda model, x: [{"boxes": model.fc(x)}],
            "its forward returns a list of a dict of boxes for 1 image, .* wrap it",
        ),
        (
            lambda model, x: {"out": model.fc(x)},
            "its forward returns a dict of out for 1 image, .*; wrap it in a module",
        ),
        (lambda model, x: model.fc(x).flatten(1).argmax(-1), r"its forward returns int64 \[1\] for 1 image"),
        (lambda model, x: (model.fc(x), None), r"returns a tuple of float32 \[1, 2, 4, 4\], nothing for 1 image"),
        (lambda model, x: model.fc(x)[..., None], r"its forward returns float32 \[1, 2, 4, 4, 1\] for 1 image"),
        (lambda model, x: model.fc(x)[:1], r"its forward returns float32 \[1, 32\] for 2 images, expected"),
        (
            lambda model, x: model.fc(x.flatten()),
            r"failed on images \[1, 2, 4, 4\]: RuntimeError: mat1 and .*; it must",
        ),
        (
            lambda model, x: model.fc(x.reshape(1, 2, 4, 4)),
            r"failed on images \[2, 2, 4, 4\]: RuntimeError: shape.*; it",
        ),
        (lambda _, x: nn.LSTM(4, 4)(x[0])[0][None], "cannot quantise this model: .*lstm.*; export it with torch.onnx"),
    ],
)
def test_what_cannot_be_quantised_is_refused_by_name(forward: Any, said: str) -> None:
    with pytest.raises(UserError, match=said):
        discover(_Model(forward), torch.randn(1, 2, 4, 4))


@pytest.mark.parametrize(
    ("forward", "names"),
    [
        (_fused, ["qk", "pv"]),
        (_computed_weight, ["linear"]),
        (_broadcast, ["qk"]),
        (lambda _, x: torch.bmm(x[:, 0], x[:, 0]), ["qk"]),
        (lambda _, x: torch.einsum("bhij,bhkj->bhik", x, x), ["qk"]),
        (lambda model, x: model.fc(x), ["fc"]),
        (lambda _, x: (x @ x.mT) @ (x @ x.mT), ["qk", "pv", "matmul"]),
        (lambda _, x: (x @ x.mT) @ (x @ x.mT) @ (x @ x.mT), ["qk", "pv", "matmul", "matmul_2", "matmul_3"]),
        (lambda _, x: x.mT @ (x @ x.mT).softmax(-1), ["qk", "pv"]),
    ],
)
def test_products_of_any_form_are_sites(forward: Any, names: list[str]) -> None:
    assert [site.name for site in discover(_Model(forward), torch.randn(1, 2, 4, 4))] == names


@pytest.mark.parametrize(
    "between",
    [
        lambda p: F.dropout(p, 0.5, training=False),
        lambda p: p.double().softmax(-1).float(),
        lambda p: p.double().softmax(-1).to(torch.float32),
        lambda p: p.transpose(-2, -1).contiguous().transpose(-2, -1).softmax(-1).contiguous(),
    ],
    ids=["dropout", "float", "to", "contiguous"],
)
def test_what_stands_between_softmax_and_product_hides_nothing(between: Callable[[Tensor], Tensor]) -> None:
    def attention(_: nn.Module, x: Tensor) -> Tensor:
        return between((x @ x.transpose(-2, -1)).softmax(-1)) @ x

    sites = discover(_Model(attention), torch.randn(1, 2, 4, 4))
    assert [(site.name, site.lhs_source) for site in sites] == [("qk", "other"), ("pv", "softmax")]


def _attention(x: Tensor) -> Tensor:
    return (x @ x.transpose(-2, -1)).softmax(-1) @ x


def _learnt_query(model: Any, x: Tensor) -> Tensor:
    query: Tensor = model.fc(torch.ones(2, 4, 4))
    return (query.expand(x.shape) @ x.transpose(-2, -1)).softmax(-1) @ x


def _constants_of_any_form(model: Any, x: Tensor) -> Tensor:
    table = torch.einsum("ij,kj->ik", model.fc.weight, model.fc.weight) @ torch.ones(3, 4, 1)
    return _attention(x) * F.linear(table[0].t(), model.fc.weight * 2)


def _nobody_reads(model: Any, x: Tensor) -> Tensor:
    model.fc(model.fc(x))
    return _attention(x)


@pytest.mark.parametrize("forward", [_learnt_query, _constants_of_any_form, _nobody_reads])
@pytest.mark.parametrize("frozen", [True, False])
def test_only_what_leads_from_pixels_to_logits_is_a_site(forward: Any, frozen: bool) -> None:
    """Constants are none, whatever computes them and whether or not their parameters are being trained."""
    model = _Model(forward).requires_grad_(not frozen)
    assert [site.name for site in discover(model, torch.randn(1, 2, 4, 4))] == ["qk", "pv"]


def test_looking_for_sites_keeps_no_activations() -> None:
    kept: list[Tensor] = []

    def forward(_: Any, x: Tensor) -> Tensor:
        out = _attention(x)
        kept.append(out)
        return out

    discover(_Model(forward), torch.randn(1, 2, 4, 4))
    with pytest.raises(AssertionError, match="no values were kept"):
        kept[0].sum().backward()  # type: ignore[no-untyped-call]


def test_unfusing_reaches_every_attention() -> None:
    model = import_timm().create_model("vit_tiny_patch16_224", pretrained=False)
    unfuse_attention(model)
    assert [module.fused_attn for module in model.modules() if hasattr(module, "fused_attn")] == [False] * 12


def test_numbered_names_are_made_only_when_they_are_tried(
    load_model: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every product of every forward pass asks for a name; a long list of spare ones would cost more than it."""

    def refuse(start: int) -> Any:
        raise AssertionError(f"name {start} was made, though the plain name was free")
        yield

    monkeypatch.setattr("ptq4vit_onnx.network.discovery.count", refuse)
    assert "blocks.0.attn.qk" in sites_of(load_model("vit_digits"))
