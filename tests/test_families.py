"""Tiny relatives of ViT and Swin from timm go the whole way: found, recorded, quantised, and equal bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from ptq4vit_onnx.calibration.calibrate import calibrate
from ptq4vit_onnx.float_export.exporter import export_float
from ptq4vit_onnx.images.preprocessing import Preprocessing
from ptq4vit_onnx.model_loading.load import LoadedModel
from ptq4vit_onnx.model_loading.timm_compat import import_timm
from ptq4vit_onnx.network.discovery import discover, unfuse_attention
from ptq4vit_onnx.network.tape import record
from ptq4vit_onnx.passes import quantize
from ptq4vit_onnx.plan.options import Options
from ptq4vit_onnx.plan.scale_plan import ScalePlan
from ptq4vit_onnx.proof.float_sites import FloatSites, output_tensors
from ptq4vit_onnx.proof.kernels import audit
from ptq4vit_onnx.proof.layout import layout_of
from ptq4vit_onnx.proof.replay import Replay
from ptq4vit_onnx.proof.site_parity import check_sites, require_exact
from ptq4vit_onnx.runtime.inner_tensors import fetch
from ptq4vit_onnx.runtime.session import run
from ptq4vit_onnx.simulation.fake import replay, simulate_exactly

SIZE = {"img_size": 32, "in_chans": 1, "num_classes": 5}
TINY = SIZE | {"patch_size": 8, "embed_dim": 32, "depth": 1, "num_heads": 2}
TINY_SWIN = SIZE | {"patch_size": 4, "embed_dim": 16, "depths": (1, 1), "num_heads": (2, 2), "window_size": 4}


def vit(**options: Any) -> nn.Module:
    import_timm()
    from timm.models.vision_transformer import VisionTransformer

    return VisionTransformer(**TINY, **options)  # type: ignore[no-any-return]


def distilled() -> nn.Module:
    import_timm()
    from timm.models.deit import VisionTransformerDistilled

    return VisionTransformerDistilled(**TINY)  # type: ignore[no-any-return]


def swin_v2() -> nn.Module:
    import_timm()
    from timm.models.swin_transformer_v2 import SwinTransformerV2

    return SwinTransformerV2(**TINY_SWIN)  # type: ignore[no-any-return]


def loaded(make: Callable[[], nn.Module]) -> LoadedModel:
    """The model with biases that are not zero: the exporter leaves out those that are."""
    torch.manual_seed(0)
    module = make().eval().requires_grad_(False)
    unfuse_attention(module)
    for name, parameter in module.named_parameters():
        if name.endswith("bias"):
            nn.init.normal_(parameter, std=0.1)
    return LoadedModel("tiny", module, Preprocessing((1, 32, 32), 1.0, "squash", "bilinear", (0.5,), (0.5,)), "random",
                       "", 5)  # fmt: skip


def images(count: int) -> Any:
    return np.random.default_rng(0).standard_normal((count, 1, 32, 32), np.float32)


def prove(model: LoadedModel, batch: int | None = None) -> ScalePlan:
    """Export, calibrate, quantise and check as the pipeline does; the plan."""
    sites = discover(model.module, torch.from_numpy(images(1)))
    float_model = export_float(model, sites, batch)
    found = calibrate(record(model.module, torch.from_numpy(images(4))), Options(candidates=4, rounds=1))
    plan = ScalePlan("tiny", "", "", {}, {}, {site.name: found[site.name] for site in sites})
    quantised, _ = quantize(float_model, plan)
    kernels = audit(quantised, plan)
    kernels.require_integer()
    kernels.require_exact()
    require_exact(check_sites(quantised, plan, images(2), FloatSites(float_model, plan)))
    simulated = simulate_exactly(model.module, plan, layout_of(quantised, plan), images(4))
    assert np.array_equal(run(quantised, images(4)), simulated)
    held = Replay(quantised, plan)
    replay(model.module, plan, held, images(1))
    assert held.first_divergent is None
    return plan


def test_layer_norms_without_a_bias_are_computed_and_take_no_channels() -> None:
    model = loaded(partial(vit, norm_layer=partial(nn.LayerNorm, bias=False)))
    assert not any(site.norm for site in discover(model.module, torch.from_numpy(images(1))))
    prove(model)


def test_layer_norms_without_parameters_are_computed() -> None:
    prove(loaded(partial(vit, norm_layer=partial(nn.LayerNorm, elementwise_affine=False))))


def test_both_heads_of_a_distilled_model_are_sites() -> None:
    plan = prove(loaded(distilled))
    assert list(plan.sites)[-2:] == ["head", "head_dist"]


def test_heads_that_are_added_without_biases_are_told_apart() -> None:
    model = loaded(distilled)
    for name in ("head.bias", "head_dist.bias"):
        nn.init.zeros_(model.module.get_parameter(name))
    prove(model)


@pytest.mark.parametrize("batch", [None, 1, 3])
def test_a_pool_with_a_learnt_query_has_every_product_but_the_query_s(batch: int | None) -> None:
    plan = prove(loaded(partial(vit, global_pool="map", class_token=False)), batch)
    names = [name for name in plan.sites if name.startswith("attn_pool.")]
    assert names == [f"attn_pool.{what}" for what in ("kv", "qk", "pv", "proj", "mlp.fc1", "mlp.fc2")]


def test_a_table_of_positions_that_is_computed_is_a_constant() -> None:
    plan = prove(loaded(swin_v2))
    assert "layers.0.blocks.0.attn.qkv" in plan.sites
    assert not any("cpb_mlp" in name for name in plan.sites)


@pytest.mark.parametrize("block", ["ParallelThingsBlock", "ParallelScalingBlock"])
def test_attentions_side_by_side_are_recorded_together(block: str) -> None:
    import_timm()
    from timm.models import vision_transformer

    prove(loaded(partial(vit, block_fn=getattr(vision_transformer, block))))


def talking_heads() -> nn.Module:
    import_timm()
    from timm.models.cait import Cait

    return Cait(**TINY, depth_token_only=1)  # type: ignore[no-any-return]


def gated_attention() -> nn.Module:
    import_timm()
    from timm.models.convit import ConVit

    return ConVit(**TINY | {"depth": 2}, local_up_to_layer=1)  # type: ignore[no-any-return]


@pytest.mark.parametrize(("make", "sites"), [(talking_heads, 18), (gated_attention, 15)])
def test_probabilities_that_do_not_come_straight_from_softmax_are_multiplied_in_integers(
    make: Callable[[], nn.Module], sites: int
) -> None:
    assert len(prove(loaded(make)).sites) == sites


class LearntQuery(nn.Module):
    """Patches, read by a query that was learnt through nn.MultiheadAttention: SigLIP's pool in transformers."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, 32, 8, 8)
        self.probe = nn.Parameter(torch.randn(1, 1, 32))
        self.attention = nn.MultiheadAttention(32, 2, batch_first=True)
        self.head = nn.Linear(32, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = self.patches(x).flatten(2).transpose(1, 2)
        pooled = self.attention(self.probe.repeat(x.shape[0], 1, 1), tokens, tokens)[0]
        return self.head(pooled[:, 0])  # type: ignore[no-any-return]


@pytest.mark.parametrize("batch", [None, 2])
def test_the_parts_of_one_matrix_that_make_keys_and_values_are_weights(batch: int | None) -> None:
    plan = prove(loaded(LearntQuery), batch)
    assert [plan.sites[f"attention.linear{number}"].kind for number in ("_2", "_3")] == ["linear"] * 2


class TokensFirst(nn.Module):
    """A class token and layers that compute on [tokens, images, width], as torchvision's ViT does."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, 32, 8, 8)
        self.token = nn.Parameter(torch.randn(1, 1, 32))
        options: dict[str, Any] = {"activation": "gelu", "batch_first": True, "norm_first": True}
        self.layers = nn.Sequential(*[nn.TransformerEncoderLayer(32, 2, 64, **options) for _ in range(2)])
        self.head = nn.Linear(32, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = self.patches(x).flatten(2).transpose(1, 2)
        rows = self.layers(torch.cat([self.token.expand(x.shape[0], -1, -1), tokens], 1))
        return self.head(rows[:, 0])  # type: ignore[no-any-return]


@pytest.mark.parametrize("batch", [None, 2])
def test_rows_that_nobody_reads_are_dropped_in_front_of_a_product_also_along_the_first_axis(batch: int | None) -> None:
    model = loaded(TokensFirst)
    plan = prove(model, batch)
    quantised, _ = quantize(export_float(model, discover(model.module, images(1)), batch), plan)
    scores = fetch(quantised, [output_tensors(quantised, plan.sites)["layers.1.self_attn.qk"]], images(2))
    assert [value.shape for value in scores.values()] == [(2, 2, 1, 17)]  # [images, heads, rows, tokens]


def test_as_many_rows_are_dropped_for_any_number_of_images_as_for_two() -> None:
    model = loaded(TokensFirst)
    plan = prove(model)
    sites = discover(model.module, torch.from_numpy(images(1)))
    reports = [quantize(export_float(model, sites, batch), plan)[1] for batch in (None, 2)]
    assert reports[0].places["DropUnreadRows"] == reports[1].places["DropUnreadRows"] > 15


def windows_with_relative_positions() -> nn.Module:
    import_timm()
    from timm.models.vision_transformer_sam import VisionTransformerSAM

    options: dict[str, Any] = {"window_size": 3, "global_attn_indexes": (1,), "use_rel_pos": True, "neck_chans": 0}
    return VisionTransformerSAM(**TINY | {"depth": 2}, **options)  # type: ignore[no-any-return]


def blocks_in_an_image() -> nn.Module:
    """Attention on [images, heads, blocks, tokens, depth], without NesT's convolutions between levels."""
    import_timm()
    from timm.models.nest import Nest

    return Nest(**SIZE, patch_size=4, num_levels=1, embed_dims=(32,), num_heads=(2,), depths=(2,))  # type: ignore[no-any-return]


@pytest.mark.parametrize("make", [windows_with_relative_positions, blocks_in_an_image])
def test_attention_with_more_axes_or_more_products_than_usual_is_computed_in_integers(
    make: Callable[[], nn.Module],
) -> None:
    prove(loaded(make))
