"""Models of timm, and the embedded ones, which are built of timm's modules: architecture, weights, preprocessing."""

from __future__ import annotations

import importlib.util
import re
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ptq4vit_onnx.errors import UserError, one_line
from ptq4vit_onnx.images.preprocessing import Preprocessing
from ptq4vit_onnx.model_loading.checkpoints import classes_in, load_state, read_state, resampled_tables
from ptq4vit_onnx.model_loading.hub import preferring_cache
from ptq4vit_onnx.model_loading.timm_compat import import_timm
from ptq4vit_onnx.model_loading.wanted import Built, Origin, Wanted, no_pretrained_head
from ptq4vit_onnx.models.specs import ModelSpec
from ptq4vit_onnx.request import ImageSize

if TYPE_CHECKING:
    import torch
    from torch import nn


def timm_architectures() -> set[str]:
    """The names timm registers, read from its source files: importing timm takes seconds."""
    spec = importlib.util.find_spec("timm")
    folders = list(spec.submodule_search_locations or []) if spec else []
    pattern = re.compile(r"^@register_model\s+def (\w+)\(", re.MULTILINE)
    files = [file for folder in folders for file in (Path(folder) / "models").glob("*.py")]
    return {name for file in files for name in pattern.findall(file.read_text(encoding="utf-8"))}


def timm_channels(spec: ModelSpec) -> int | None:
    """How many channels the model's images have, without building it; None where only the hub knows."""
    config = _config(spec)
    return None if config is None else int(config.input_size[0])


def _config(spec: ModelSpec) -> Any:
    """What timm says of a model without building it: input_size, num_classes, ..; None where it says nothing."""
    if spec.embedded or ":" in spec.timm:
        return None
    try:
        return import_timm().models.get_pretrained_cfg(spec.timm)
    except RuntimeError:  # a tag that timm does not know: building the model says so
        return None


def from_timm(wanted: Wanted) -> Built:
    spec = wanted.spec
    if spec.embedded and wanted.img_size is not None:
        raise UserError(f"{spec.name} takes images of {spec.size} x {spec.size} pixels only; leave --img-size out")
    module, origin, resampled = _with_weights(wanted)
    return Built(module, preprocessing_of(spec, module, wanted.img_size), origin, resampled)


def _with_weights(wanted: Wanted) -> tuple[nn.Module, Origin, str]:
    spec = wanted.spec
    if wanted.checkpoint is not None:
        return _from_checkpoint(wanted, wanted.checkpoint, "checkpoint")
    if wanted.random_weights:
        return build(spec, wanted.num_classes, wanted.img_size), "random", ""
    if spec.checkpoint is not None:
        return _from_checkpoint(wanted, spec.checkpoint, "embedded")
    return _pretrained(wanted)


def build(spec: ModelSpec, classes: int | None = None, img_size: ImageSize | None = None) -> nn.Module:
    """The architecture, with the weights that its constructor draws; refuses a size of images that it cannot take."""
    timm = import_timm()
    given = {"num_classes": classes, "img_size": img_size}
    options = {name: value for name, value in given.items() if value is not None}
    if spec.embedded:
        return _embedded(spec, options)
    try:
        with preferring_cache() if ":" in spec.timm else nullcontext():  # an hf-hub address: the hub configures it
            module: nn.Module = timm.create_model(spec.timm, pretrained=False, **options)
            if img_size is not None:
                _require_takes(module, img_size)
            return module
    except (RuntimeError, OSError, ValueError, TypeError, AssertionError, LookupError, AttributeError) as error:
        if img_size is None:
            raise UserError(f"timm cannot build {spec.timm!r}: {one_line(error)}") from error
        raise UserError(
            f"timm cannot build {spec.timm!r} for images of {img_size[0]} x {img_size[1]} pixels: {one_line(error)}; "
            "leave --img-size out or give another"
        ) from error


def _embedded(spec: ModelSpec, options: dict[str, Any]) -> nn.Module:
    from ptq4vit_onnx.models import digits_arch

    if spec.name == "vit_digits":
        from timm.models.vision_transformer import VisionTransformer

        return VisionTransformer(**{**digits_arch.VIT_DIGITS, **options})  # type: ignore[no-any-return]
    from timm.models.swin_transformer import SwinTransformer

    return SwinTransformer(**{**digits_arch.SWIN_DIGITS, **options})  # type: ignore[no-any-return]


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


def _pretrained(wanted: Wanted) -> tuple[nn.Module, Origin, str]:
    spec, config = wanted.spec, _config(wanted.spec)
    if config is not None:
        _require_head(wanted, config.num_classes)  # before hundreds of megabytes are fetched
    options: dict[str, Any] = {"num_classes": 0} if wanted.headless else {}
    own: dict[str, torch.Tensor] = {}
    if wanted.img_size is not None:
        build(spec, wanted.num_classes, wanted.img_size)  # refuses, before anything is fetched
        own = build(spec).state_dict()
        options["img_size"] = wanted.img_size
    module = _fetched(spec, options)
    _require_head(wanted, getattr(module, "num_classes", 0))
    return module, "pretrained", resampled_tables(module, own)


def _require_head(wanted: Wanted, own: int) -> None:
    if wanted.num_classes and wanted.num_classes != own:  # timm would draw a head of random weights
        raise no_pretrained_head(wanted, own)


def _fetched(spec: ModelSpec, options: dict[str, Any]) -> nn.Module:
    timm = import_timm()
    try:
        with preferring_cache():
            module: nn.Module = timm.create_model(spec.timm, pretrained=True, **options)
            return module
    except (OSError, ValueError) as error:
        raise UserError(
            f"no weights for {spec.name}: the hub did not serve {spec.timm} ({type(error).__name__}); "
            "connect to the network, give --checkpoint FILE, or use --random-weights for a dry run"
        ) from error
    # timm's answer to a tag it does not know, to one without weights, and to configs of a folder that make no sense
    except (RuntimeError, TypeError, LookupError, AttributeError, AssertionError) as error:
        raise UserError(
            f"no weights for {spec.name}: {one_line(error)}; give --checkpoint FILE, or use "
            "--random-weights for a dry run"
        ) from error


def _from_checkpoint(wanted: Wanted, path: Path, origin: Origin) -> tuple[nn.Module, Origin, str]:
    state = read_state(path)
    classes = classes_in(state) if wanted.num_classes is None else wanted.num_classes
    module = build(wanted.spec, classes, wanted.img_size)
    load_state(module, state, path, wanted.spec.name, wanted.headless)
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
