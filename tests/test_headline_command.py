"""`ptq4vit-onnx export --model deit_b --bits 8`, as it is written: weights from a hub cache, no data, no network."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from ptq4vit_onnx.cli import main as cli
from ptq4vit_onnx.images.builtin import photos_of
from ptq4vit_onnx.model_loading import hub
from ptq4vit_onnx.model_loading.timm_compat import import_timm
from ptq4vit_onnx.plan.plan_json import read_plan

COMMAND = "ptq4vit-onnx export --model deit_b --bits 8"
NAME = "deit_base_patch16_224"
TINY = {"patch_size": 16, "embed_dim": 32, "depth": 2, "num_heads": 2}  # DeiT-B's own weights are 346 MB


@pytest.fixture
def tiny_deit(monkeypatch: pytest.MonkeyPatch) -> None:
    """timm builds a tiny model under DeiT-B's name, with everything else that it knows of DeiT-B."""
    import_timm()
    from timm.models import _registry, deit

    def make(pretrained: bool = False, **options: Any) -> Any:
        return deit._create_deit(NAME, pretrained=pretrained, **TINY, **options)

    monkeypatch.setitem(_registry._model_entrypoints, NAME, make)


@pytest.fixture
def hub_cache(tiny_deit: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache as the hub's client leaves it, with weights of the tiny model; the hub itself does not answer."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(hub, "hub_reachable", lambda: False)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        state = import_timm().create_model(NAME, pretrained=False).state_dict()
    repository, commit = tmp_path / "cache" / f"models--timm--{NAME}.fb_in1k", "0123456789abcdef" * 2 + "01234567"
    snapshot = repository / "snapshots" / commit
    for folder in (snapshot, repository / "refs"):
        folder.mkdir(parents=True)
    (repository / "refs" / "main").write_text(commit)
    save_file({name: value + 0.05 * torch.sin(torch.arange(value.numel())).reshape(value.shape)
               for name, value in state.items()}, snapshot / "model.safetensors")  # fmt: skip
    return repository


@pytest.mark.usefixtures("hub_cache")
def test_the_headline_command_needs_no_data_and_says_what_it_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    assert cli.main(shlex.split(COMMAND)[1:]) == 0
    table = capsys.readouterr().out
    report = json.loads((work / "deit_b_w8a8" / "report.json").read_text())
    assert (report["weights_from"], report["synthetic_images"]) == ("pretrained", False)
    assert report["options"]["images_from"] == read_plan(work / "deit_b_w8a8" / "plan.json").options["images_from"]
    assert report["options"]["images_from"] == "built-in photos"
    assert report["end_to_end"]["passed"] and all(site["exact"] for site in report["site_parity"])
    measured = report["measured_images"]
    assert (measured["count"], measured["held_out"]) == (64, True)
    assert all(name in measured["source"] for name in photos_of("held out", 0))
    for said in (report["calibration_images"]["sentence"], report["measured_on"]):
        assert said in table
    assert all(name in report["calibration_images"]["sentence"] for name in photos_of("calibration", 0))


@pytest.mark.usefixtures("tiny_deit")
def test_without_weights_in_the_cache_the_headline_command_names_the_ways_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from huggingface_hub import constants

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "empty"))
    monkeypatch.setattr(hub, "hub_reachable", lambda: False)
    assert cli.main(shlex.split(COMMAND)[1:]) == 2
    assert "no weights for deit_b: the hub did not serve" in capsys.readouterr().err
    assert [entry.name for entry in tmp_path.iterdir() if entry.name != "empty"] == []
