"""Models of Hugging Face transformers: `transformers:NAME` of the hub, or a folder with a config.json.

A class for image classification gives its logits. A model of images and texts, or of masks (CLIP, SigLIP, SAM), gives
its vision tower: the projected or pooled embedding, SAM's map of features. Any other model of images gives its pooled
output, or its tokens where features are asked for.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ptq4vit_onnx.errors import UserError, one_line
from ptq4vit_onnx.files.inputs import read_json
from ptq4vit_onnx.images.preprocessing import Preprocessing
from ptq4vit_onnx.model_loading.checkpoints import read_state
from ptq4vit_onnx.model_loading.hub import preferring_cache
from ptq4vit_onnx.model_loading.huggingface.processors import preprocessing_from
from ptq4vit_onnx.model_loading.timm_compat import declare_missing_torchvision_operators
from ptq4vit_onnx.model_loading.wanted import Built, Origin, Wanted
from ptq4vit_onnx.models.specs import ModelSpec
from ptq4vit_onnx.request import ImageSize
from ptq4vit_onnx.runtime.quiet import quiet_logging

if TYPE_CHECKING:
    from torch import nn

_TOWERS = {"clip": "CLIPVisionModelWithProjection", "siglip": "SiglipVisionModel", "sam": "SamVisionModel"}
_WAYS = "give --checkpoint FILE, or use --random-weights for a dry run"


def spec_of(address: str) -> ModelSpec:
    """Of a name on the hub or of a folder, without importing transformers. A folder's own name is enough as a name: a
    plan stays valid where the folder is moved."""
    if importlib.util.find_spec("transformers") is None:
        raise UserError(f"transformers:{address} needs a package; install ptq4vit-onnx[transformers]")
    folder = Path(address)
    if folder.is_dir() and not (folder / "config.json").is_file():
        raise UserError(f"no config.json in {folder}; give a folder as save_pretrained of transformers writes it")
    if not folder.is_dir() and (not address or address.startswith((".", "/", "~")) or address.count("/") > 1):
        raise UserError(
            f"no folder at {address!r}; give one with a config.json, or a name of the hub as google/vit-base"
        )
    name = f"transformers:{folder.resolve().name if folder.is_dir() else address}"
    return ModelSpec(name, "", 0, name, library="transformers", address=address)


def from_transformers(wanted: Wanted) -> Built:
    declare_missing_torchvision_operators()
    local = Path(wanted.spec.address).is_dir()
    with _quiet_library(), nullcontext() if local else preferring_cache():
        config, cls = _architecture(wanted.spec)
        rule, remarks = _preprocessing(wanted, config)
        model, origin, pooled = _with_weights(wanted, cls, config)
        module = _adapted(wanted, model, config, rule, pooled)
    return Built(module, rule, origin, remarks=remarks)


@contextmanager
def _quiet_library() -> Iterator[None]:
    """While it is open, transformers writes no advice and no progress bars."""
    try:
        from transformers.utils import logging
    except Exception as error:  # of any type: it looks at the versions of many packages
        raise UserError(
            f"cannot import transformers: {one_line(error).rstrip('.')}; install ptq4vit-onnx[transformers] again"
        ) from error

    bars = logging.is_progress_bar_enabled()
    with quiet_logging("transformers"):
        try:
            logging.disable_progress_bar()
            yield
        finally:
            if bars:
                logging.enable_progress_bar()


def _architecture(spec: ModelSpec) -> tuple[Any, Any]:
    """(config, class): of the classifier, of the vision tower, or of the bare model; a UserError without images."""
    import transformers

    try:
        config = transformers.AutoConfig.from_pretrained(spec.address, trust_remote_code=False)  # never asks
    except Exception as error:  # of any type: each config has checks of its own
        raise _no_config(spec, error) from error
    named = (getattr(config, "architectures", None) or [""])[0]
    family = config.model_type.removesuffix("_vision_model")
    if "ForImageClassification" in named and hasattr(transformers, named):
        cls = getattr(transformers, named)
    elif family in _TOWERS:
        cls = getattr(transformers, named if named == "CLIPVisionModel" else _TOWERS[family])
        config = cls.config_class.from_pretrained(spec.address)
    else:
        cls = _bare(spec, config)
    return config, cls


def _no_config(spec: ModelSpec, error: Exception) -> UserError:
    said, file = one_line(error).rstrip("."), Path(spec.address) / "config.json"
    if file.is_file():
        return UserError(f"cannot use {file}: {said}; expected one of a vision model, as save_pretrained writes it")
    return UserError(
        f"no config.json for {spec.name}: {said}; connect to the network, or give a folder that has one"
    )  # fmt: skip


def _bare(spec: ModelSpec, config: Any) -> Any:
    from transformers import MODEL_MAPPING

    cls = MODEL_MAPPING.get(type(config), None)
    cls = cls[0] if isinstance(cls, (list, tuple)) else cls
    if getattr(cls, "main_input_name", "") != "pixel_values" or getattr(config, "vision_config", None) is not None:
        raise UserError(
            f"{spec.name} is a {config.model_type}, whose input is not images alone; give a model of images, or wrap "
            "its vision part in a module of your own in Python"
        )
    return cls


def _with_weights(wanted: Wanted, cls: Any, config: Any) -> tuple[Any, Origin, bool]:
    """(model, origin, whether its pooler is trained)"""
    if wanted.random_weights:
        return cls._from_config(config), "random", True
    state = None if wanted.checkpoint is None else read_state(wanted.checkpoint)
    source: Any = None if state is not None else wanted.spec.address
    origin: Origin = "checkpoint" if state is not None or Path(wanted.spec.address).is_dir() else "pretrained"
    model, missing = _read(wanted, cls, config, source, state, {})
    if not missing:
        return model, origin, True
    if all(key.startswith("pooler.") for key in missing):  # else it would be of random weights
        model, missing = _read(wanted, cls, config, source, state, {"add_pooling_layer": False})
    if missing:
        raise UserError(
            f"the weights for {wanted.spec.name} do not fit {cls.__name__}: missing: {', '.join(missing[:3])}"
            f"{f' and {len(missing) - 3} more' if len(missing) > 3 else ''}; are they of another architecture?"
        )
    return model, origin, False


def _read(
    wanted: Wanted, cls: Any, config: Any, source: Any, state: Any, options: dict[str, Any]
) -> tuple[Any, list[str]]:
    """(model, names of the weights that it lacks): transformers leaves those random."""
    import torch

    try:
        model, info = cls.from_pretrained(
            source, config=config, state_dict=state, dtype=torch.float32, output_loading_info=True, **options
        )
    except (OSError, ValueError, RuntimeError, KeyError, TypeError) as error:
        raise UserError(f"no weights for {wanted.spec.name}: {one_line(error).rstrip('.')}; {_WAYS}") from error
    return model, sorted(info["missing_keys"])


def _adapted(wanted: Wanted, model: Any, config: Any, rule: Preprocessing, pooled: bool) -> nn.Module:
    """The model behind a forward that takes pixels and returns a tensor."""
    from ptq4vit_onnx.model_loading.huggingface.adapter import adapted

    if wanted.num_classes is not None:
        _set_head(wanted, model, config)
    resized = wanted.img_size is not None and rule.size[1:] != _own_size(config)
    return adapted(model, features=wanted.kind == "features", pooled=pooled, resized=resized)


def _set_head(wanted: Wanted, model: Any, config: Any) -> None:
    from torch import nn

    if not hasattr(model, "classifier") or wanted.num_classes not in (0, config.num_labels):
        raise UserError(
            f"--num-classes {wanted.num_classes} does not fit {wanted.spec.name}, a {type(model).__name__} "
            f"of {getattr(config, 'num_labels', 0)} classes; leave it out, or give 0 for a classifier without its head"
        )
    if wanted.headless:
        model.classifier = nn.Identity()


def _own_size(config: Any) -> ImageSize:
    own = getattr(config, "vision_config", None) or config
    size = getattr(own, "image_size", None) or 224
    return (size, size) if isinstance(size, int) else (int(size[0]), int(size[1]))


def _require_whole_patches(wanted: Wanted, config: Any) -> None:
    """Refuse an image size whose last pixels the model would not read; Swin pads its images instead."""
    patch = getattr(getattr(config, "vision_config", None) or config, "patch_size", None)
    if wanted.img_size is None or not isinstance(patch, int) or "swin" in config.model_type:
        return
    if not any(side % patch for side in wanted.img_size):
        return
    raise UserError(
        f"--img-size {wanted.img_size[0]} x {wanted.img_size[1]} does not fit {wanted.spec.name}: its patches are of "
        f"{patch} x {patch} pixels; give multiples of that"
    )


def _channels(config: Any) -> int:
    own = getattr(config, "vision_config", None) or config
    return int(getattr(own, "num_channels", 3))


def _preprocessing(wanted: Wanted, config: Any) -> tuple[Preprocessing, tuple[str, ...]]:
    _require_whole_patches(wanted, config)
    data = _processor_data(wanted.spec.address)
    try:
        return preprocessing_from(data, config.model_type, _own_size(config), _channels(config), wanted.img_size)
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError) as error:  # values of other types
        raise UserError(
            f"preprocessor_config.json of {wanted.spec.name} cannot be followed: {one_line(error)}"
        ) from error


def _processor_data(address: str) -> dict[str, Any] | None:
    """What preprocessor_config.json says, or the image part of processor_config.json; None where there is neither."""
    from transformers.utils import cached_file

    for name in ("preprocessor_config.json", "processor_config.json"):
        path = cached_file(
            address, name, _raise_exceptions_for_missing_entries=False,
            _raise_exceptions_for_connection_errors=False, _raise_exceptions_for_gated_repo=False,
        )  # fmt: skip
        if path is None:
            continue
        data = read_json(Path(path), "image processor", "is it complete?")
        if not isinstance(data, dict):
            raise UserError(f"{path} holds {data!r:.40}; expected what an image processor is made of")
        data = data if name.startswith("pre") else data.get("image_processor")
        if data:
            return dict(data)
    return None
