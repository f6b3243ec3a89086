"""Models by their names: the hub that does not answer, random weights, what a loaded model is like."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ptq4vit_onnx.errors import UserError
from ptq4vit_onnx.model_loading import hub, timm_compat, timm_models
from ptq4vit_onnx.model_loading.load import channels_of, fingerprint_of, load, resolve
from ptq4vit_onnx.model_loading.timm_compat import declare_missing_torchvision_operators, import_timm
from ptq4vit_onnx.models.specs import DIGITS_FOLDER, SPECS, ModelSpec

WEIGHTS = DIGITS_FOLDER / "vit_digits.safetensors"
TINY = ModelSpec("tiny", "vit_tiny_patch16_224", 224, "a small one")


@pytest.mark.parametrize(
    ("name", "channels"),
    [("deit_b", 3), ("vit_small_patch16_224.dino", 3), ("vit_small_patch16_224.no_such_tag", None),
     ("hf-hub:someone/something", None), ("vit_digits", None)],
)  # fmt: skip
def test_channels_are_known_before_the_weights_where_timm_knows_the_model(name: str, channels: int | None) -> None:
    assert channels_of(resolve(name)) == channels


@pytest.mark.parametrize(
    ("name", "size", "said"),
    [
        ("vit_digits", (64, 64), "vit_digits takes images of 32 x 32 pixels only; leave --img-size out"),
        ("resnet18", (256, 256), "timm cannot build 'resnet18' for images of 256 x 256 pixels: .*'img_size'; leave"),
        ("vit_tiny_patch16_224", (225, 240), "225 x 240 pixels: its patches are of 16 x 16 pixels, expected multiples"),
        ("crossvit_tiny_240", (320, 320), "'crossvit_tiny_240' for images of 320 x 320 pixels: .*; leave --img-size"),
    ],
)
def test_a_model_that_cannot_take_the_image_size_is_refused_before_weights_are_fetched(
    name: str, size: tuple[int, int], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fetch() -> None:
        raise AssertionError("the hub was asked")

    monkeypatch.setattr(timm_models, "preferring_cache", fetch)
    with pytest.raises(UserError, match=said) as caught:
        load(resolve(name), img_size=size)
    assert "\n" not in str(caught.value)


def test_pretrained_weights_for_another_image_size_are_said_to_be_resampled(monkeypatch: pytest.MonkeyPatch) -> None:
    timm = import_timm()
    create, asked = timm.create_model, []

    def served(name: str, pretrained: bool, **options: Any) -> Any:
        asked.append((pretrained, options))
        return create(name, pretrained=False, **options)

    monkeypatch.setattr(hub, "hub_reachable", lambda: True)
    monkeypatch.setattr(timm, "create_model", served)
    model = load(TINY, img_size=(160, 160))
    assert asked[-1] == (True, {"img_size": (160, 160)})
    assert (model.origin, model.preprocessing.size) == ("pretrained", (3, 160, 160))
    assert model.resampled.startswith("position table resampled from 14 x 14 to 10 x 10; --img-size 224 ")
    assert load(TINY, random_weights=True, img_size=(160, 160)).resampled == "", "nothing was trained"


def pretrained_refusal(monkeypatch: pytest.MonkeyPatch, error: Exception, reachable: bool = False) -> str:
    from huggingface_hub import constants

    client = logging.getLogger("huggingface_hub")
    level = client.level
    seen = []

    def fail(*_: Any, **__: Any) -> Any:
        seen.append((constants.HF_HUB_OFFLINE, client.level))
        raise error

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(hub, "hub_reachable", lambda: reachable)
    monkeypatch.setattr(import_timm(), "create_model", fail)
    with pytest.raises(UserError) as caught:
        load(resolve("deit_t"))
    assert seen == [(not reachable, logging.ERROR)]
    assert (constants.HF_HUB_OFFLINE, client.level) == (False, level)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_offline_without_weights_names_all_three_ways_on(monkeypatch: pytest.MonkeyPatch) -> None:
    message = pretrained_refusal(monkeypatch, FileNotFoundError("nothing\nin the cache"))
    assert message.startswith("no weights for deit_t: the hub did not serve deit_tiny_patch16_224.fb_in1k")
    for way in ("connect to the network", "--checkpoint FILE", "--random-weights"):
        assert way in message


def test_a_tag_timm_does_not_know_is_not_blamed_on_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    message = pretrained_refusal(monkeypatch, RuntimeError("Invalid pretrained tag"), reachable=True)
    assert "Invalid pretrained tag" in message
    assert "network" not in message


def test_a_hub_that_refuses_the_connection_is_not_reachable(monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    assert not hub.hub_reachable()
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.invalid:3128")
    assert hub.hub_reachable()


def test_random_weights_are_those_of_the_seed_and_leave_torchs_own_generator_alone() -> None:
    spec = resolve("vit_digits")
    before = torch.random.get_rng_state()
    first, again, other = (load(spec, random_weights=True, seed=seed) for seed in (1, 1, 2))
    assert first.fingerprint == again.fingerprint != other.fingerprint
    assert first.is_random
    assert torch.equal(torch.random.get_rng_state(), before)


def test_checkpoint_and_random_weights_exclude_each_other() -> None:
    with pytest.raises(UserError, match="exclude each other"):
        load(resolve("vit_digits"), WEIGHTS, random_weights=True)


def test_the_fingerprint_is_of_names_shapes_and_values(load_model: Callable[[str], Any]) -> None:
    module = load(resolve("vit_digits")).module
    original = fingerprint_of(module)
    assert original == load_model("vit_digits").fingerprint
    bias = module.get_parameter("norm.bias")
    bias[0] += 1e-3
    assert fingerprint_of(module) != original


def test_loaded_models_are_frozen_in_eval_mode(load_model: Callable[[str], Any]) -> None:
    for name in ("vit_digits", "swin_digits"):
        module = load_model(name).module
        assert not any(part.training for part in module.modules())
        assert not any(parameter.requires_grad for parameter in module.parameters())


def test_every_spec_names_an_architecture_and_tag_that_timm_has() -> None:
    timm = import_timm()
    architectures = timm_models.timm_architectures()
    for spec in SPECS:
        if not spec.embedded:
            architecture, _, tag = spec.timm.partition(".")
            assert architecture in architectures
            config = timm.models.get_pretrained_cfg(spec.timm)
            assert config is not None and config.tag == tag
            assert config.input_size == (3, spec.size, spec.size)


def test_names_read_from_timms_files_are_those_it_registers() -> None:
    timm = import_timm()
    read, registered = timm_models.timm_architectures(), set(timm.list_models())
    assert registered <= read


def test_an_architecture_of_timm_resolves_with_and_without_a_tag() -> None:
    assert resolve("vit_small_patch16_224").timm == "vit_small_patch16_224"
    assert resolve("vit_small_patch16_224.dino").timm == "vit_small_patch16_224.dino"
    assert resolve("hf-hub:someone/something").timm == "hf-hub:someone/something"


def test_a_good_torchvision_needs_no_declarations() -> None:
    import_timm()
    assert declare_missing_torchvision_operators() == []


@pytest.mark.parametrize("name", ["_C", "_C_stable"])  # of torchvision up to 0.28, and from 0.29 on
def test_the_binary_of_any_torchvision_is_loaded_before_operators_count_as_missing(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Declared as well, an operator of the binary would end the process when torchvision registers it."""
    binary = tmp_path / f"{name}{importlib.machinery.EXTENSION_SUFFIXES[-1]}"
    binary.touch()
    folder = importlib.machinery.ModuleSpec("torchvision", None, is_package=True)
    folder.submodule_search_locations = [str(tmp_path)]
    loaded: list[str] = []
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: folder)
    monkeypatch.setattr(torch.ops, "load_library", loaded.append)
    timm_compat._load_torchvision_binary()
    assert loaded == [str(binary)]
