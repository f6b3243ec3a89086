"""Models of transformers, from folders made here with tiny configs: what each class returns, and from which weights."""

from __future__ import annotations

import importlib.util
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ptq4vit_onnx.errors import UserError
from ptq4vit_onnx.model_loading import hub
from ptq4vit_onnx.model_loading.load import LoadedModel, load, resolve
from ptq4vit_onnx.model_loading.timm_compat import declare_missing_torchvision_operators
from ptq4vit_onnx.network.discovery import discover_products

if importlib.util.find_spec("transformers") is None:
    pytest.skip("transformers is not installed: pip install ptq4vit-onnx[transformers]", allow_module_level=True)
declare_missing_torchvision_operators()
transformers: Any = importlib.import_module("transformers")

VIT = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32, "image_size": 16,
       "patch_size": 8}  # fmt: skip
DINO = {name: value for name, value in VIT.items() if name != "intermediate_size"}
SWIN = {"image_size": 32, "patch_size": 2, "embed_dim": 16, "depths": [1, 1], "num_heads": [2, 2], "window_size": 4}
TEXT = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32, "vocab_size": 9}
SAM = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "mlp_dim": 32, "output_channels": 8,
       "image_size": 32, "patch_size": 8, "window_size": 3, "global_attn_indexes": [1]}  # fmt: skip
PROMPT = {"hidden_size": 8, "image_size": 32, "patch_size": 8}
DECODER = {"hidden_size": 8, "mlp_dim": 8, "num_attention_heads": 2, "iou_head_hidden_dim": 8, "num_hidden_layers": 1}


def made(cls: str, config: str, _options: Any = None, **settings: Any) -> Any:
    """A model of random weights, all of them: classes draw tables of positions as zeros."""
    torch.manual_seed(0)
    model = getattr(transformers, cls)(getattr(transformers, config)(**settings), **(_options or {})).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def saved(model: Any, folder: Path, processor: dict[str, Any] | None = None) -> Path:
    level = logging.getLogger("transformers").level
    model.save_pretrained(folder)
    logging.getLogger("transformers").setLevel(level)
    if processor is not None:
        (folder / "preprocessor_config.json").write_text(json.dumps(processor), encoding="utf-8")
    return folder


def loaded(folder: Path, **options: Any) -> LoadedModel:
    return load(resolve(str(folder)), **options)


MODELS: list[tuple[str, Callable[[], Any], Callable[[Any, Any], Any], str, int]] = [
    ("vit", lambda: made("ViTModel", "ViTConfig", **VIT), lambda m, x: m(x).pooler_output, "embedding", 10),
    ("vit_bare", lambda: made("ViTModel", "ViTConfig", {"add_pooling_layer": False}, **VIT),
     lambda m, x: m(x).last_hidden_state[:, 0], "embedding", 9),
    ("vit_c", lambda: made("ViTForImageClassification", "ViTConfig", num_labels=5, **VIT),
     lambda m, x: m(x).logits, "logits", 10),
    ("deit", lambda: made("DeiTForImageClassificationWithTeacher", "DeiTConfig", num_labels=5, **VIT),
     lambda m, x: m(x).logits, "logits", 11),
    ("beit", lambda: made("BeitForImageClassification", "BeitConfig", num_labels=5, use_relative_position_bias=True,
                          **VIT), lambda m, x: m(x).logits, "logits", 10),
    ("swin", lambda: made("SwinForImageClassification", "SwinConfig", num_labels=5, **SWIN),
     lambda m, x: m(x).logits, "logits", 19),
    ("swinv2", lambda: made("Swinv2Model", "Swinv2Config", **SWIN), lambda m, x: m(x).pooler_output, "embedding", 18),
    ("dinov2", lambda: made("Dinov2Model", "Dinov2Config", **DINO), lambda m, x: m(x).pooler_output, "embedding", 9),
    ("registers", lambda: made("Dinov2WithRegistersModel", "Dinov2WithRegistersConfig", **DINO),
     lambda m, x: m(x).pooler_output, "embedding", 9),
    ("dinov3", lambda: made("DINOv3ViTModel", "DINOv3ViTConfig", num_register_tokens=2, **VIT),
     lambda m, x: m(x).pooler_output, "embedding", 9),
    ("clip", lambda: made("CLIPModel", "CLIPConfig", text_config=TEXT, projection_dim=12,
                          vision_config={**VIT, "projection_dim": 12}),
     lambda m, x: m.visual_projection(m.vision_model(x).pooler_output), "embedding", 10),
    ("siglip", lambda: made("SiglipModel", "SiglipConfig", text_config=TEXT, vision_config=VIT),
     lambda m, x: m.vision_model(x).pooler_output, "embedding", 16),
    ("sam", lambda: made("SamModel", "SamConfig", vision_config=SAM, prompt_encoder_config=PROMPT,
                         mask_decoder_config=DECODER),
     lambda m, x: m.vision_encoder(x).last_hidden_state, "features", 19),
]  # fmt: skip


@pytest.mark.parametrize(
    ("make", "expected", "kind", "products"), [item[1:] for item in MODELS], ids=[m[0] for m in MODELS]
)
def test_a_folder_gives_the_tensor_of_its_class_and_all_its_products(
    make: Callable[[], Any], expected: Callable[[Any, Any], Any], kind: str, products: int, tmp_path: Path
) -> None:
    original = make()
    model = loaded(saved(original, tmp_path / "mine"))
    x = torch.randn(2, *model.preprocessing.size)
    with torch.no_grad():
        # nn.MultiheadAttention has a fused path of its own: a few float32 roundings
        torch.testing.assert_close(model.module(x), expected(original, x), rtol=1e-5, atol=1e-5)
    assert (model.name, model.origin, model.kind.name) == ("transformers:mine", "checkpoint", kind)
    assert model.outputs == (kind,)
    assert len(discover_products(model.module, x[:1]).found) == products


def test_features_are_the_tokens_and_without_a_head_is_what_the_head_reads(tmp_path: Path) -> None:
    vit = made("ViTForImageClassification", "ViTConfig", num_labels=5, **VIT)
    bare = loaded(saved(vit, tmp_path / "c"), num_classes=0)
    x = torch.randn(2, 3, 16, 16)
    assert bare.kind.name == "embedding"
    torch.testing.assert_close(vit.classifier(bare.module(x)), vit(x).logits)
    dino = made("Dinov2Model", "Dinov2Config", **DINO)
    tokens = loaded(saved(dino, tmp_path / "d"), kind="features")
    assert (tokens.kind.name, tokens.module(x).shape) == ("features", (2, 5, 16))


def test_an_export_has_no_mask_of_ones(tmp_path: Path) -> None:
    from ptq4vit_onnx.float_export.exporter import export_float

    model = loaded(saved(made("ViTModel", "ViTConfig", **VIT), tmp_path / "mine"))
    products = discover_products(model.module, torch.zeros(1, 3, 16, 16))
    nodes = {node.op_type for node in export_float(model, products.found, 1).graph.node}
    assert not nodes & {"Where", "Not", "And", "GreaterOrEqual"}


def test_random_weights_need_a_config_alone_and_are_those_of_the_seed(tmp_path: Path) -> None:
    folder = saved(made("ViTModel", "ViTConfig", **VIT), tmp_path / "mine")
    (folder / "model.safetensors").unlink()
    first, again, other = (loaded(folder, random_weights=True, seed=seed) for seed in (1, 1, 2))
    assert first.is_random
    assert first.fingerprint == again.fingerprint != other.fingerprint
    with pytest.raises(
        UserError, match=r"no weights for transformers:mine: .*; give --checkpoint FILE, or use --random"
    ):
        loaded(folder)


def test_a_checkpoint_replaces_the_weights_and_one_that_lacks_some_is_refused(tmp_path: Path) -> None:
    model = made("ViTForImageClassification", "ViTConfig", num_labels=5, **VIT)
    folder = saved(model, tmp_path / "mine")
    state = {name: value + 1 for name, value in model.state_dict().items()}
    torch.save(state, tmp_path / "other.pth")
    other = loaded(folder, checkpoint=tmp_path / "other.pth")
    assert other.origin == "checkpoint"
    assert other.fingerprint != loaded(folder).fingerprint
    torch.save(dict(list(state.items())[3:]), tmp_path / "part.pth")
    with pytest.raises(UserError, match=r"do not fit ViTForImageClassification: missing: .*; are they of another"):
        loaded(folder, checkpoint=tmp_path / "part.pth")


def test_half_precision_weights_are_loaded_as_float32(tmp_path: Path) -> None:
    model = loaded(saved(made("ViTModel", "ViTConfig", **VIT).half(), tmp_path / "mine"))
    assert {parameter.dtype for parameter in model.module.parameters()} == {torch.float32}


def test_a_name_of_the_hub_is_read_from_its_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants
    from transformers.utils import hub as cache  # type: ignore[import-not-found,unused-ignore]

    repository = tmp_path / "models--someone--vit"
    rule = {"image_processor_type": "ViTImageProcessor", "size": {"height": 16, "width": 16}, "image_std": [0.25] * 3}
    saved(made("ViTModel", "ViTConfig", **VIT), repository / "snapshots" / "abc", rule)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("abc", encoding="utf-8")
    monkeypatch.setattr(hub, "hub_reachable", lambda: False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(cache.constants, "HF_HUB_CACHE", str(tmp_path))
    model = load(resolve("transformers:someone/vit"))
    assert (model.name, model.origin, model.preprocessing.std) == (
        "transformers:someone/vit",
        "pretrained",
        (0.25,) * 3,
    )
    assert model.remarks == ()
    with pytest.raises(
        UserError, match=r"no config.json for transformers:someone/none: .*; connect to the network, or"
    ):
        load(resolve("transformers:someone/none"))


def test_another_image_size_interpolates_the_positions(tmp_path: Path) -> None:
    model = made("ViTModel", "ViTConfig", **VIT)
    larger = loaded(saved(model, tmp_path / "mine"), img_size=(24, 32))
    x = torch.randn(1, 3, 24, 32)
    assert larger.preprocessing.size == (3, 24, 32)
    torch.testing.assert_close(larger.module(x), model(x, interpolate_pos_encoding=True).pooler_output)


@pytest.mark.parametrize(
    ("make", "options", "said"),
    [
        (lambda: made("BertModel", "BertConfig", **TEXT), {}, "mine is a bert, whose input is not images alone; give"),
        (lambda: made("ViTModel", "ViTConfig", **VIT), {"num_classes": 5}, "--num-classes 5 does not fit .*; leave"),
        (lambda: made("ViTModel", "ViTConfig", **VIT), {"num_classes": 0}, "--num-classes 0 does not fit .*; leave"),
        (lambda: made("ViTModel", "ViTConfig", **VIT), {"img_size": (20, 32)},
         "--img-size 20 x 32 does not fit .*: its patches are of 8 x 8 pixels; give multiples"),
    ],
)  # fmt: skip
def test_what_cannot_be_taken_is_refused_with_a_way_on(make: Any, options: Any, said: str, tmp_path: Path) -> None:
    folder = saved(make(), tmp_path / "mine")
    with pytest.raises(UserError, match=said) as caught:
        loaded(folder, **options)
    assert "\n" not in str(caught.value)


def test_addresses_are_checked_without_importing_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"no config.json in .*; give a folder"):
        resolve(f"transformers:{tmp_path}")
    with pytest.raises(UserError, match=r"no folder at './none'; give one with a config.json, or a name of the hub"):
        resolve("transformers:./none")
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(UserError, match=r"needs a package; install ptq4vit-onnx\[transformers\]"):
        resolve("transformers:google/vit")


def test_a_folder_of_timm_is_timms(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"architecture": "vit_tiny_patch16_224"}), encoding="utf-8")
    assert resolve(str(tmp_path)).timm == f"local-dir:{tmp_path}"
    (tmp_path / "config.json").write_text("not JSON", encoding="utf-8")
    with pytest.raises(
        UserError, match=r"config .*config.json is not JSON: .*; expected what timm or transformers writes"
    ):
        resolve(str(tmp_path))


@pytest.mark.parametrize(
    "config", ['{"model_type": "vit", "hidden_size": "wide"}', '{"model_type": "none"}', "[]", "{", '{"a": 1}']
)
def test_a_config_that_cannot_be_used_is_named_and_not_looked_for_on_the_network(config: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(config, encoding="utf-8")
    with pytest.raises(UserError, match=r"cannot use .*config.json: .*; expected one of a vision model") as caught:
        load(resolve(f"transformers:{tmp_path}"), random_weights=True)
    assert "network" not in str(caught.value) and "\n" not in str(caught.value)
