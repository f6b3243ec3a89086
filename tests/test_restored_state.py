"""Nothing that a caller could notice is changed for good: torch, logging, warnings, the environment, the module."""

from __future__ import annotations

import hashlib
import logging
import os
import random
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import numpy as np
import pytest
import torch
from torch import Tensor, nn

import ptq4vit_onnx
from ptq4vit_onnx.calibration.calibrate import calibrate
from ptq4vit_onnx.errors import UserError
from ptq4vit_onnx.float_export.exporter import export_float
from ptq4vit_onnx.images.preprocessing import Preprocessing
from ptq4vit_onnx.model_loading.load import LoadedModel
from ptq4vit_onnx.model_loading.timm_compat import import_timm
from ptq4vit_onnx.network.channel_folding import foldable, folded
from ptq4vit_onnx.network.discovery import as_deployed, discover, watching
from ptq4vit_onnx.network.tape import record
from ptq4vit_onnx.plan.channel_fold import Channels
from ptq4vit_onnx.plan.options import Options
from ptq4vit_onnx.plan.scale_plan import ScalePlan
from ptq4vit_onnx.simulation.fake import simulate

LOGGERS = ("", "huggingface_hub", "onnxruntime", "onnxscript", "ptq4vit_onnx", "timm", "torch", "torch._dynamo",
           "torch.export", "torch.fx", "torch.onnx")  # fmt: skip


def state_of_process() -> dict[str, Any]:
    loggers = [logging.getLogger(name) for name in LOGGERS]
    return {
        "threads": (torch.get_num_threads(), torch.get_num_interop_threads()),
        "modes": (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.get_default_dtype()),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "generators": (torch.get_rng_state().tolist(), random.getstate(), repr(np.random.get_state())),
        "levels": [(logger.level, logger.disabled, logger.propagate) for logger in loggers],
        "handlers": [list(logger.handlers) for logger in loggers],
        "disable": logging.root.manager.disable,
        "environment": dict(os.environ),
        "warnings": list(warnings.filters),
        "streams": (sys.stdout, sys.stderr),
        "folder": Path.cwd(),
        "hub": {name: value for name, value in vars(huggingface_hub.constants).items() if name.isupper()},
    }


def state_of_module(model: nn.Module) -> dict[str, Any]:
    """Flags, hooks and instance attributes of all modules; identity, place and bytes of all parameters and buffers."""
    hooks = [name for name in vars(model) if name.endswith(("_hooks", "_with_kwargs", "_always_called"))]
    assert "_forward_hooks" in hooks and "_forward_pre_hooks" in hooks
    tensors = [*model.named_parameters(), *model.named_buffers()]
    return {
        "attributes": {path: sorted(vars(module)) for path, module in model.named_modules()},
        "training": {path: module.training for path, module in model.named_modules()},
        "fused": {path: getattr(module, "fused_attn", None) for path, module in model.named_modules()},
        "hooks": {(path, name): len(vars(part)[name]) for path, part in model.named_modules() for name in hooks},
        "tensors": {name: _described(tensor) for name, tensor in tensors},
    }


def _described(tensor: Tensor) -> tuple[Any, ...]:
    digest = hashlib.sha256(tensor.detach().numpy().tobytes()).hexdigest()
    return id(tensor), tensor.data_ptr(), tensor.stride(), digest, tensor.requires_grad, tensor.grad is None


def differences(before: dict[str, Any], after: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    return {name: (before[name], after[name]) for name in before if before[name] != after[name]}


@dataclass(frozen=True)
class Subject:
    """A module as a user trains it: with dropout, fused attention and gradients; some of it frozen, some in eval."""

    module: nn.Module
    images: Any
    loaded: LoadedModel


@pytest.fixture
def subject() -> Subject:
    import_timm()
    from timm.models.vision_transformer import VisionTransformer

    torch.manual_seed(0)
    module: nn.Module = VisionTransformer(
        img_size=32, patch_size=8, in_chans=1, num_classes=5, embed_dim=32, depth=2, num_heads=2, drop_rate=0.3,
        drop_path_rate=0.3,
    )  # fmt: skip
    module.train()
    module.get_submodule("blocks.1").eval()
    module.get_parameter("blocks.0.mlp.fc1.weight").requires_grad_(False)
    for name, parameter in module.named_parameters():
        if name.endswith("bias"):
            nn.init.normal_(parameter, std=0.1)
    assert getattr(module.get_submodule("blocks.0.attn"), "fused_attn") is True  # noqa: B009 - as in products
    images = np.random.default_rng(0).standard_normal((4, 1, 32, 32), np.float32)
    form = Preprocessing((1, 32, 32), 1.0, "squash", "bilinear", (0.5,), (0.5,))
    return Subject(module, images, LoadedModel("tiny", module, form, "random", "", 5))


@pytest.fixture
def plan(subject: Subject) -> ScalePlan:
    """Of the subject, with channels folded into a LayerNorm and a linear."""
    found = calibrate(record(subject.module, subject.images), Options(candidates=3))
    channels = Channels("blocks.0.norm1", (0.5,) * 32, (0.25,) * 32)
    found["blocks.0.attn.qkv"] = replace(found["blocks.0.attn.qkv"], channels=channels)
    return ScalePlan("tiny", "", "", {}, {}, found)


@contextmanager
def unchanged(subject: Subject) -> Iterator[None]:
    """The process and the subject are at the end what they were at the beginning, whatever was raised in between."""
    process, module = state_of_process(), state_of_module(subject.module)
    yield
    assert differences(process, state_of_process()) == {}
    assert differences(module, state_of_module(subject.module)) == {}


class HalfwayError(Exception):
    pass


def fails_at(items: Iterable[Any], _title: str) -> Iterator[Any]:
    """The progress of a loop that fails at its second step."""
    for index, item in enumerate(items):
        if index:
            raise HalfwayError
        yield item


@pytest.fixture
def fail_in(monkeypatch: pytest.MonkeyPatch) -> Callable[[nn.Module, int], None]:
    """(module, n) -> the n-th call of the module from now on raises, and no other."""

    def arrange(module: nn.Module, number: int) -> None:
        calls, original = count(1), type(module).forward

        def forward(self: nn.Module, *args: Any) -> Any:
            if self is module and next(calls) == number:
                raise HalfwayError
            return original(self, *args)

        monkeypatch.setattr(type(module), "forward", forward)

    return arrange


def test_discovering_and_recording_leave_a_module_as_it_was(subject: Subject) -> None:
    with unchanged(subject):
        sites = discover(subject.module, subject.images[:1])
        assert foldable(subject.module, sites, torch.from_numpy(subject.images[:1]))
        assert len(list(record(subject.module, subject.images, batch=2))) == len(sites)


def test_dropout_and_the_mode_of_the_module_change_no_recording(subject: Subject) -> None:
    trained = {item.site.name: item for item in record(subject.module, subject.images)}
    subject.module.eval().requires_grad_(False)
    for recording in record(subject.module, subject.images):
        assert torch.equal(recording.grad, trained[recording.site.name].grad)
        assert torch.equal(recording.lhs, trained[recording.site.name].lhs)


def test_while_a_recording_is_held_the_module_is_as_it_was(subject: Subject) -> None:
    before = state_of_module(subject.module)
    for _ in record(subject.module, subject.images):
        assert differences(before, state_of_module(subject.module)) == {}


@pytest.mark.parametrize("call", range(1, 9))  # discovery, blocks, folding twice, two batches, two replays
def test_recording_that_fails_leaves_a_module_as_it_was(call: int, subject: Subject, fail_in: Any) -> None:
    with unchanged(subject):
        fail_in(subject.module.get_submodule("blocks.1.mlp.fc2"), call)
        with pytest.raises(HalfwayError):
            list(record(subject.module, subject.images, batch=2))


def test_recordings_that_are_not_asked_for_leave_a_module_as_it_was(subject: Subject) -> None:
    with unchanged(subject):
        recordings = record(subject.module, subject.images)
        next(recordings)
        del recordings


def test_simulating_leaves_a_module_as_it_was(subject: Subject, plan: ScalePlan) -> None:
    with unchanged(subject):
        assert simulate(subject.module, None, subject.images).shape == (4, 5)
        assert simulate(subject.module, plan, subject.images).shape == (4, 5)


@pytest.mark.parametrize("planned", [False, True])
def test_simulating_that_fails_leaves_a_module_as_it_was(
    planned: bool, subject: Subject, plan: ScalePlan, fail_in: Any
) -> None:
    with unchanged(subject):
        with pytest.raises(HalfwayError):
            simulate(subject.module, plan if planned else None, subject.images, batch=2, progress=fails_at)
        fail_in(subject.module.get_submodule("blocks.1.mlp.act"), 2)
        with pytest.raises(HalfwayError):
            simulate(subject.module, plan if planned else None, subject.images, batch=2)


def test_folding_changes_a_module_for_a_while_also_nested(subject: Subject, plan: ScalePlan) -> None:
    with unchanged(subject):
        weight = subject.module.get_parameter("blocks.0.attn.qkv.weight")
        own = weight.detach().clone()
        with pytest.raises(HalfwayError), folded(subject.module, plan):
            once = weight.detach().clone()
            assert not torch.equal(once, own)
            with folded(subject.module, plan):
                assert not torch.equal(weight, once)
            assert torch.equal(weight, once)
            raise HalfwayError


def test_folding_that_fails_on_its_way_in_undoes_what_it_did(subject: Subject, plan: ScalePlan) -> None:
    with unchanged(subject):
        sites = {**plan.sites, "absent": plan.sites["blocks.0.attn.qkv"]}  # after the others
        with pytest.raises(AttributeError, match="absent"), folded(subject.module, sites):
            pytest.fail("nothing is to be computed")


def test_exporting_leaves_a_module_as_it_was(subject: Subject) -> None:
    with unchanged(subject):
        export_float(subject.loaded, discover(subject.module, subject.images[:1]))


def test_exporting_that_fails_leaves_a_module_as_it_was(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Any:
        raise HalfwayError

    sites = discover(subject.module, subject.images[:1])
    monkeypatch.setattr(type(subject.module), "forward_head", fail)
    with unchanged(subject), pytest.raises(UserError, match="torch cannot export tiny to ONNX"):
        export_float(subject.loaded, sites)


def test_watching_that_fails_removes_its_hooks(subject: Subject) -> None:
    def refuse(_: Any) -> Tensor:
        raise HalfwayError

    with unchanged(subject), pytest.raises(HalfwayError), watching(subject.module, refuse):
        subject.module(torch.from_numpy(subject.images))


class Fused(nn.Module):
    """A flag of the class, as some of timm's modules have it, and a `train` that does more than set flags."""

    fused_attn = True

    def train(self, mode: bool = True) -> Fused:
        assert mode, "a module that is not to be told"
        return self


def test_flags_of_the_class_and_an_own_way_of_training_are_left_alone() -> None:
    model: Any = nn.Sequential(Fused())
    before = state_of_module(model)
    with as_deployed(model), as_deployed(model):
        assert (model[0].fused_attn, model[0].training) == (False, False)
    assert differences(before, state_of_module(model)) == {}
    assert "fused_attn" not in vars(model[0])


@pytest.fixture(scope="module")
def libraries() -> None:
    """Importing a library may add filters and loggers of its own, once: that is not an export's doing."""
    import_timm()
    for name in ("onnxscript", "torch.onnx", "torch._dynamo", "torch.export", "onnx_graphsurgeon"):
        __import__(name)


@pytest.mark.parametrize("outcome", ["done", "refused", "failed"])
def test_an_export_in_python_leaves_the_process_as_it_was(
    outcome: str, tmp_path: Path, libraries: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OMP_WAIT_POLICY", "TORCHINDUCTOR_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    before = state_of_process()
    if outcome == "done":
        ptq4vit_onnx.export("vit_digits", candidates=4, images=4)
    elif outcome == "refused":
        with pytest.raises(UserError, match="no checkpoint"):
            ptq4vit_onnx.export("vit_digits", checkpoint="absent.pth")
    else:
        with pytest.raises(HalfwayError):
            ptq4vit_onnx.export("vit_digits", candidates=4, images=4, progress=fails_at)
    assert differences(before, state_of_process()) == {}
