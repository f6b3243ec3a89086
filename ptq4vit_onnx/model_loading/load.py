"""From the name of a model to a torch module with weights: from timm's hub, a checkpoint, the package, or random."""

from __future__ import annotations

import hashlib
import importlib.util
import logging
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
from ptq4vit_onnx.model_loading.checkpoints import classes_in, load_state, read_state, resampled_tables
from ptq4vit_onnx.model_loading.timm_compat import import_timm
from ptq4vit_onnx.models.specs import ModelSpec, find, unknown_model
from ptq4vit_onnx.output_kinds.kinds import KINDS, OutputKind
from ptq4vit_onnx.plan.quantizers import Pixels
from ptq4vit_onnx.request import ImageSize
from ptq4vit_onnx.runtime.quiet import quiet_logging

if TYPE_CHECKING:
    import torch
    from torch import nn

logger = logging.getLogger(__name__)
Origin = Literal["pretrained", "checkpoint", "embedded", "random"]
_HUB_TIMEOUT_SECONDS = 5.0


@dataclass(frozen=True)
class LoadedModel:
    """A model that is ready to be calibrated: in eval mode. fingerprint: identifies its weights.

    resampled: a sentence, where the weights are for another image size. kind: of what it returns. outputs: the names of
    the tensors it returns, in their order; its forward returns a tensor, or a tuple of as many.
    """

    name: str
    module: nn.Module
    preprocessing: Preprocessing
    origin: Origin
    fingerprint: str
    classes: int
    resampled: str = ""
    kind: OutputKind = KINDS["logits"]
    outputs: tuple[str, ...] = ("logits",)

    @property
    def is_random(self) -> bool:
        return self.origin == "random"

    @property
    def pixel_grid(self) -> Pixels | None:
        """The grid on which its preprocessing puts 8-bit images; None where a mean lies outside 0..1."""
        rule = self.preprocessing
        try:
            return Pixels.of(rule.mean, rule.std, rule.size[0])
        except ValueError:
            return None


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


def load(
    spec: ModelSpec,
    checkpoint: Path | None = None,
    random_weights: bool = False,
    seed: int = 0,
    img_size: ImageSize | None = None,
) -> LoadedModel:
    """Build the model and give it weights; a UserError says which other ways there are to get weights.

    seed: of random weights. torch's global random generator is as before. img_size: of the images, instead of the
    model's own; a model that cannot take it is refused before its weights are fetched.
    """
    if checkpoint is not None and random_weights:
        raise UserError("--checkpoint and --random-weights exclude each other; give one of them")
    if spec.embedded and img_size is not None:
        raise UserError(f"{spec.name} takes images of {spec.size} x {spec.size} pixels only; leave --img-size out")
    import torch

    with torch.random.fork_rng(devices=[]):  # every constructor draws weights, also where they are replaced
        module, origin, resampled = _with_weights(spec, checkpoint, random_weights, seed, img_size)
    if resampled:
        logger.warning("%s", resampled)
    return _finish(spec, module, origin, resampled, img_size)


def _with_weights(
    spec: ModelSpec, checkpoint: Path | None, random_weights: bool, seed: int, img_size: ImageSize | None
) -> tuple[nn.Module, Origin, str]:
    if checkpoint is not None:
        return _from_checkpoint(spec, checkpoint, img_size, "checkpoint")
    if random_weights:
        return _random(spec, seed, img_size), "random", ""
    if spec.checkpoint is not None:
        return _from_checkpoint(spec, spec.checkpoint, img_size, "embedded")
    return _pretrained(spec, img_size)


def _finish(
    spec: ModelSpec, module: nn.Module, origin: Origin, resampled: str, img_size: ImageSize | None
) -> LoadedModel:
    module.eval().requires_grad_(False)
    classes = int(getattr(module, "num_classes", 0))
    if classes <= 0:
        raise _no_classifier(spec)
    rule = preprocessing_of(spec, module, img_size)
    return LoadedModel(spec.name, module, rule, origin, fingerprint_of(module), classes, resampled)


def _no_classifier(spec: ModelSpec) -> UserError:
    return UserError(f"{spec.name} has no classifier head; only image classification models can be quantised")


def build(spec: ModelSpec, classes: int | None = None, img_size: ImageSize | None = None) -> nn.Module:
    """The architecture, with the weights that its constructor draws; refuses a size of images that it cannot take."""
    timm = import_timm()
    if spec.embedded:
        from ptq4vit_onnx.models import digits_arch

        if spec.name == "vit_digits":
            from timm.models.vision_transformer import VisionTransformer

            return VisionTransformer(**digits_arch.VIT_DIGITS)  # type: ignore[no-any-return]
        from timm.models.swin_transformer import SwinTransformer

        return SwinTransformer(**digits_arch.SWIN_DIGITS)  # type: ignore[no-any-return]
    given = {"num_classes": classes, "img_size": img_size}
    options = {name: value for name, value in given.items() if value is not None}
    try:
        with _preferring_cache() if ":" in spec.timm else nullcontext():  # an hf-hub address: the hub configures it
            module: nn.Module = timm.create_model(spec.timm, pretrained=False, **options)
            if img_size is not None:
                _require_takes(module, img_size)
            return module
    except (RuntimeError, OSError, ValueError, TypeError, AssertionError) as error:
        if img_size is None:
            raise UserError(f"timm cannot build {spec.timm!r}: {one_line(error)}") from error
        raise UserError(
            f"timm cannot build {spec.timm!r} for images of {img_size[0]} x {img_size[1]} pixels: {one_line(error)}; "
            "leave --img-size out or give another"
        ) from error


def _require_takes(module: nn.Module, img_size: ImageSize) -> None:
    """Refuse a size that a model was built for but cannot run with, or whose last pixels it would not read."""
    import torch

    patch = getattr(getattr(module, "patch_embed", None), "patch_size", (1, 1))
    if any(side % step for side, step in zip(img_size, patch, strict=True)):
        raise ValueError(f"its patches are of {patch[0]} x {patch[1]} pixels, expected multiples of that")
    was_training = module.training
    with torch.no_grad():
        module.eval()(torch.zeros(1, getattr(module, "in_chans", 3), *img_size))
    module.train(was_training)


def _random(spec: ModelSpec, seed: int, img_size: ImageSize | None) -> nn.Module:
    import torch

    torch.default_generator.manual_seed(seed)  # the CPU's, which `load` restores; torch.manual_seed seeds all devices
    return build(spec, None, img_size)


def _pretrained(spec: ModelSpec, img_size: ImageSize | None) -> tuple[nn.Module, Origin, str]:
    timm = import_timm()
    config = _timm_config(spec)
    if config is not None and config.num_classes <= 0:
        raise _no_classifier(spec)  # before hundreds of megabytes are fetched
    options: dict[str, ImageSize] = {}
    own: dict[str, torch.Tensor] = {}
    if img_size is not None:
        build(spec, None, img_size)  # refuses, before anything is fetched
        options, own = {"img_size": img_size}, build(spec).state_dict()
    try:
        with _preferring_cache():
            module: nn.Module = timm.create_model(spec.timm, pretrained=True, **options)
            return module, "pretrained", resampled_tables(module, own)
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


def _from_checkpoint(
    spec: ModelSpec, path: Path, img_size: ImageSize | None, origin: Origin
) -> tuple[nn.Module, Origin, str]:
    state = read_state(path)
    module = build(spec, classes_in(state), img_size)
    load_state(module, state, path, spec.name)
    return module, origin, resampled_tables(module, state)


def preprocessing_of(spec: ModelSpec, module: nn.Module, img_size: ImageSize | None = None) -> Preprocessing:
    """The model's evaluation transform, as timm has it, for images of another size where one is given."""
    if spec.embedded:
        from ptq4vit_onnx.models import digits_arch as digits

        return Preprocessing(
            (digits.IN_CHANNELS, digits.IMAGE_SIZE, digits.IMAGE_SIZE), 1.0, "squash", digits.INTERPOLATION,
            (digits.DIGITS_MEAN,), (digits.DIGITS_STD,),
        )  # fmt: skip
    from timm.data import resolve_model_data_config

    config = resolve_model_data_config(module)
    size = config["input_size"] if img_size is None else (config["input_size"][0], *img_size)
    return Preprocessing.from_data({**config, "size": size})


def fingerprint_of(module: nn.Module) -> str:
    """SHA-256 over names, shapes and values of all weights."""
    digest = hashlib.sha256()
    for key, value in sorted(module.state_dict().items()):
        digest.update(f"{key} {list(value.shape)} {value.dtype}".encode())
        digest.update(value.contiguous().numpy().tobytes())
    return digest.hexdigest()
