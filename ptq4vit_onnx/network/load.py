"""From the name of a model to a torch module with weights: from timm's hub, a checkpoint, the package, or random."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import socket
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ptq4vit_onnx.errors import UserError, one_line
from ptq4vit_onnx.images.preprocessing import Preprocessing
from ptq4vit_onnx.models.specs import ModelSpec, find, unknown_model
from ptq4vit_onnx.network.checkpoints import classes_in, load_state, read_state
from ptq4vit_onnx.network.timm_compat import import_timm
from ptq4vit_onnx.runtime.quiet import quiet_logging

if TYPE_CHECKING:
    from torch import nn

Origin = Literal["pretrained", "checkpoint", "embedded", "random"]
_HUB_TIMEOUT_SECONDS = 5.0


@dataclass(frozen=True)
class LoadedModel:
    """A model that is ready to be calibrated: unfused, in eval mode. fingerprint: identifies its weights."""

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


def channels_of(spec: ModelSpec) -> int | None:
    """How many channels the model's images have, without its weights; None where only the hub knows."""
    config = _timm_config(spec)
    return None if config is None else int(config.input_size[0])


def _timm_config(spec: ModelSpec) -> Any:
    """What timm says of a model without building it: input_size, num_classes, ..; None where it says nothing."""
    if spec.embedded or ":" in spec.timm:
        return None
    try:
        return import_timm().models.get_pretrained_cfg(spec.timm)
    except RuntimeError:  # a tag that timm does not know: building the model says so
        return None


def load(spec: ModelSpec, checkpoint: Path | None = None, random_weights: bool = False, seed: int = 0) -> LoadedModel:
    """Build the model and give it weights; a UserError says which other ways there are to get weights.

    seed: of random weights. torch's global random generator is as before.
    """
    if checkpoint is not None and random_weights:
        raise UserError("--checkpoint and --random-weights exclude each other; give one of them")
    import torch

    with torch.random.fork_rng(devices=[]):  # every constructor draws weights, also where they are replaced
        module, origin = _with_weights(spec, checkpoint, random_weights, seed)
    return _finish(spec, module, origin)


def _with_weights(
    spec: ModelSpec, checkpoint: Path | None, random_weights: bool, seed: int
) -> tuple[nn.Module, Origin]:
    if checkpoint is not None:
        return _from_checkpoint(spec, checkpoint), "checkpoint"
    if random_weights:
        return _random(spec, seed), "random"
    if spec.checkpoint is not None:
        return _from_checkpoint(spec, spec.checkpoint), "embedded"
    return _pretrained(spec), "pretrained"


def _finish(spec: ModelSpec, module: nn.Module, origin: Origin) -> LoadedModel:
    from ptq4vit_onnx.network.discovery import unfuse_attention

    module.eval().requires_grad_(False)
    unfuse_attention(module)
    classes = int(getattr(module, "num_classes", 0))
    if classes <= 0:
        raise _no_classifier(spec)
    return LoadedModel(spec.name, module, preprocessing_of(spec, module), origin, fingerprint_of(module), classes)


def _no_classifier(spec: ModelSpec) -> UserError:
    return UserError(f"{spec.name} has no classifier head; only image classification models can be quantised")


def build(spec: ModelSpec, classes: int | None = None) -> nn.Module:
    """The architecture, with the weights that its constructor draws."""
    timm = import_timm()
    if spec.embedded:
        from ptq4vit_onnx.models import digits_arch

        if spec.name == "vit_digits":
            from timm.models.vision_transformer import VisionTransformer

            return VisionTransformer(**digits_arch.VIT_DIGITS)  # type: ignore[no-any-return]
        from timm.models.swin_transformer import SwinTransformer

        return SwinTransformer(**digits_arch.SWIN_DIGITS)  # type: ignore[no-any-return]
    options = {} if classes is None else {"num_classes": classes}
    try:
        with _preferring_cache() if ":" in spec.timm else nullcontext():  # an hf-hub address: the hub configures it
            return timm.create_model(spec.timm, pretrained=False, **options)  # type: ignore[no-any-return]
    except (RuntimeError, OSError, ValueError, TypeError) as error:
        raise UserError(f"timm cannot build {spec.timm!r}: {one_line(error)}") from error


def _random(spec: ModelSpec, seed: int) -> nn.Module:
    import torch

    torch.default_generator.manual_seed(seed)  # the CPU's, which `load` restores; torch.manual_seed seeds all devices
    return build(spec)


def _pretrained(spec: ModelSpec) -> nn.Module:
    timm = import_timm()
    config = _timm_config(spec)
    if config is not None and config.num_classes <= 0:
        raise _no_classifier(spec)  # before hundreds of megabytes are fetched
    try:
        with _preferring_cache():
            return timm.create_model(spec.timm, pretrained=True)  # type: ignore[no-any-return]
    except (OSError, ValueError) as error:
        raise UserError(
            f"no weights for {spec.name}: the hub did not serve {spec.timm} ({type(error).__name__}); "
            "connect to the network, give --checkpoint FILE, or use --random-weights for a dry run"
        ) from error
    except RuntimeError as error:  # timm's answer to a tag it does not know, or to one without weights
        raise UserError(
            f"no weights for {spec.name}: {one_line(error)}; give --checkpoint FILE, or use "
            "--random-weights for a dry run"
        ) from error


@contextmanager
def _preferring_cache() -> Iterator[None]:
    """While it is open and the hub cannot be reached, its client reads its cache; else it would retry for a minute."""
    from huggingface_hub import constants

    before = constants.HF_HUB_OFFLINE
    with quiet_logging("huggingface_hub"):
        if not _hub_reachable():
            constants.HF_HUB_OFFLINE = True
        try:
            yield
        finally:
            if before != constants.HF_HUB_OFFLINE:
                constants.HF_HUB_OFFLINE = before
                _forget_offline_sessions()


def _forget_offline_sessions() -> None:
    """Clients before 1.0 keep HTTP sessions, and one that was made offline stays offline."""
    from huggingface_hub import utils

    getattr(utils, "reset_sessions", lambda: None)()


def _hub_reachable() -> bool:
    """Whether the hub answers. Behind a proxy a direct connection tells nothing, so it is assumed to."""
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
    module = build(spec, classes_in(state))
    load_state(module, state, path, spec.name)
    return module


def preprocessing_of(spec: ModelSpec, module: nn.Module) -> Preprocessing:
    """The model's evaluation transform, as timm has it."""
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
