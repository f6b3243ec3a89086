"""From a name the user types to a torch model with weights: timm's hub, a checkpoint, ours, or random."""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import os
import re
import socket
import sys
import urllib.parse
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ptq4vit_onnx.errors import UserError
from ptq4vit_onnx.images.preprocessing import Preprocessing
from ptq4vit_onnx.models.specs import ModelSpec, find, unknown_model
from ptq4vit_onnx.network.timm_compat import import_timm

if TYPE_CHECKING:
    from torch import nn

logger = logging.getLogger(__name__)
Origin = Literal["pretrained", "checkpoint", "embedded", "random"]
_HUB_TIMEOUT_SECONDS = 5.0


@dataclass(frozen=True)
class LoadedModel:
    """A model ready to be calibrated: unfused, in eval mode, with what identifies it."""

    name: str
    module: nn.Module
    preprocessing: Preprocessing
    origin: Origin
    fingerprint: str
    classes: int

    @property
    def is_random(self) -> bool:
        return self.origin == "random"


def resolve(name: str) -> ModelSpec:
    """The spec of a name, without importing torch: ours, a hub address, or what timm registers."""
    spec = find(name)
    if spec is not None:
        return spec
    if name.startswith(("hf-hub:", "hf_hub:", "local-dir:")):
        return ModelSpec(name, name, 0, name)
    architectures = timm_architectures()
    if name.partition(".")[0] in architectures:
        return ModelSpec(name, name, 0, name)
    raise unknown_model(name, sorted(architectures))


def timm_architectures() -> set[str]:
    """The names timm registers, read from its source files: importing timm takes seconds."""
    spec = importlib.util.find_spec("timm")
    folders = list(spec.submodule_search_locations or []) if spec else []
    pattern = re.compile(r"^@register_model\s+def (\w+)\(", re.MULTILINE)
    files = [file for folder in folders for file in (Path(folder) / "models").glob("*.py")]
    return {name for file in files for name in pattern.findall(file.read_text(encoding="utf-8"))}


def load(spec: ModelSpec, checkpoint: Path | None = None, random_weights: bool = False, seed: int = 0) -> LoadedModel:
    """Build the model and give it weights; a way that cannot serve ends in one line that says what can."""
    if checkpoint is not None and random_weights:
        raise UserError("--checkpoint and --random-weights exclude each other; give one of them")
    if checkpoint is not None:
        module, origin = _from_checkpoint(spec, checkpoint), "checkpoint"
    elif random_weights:
        module, origin = _random(spec, seed), "random"
    elif spec.checkpoint is not None:
        module, origin = _from_checkpoint(spec, spec.checkpoint), "embedded"
    else:
        module, origin = _pretrained(spec), "pretrained"
    return _finish(spec, module, origin)  # type: ignore[arg-type]


def _finish(spec: ModelSpec, module: nn.Module, origin: Origin) -> LoadedModel:
    from ptq4vit_onnx.network.products import unfuse_attention

    module.eval().requires_grad_(False)
    unfuse_attention(module)
    classes = int(getattr(module, "num_classes", 0))
    if classes <= 0:
        raise UserError(f"{spec.name} has no classifier head; only image classification models can be quantised")
    return LoadedModel(spec.name, module, preprocessing_of(spec, module), origin, fingerprint_of(module), classes)


def build(spec: ModelSpec, classes: int | None = None) -> nn.Module:
    """The architecture, with whatever weights its constructor draws."""
    timm = import_timm()
    if spec.embedded:
        from ptq4vit_onnx.models import digits_arch

        if spec.name == "vit_digits":
            from timm.models.vision_transformer import VisionTransformer

            return VisionTransformer(**digits_arch.VIT_DIGITS)  # type: ignore[no-any-return]
        from timm.models.swin_transformer import SwinTransformer

        return SwinTransformer(**digits_arch.SWIN_DIGITS)  # type: ignore[no-any-return]
    options = {} if classes is None else {"num_classes": classes}
    if ":" in spec.timm:  # an hf-hub address: its configuration comes from the hub
        _prefer_cache()
    try:
        return timm.create_model(spec.timm, pretrained=False, **options)  # type: ignore[no-any-return]
    except (RuntimeError, OSError, ValueError, TypeError) as error:
        raise UserError(f"timm cannot build {spec.timm!r}: {_one_line(error)}") from error


def _random(spec: ModelSpec, seed: int) -> nn.Module:
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build(spec)


def _pretrained(spec: ModelSpec) -> nn.Module:
    _prefer_cache()
    timm = import_timm()
    try:
        return timm.create_model(spec.timm, pretrained=True)  # type: ignore[no-any-return]
    except (OSError, ValueError) as error:
        raise UserError(
            f"no weights for {spec.name}: the hub did not serve {spec.timm} ({type(error).__name__}); "
            "connect to the network, give --checkpoint FILE, or use --random-weights for a dry run"
        ) from error
    except RuntimeError as error:  # timm's answer to a tag it does not know, or to one without weights
        raise UserError(
            f"no weights for {spec.name}: {_one_line(error)}; give --checkpoint FILE, or use "
            "--random-weights for a dry run"
        ) from error


def _prefer_cache() -> None:
    """Without a hub, take at once what was downloaded before: the client would try for a minute."""
    from huggingface_hub import constants

    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    if not _hub_reachable():
        constants.HF_HUB_OFFLINE = True


def _hub_reachable() -> bool:
    """Whether the hub answers; behind a proxy that cannot be told from here, so it is assumed."""
    if any(os.environ.get(name) for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")):
        return True
    from huggingface_hub import constants

    url = urllib.parse.urlsplit(constants.ENDPOINT)
    try:
        port = url.port or (443 if url.scheme == "https" else 80)
        socket.create_connection((url.hostname or "", port), _HUB_TIMEOUT_SECONDS).close()
    except OSError:
        return False
    return True


def _from_checkpoint(spec: ModelSpec, path: Path) -> nn.Module:
    state = read_state(path)
    module = build(spec, _classes_in(state))
    filter_state = getattr(sys.modules[type(module).__module__], "checkpoint_filter_fn", None)
    try:
        state = filter_state(state, module) if filter_state else state
    except (LookupError, AttributeError, RuntimeError, ValueError, TypeError, AssertionError) as error:
        raise UserError(f"checkpoint {path} does not fit {spec.name}: {_one_line(error)}") from error
    _require_match(spec, path, module, state)
    module.load_state_dict(state)
    broken = [key for key, value in module.state_dict().items() if not value.isfinite().all()]
    if broken:
        raise UserError(f"checkpoint {path} holds NaN or infinite weights: {_listed('in', broken)}")
    return module


def read_state(path: Path) -> dict[str, Any]:
    """A flat state dict from .safetensors, .pth, .pt or .bin; pickled code is never run."""
    import pickle

    import torch
    from safetensors.torch import load_file

    if not path.is_file():
        raise UserError(f"no checkpoint at {path}; give a .safetensors, .pth, .pt or .bin file")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's advice about pickles is not for our user
            is_safe = path.suffix.lower() == ".safetensors"
            data = load_file(path) if is_safe else torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise UserError(
            f"checkpoint {path} is not a plain file of tensors: loading it would run code from it or it is "
            "damaged; save the state dict alone, best as .safetensors"
        ) from error
    except Exception as error:  # a damaged file makes the readers raise nearly anything
        raise UserError(f"cannot read checkpoint {path}: {_one_line(error)}; is it complete?") from error
    return _unnest(path, data)


def _unnest(path: Path, data: Any) -> dict[str, Any]:
    """The tensors of a checkpoint, from under the usual wrappers; EMA weights first, as timm does."""
    import torch

    for key in ("state_dict_ema", "model_ema", "state_dict", "model"):
        if isinstance(data, dict) and isinstance(data.get(key), dict):
            return _unnest(path, data[key])
    tensors = _items(data, torch.Tensor)
    if not tensors:
        raise UserError(
            f"checkpoint {path} holds no state dict; expected tensors by name, at the top or under "
            "state_dict, model or model_ema"
        )
    prefixes = ("module.", "_orig_mod.")
    clean = {}
    for key, value in tensors.items():
        while key.startswith(prefixes):
            key = key.partition(".")[2]
        clean[key] = value
    return clean


def _items(data: Any, kind: type) -> dict[str, Any]:
    """The named values of one kind; counters, settings and the like lie next to the weights in some files."""
    entries = data.items() if isinstance(data, dict) else ()
    return {key: value for key, value in entries if isinstance(key, str) and isinstance(value, kind)}


def _classes_in(state: dict[str, Any]) -> int | None:
    """How many classes the checkpoint's head has, so that fine-tuned models load without another option."""
    for key in ("head.weight", "head.fc.weight"):
        if key in state and getattr(state[key], "ndim", 0) == 2:
            return int(state[key].shape[0])
    return None


def _require_match(spec: ModelSpec, path: Path, module: nn.Module, state: dict[str, Any]) -> None:
    expected = module.state_dict()
    problems = [
        _listed("missing", [key for key in expected if key not in state]),
        _listed("unexpected", [key for key in state if key not in expected]),
        _listed("of another shape", [
            f"{key} {list(state[key].shape)} instead of {list(expected[key].shape)}"
            for key in expected
            if key in state and state[key].shape != expected[key].shape
        ]),
    ]  # fmt: skip
    found = [problem for problem in problems if problem]
    if found:
        raise UserError(
            f"checkpoint {path} does not fit {spec.name}: {'; '.join(found)}; "
            "is it of another architecture? (ptq4vit-onnx models)"
        )


def _listed(what: str, items: list[str]) -> str:
    shown = ", ".join(items[:3]) + (f" and {len(items) - 3} more" if len(items) > 3 else "")
    return f"{what}: {shown}" if items else ""


def preprocessing_of(spec: ModelSpec, module: nn.Module) -> Preprocessing:
    """timm's evaluation transform of this very model."""
    if spec.embedded:
        from ptq4vit_onnx.models import digits_arch as digits

        return Preprocessing(
            (digits.IN_CHANNELS, digits.IMAGE_SIZE, digits.IMAGE_SIZE), 1.0, "squash", digits.INTERPOLATION,
            (digits.DIGITS_MEAN,), (digits.DIGITS_STD,),
        )  # fmt: skip
    from timm.data import resolve_model_data_config

    config = resolve_model_data_config(module)
    return Preprocessing.from_data({**config, "size": config["input_size"]})


def fingerprint_of(module: nn.Module) -> str:
    """SHA-256 over names, shapes and values of all weights."""
    digest = hashlib.sha256()
    for key, value in sorted(module.state_dict().items()):
        digest.update(f"{key} {list(value.shape)} {value.dtype}".encode())
        digest.update(value.contiguous().numpy().tobytes())
    return digest.hexdigest()


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
