"""From the name of a model, or a module of the user's, to a torch module with weights that can be calibrated."""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ptq4vit_onnx.errors import UserError
from ptq4vit_onnx.files.inputs import read_json
from ptq4vit_onnx.images.preprocessing import Preprocessing
from ptq4vit_onnx.model_loading import timm_models, torchvision_models
from ptq4vit_onnx.model_loading.huggingface import models as transformers_models
from ptq4vit_onnx.model_loading.output_kind import take_for
from ptq4vit_onnx.model_loading.trial import require_outputs, run_once
from ptq4vit_onnx.model_loading.wanted import Built, Wanted
from ptq4vit_onnx.model_loading.wanted import Origin as Origin
from ptq4vit_onnx.models.specs import ModelSpec, find, unknown_model
from ptq4vit_onnx.output_kinds.kinds import KINDS, OutputKind
from ptq4vit_onnx.plan.quantizers import Pixels
from ptq4vit_onnx.request import AskedKind, ExportRequest, ImageSize

if TYPE_CHECKING:
    from torch import nn

logger = logging.getLogger(__name__)
_SOURCES = {
    "timm": timm_models.from_timm,
    "transformers": transformers_models.from_transformers,
    "torchvision": torchvision_models.from_torchvision,
}


@dataclass(frozen=True)
class LoadedModel:
    """A model that is ready to be calibrated. fingerprint: identifies its weights. classes: the width of its output.

    resampled: a sentence, where the weights are for another image size. kind: of what it returns. outputs: the names of
    the tensors it returns, in their order; its forward returns a tensor, or a tuple of as many. taken_for: a sentence
    on the kind, and why. remarks: sentences on what else the user should know.
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
    taken_for: str = ""
    remarks: tuple[str, ...] = ()

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
    """The spec of a name, without importing torch: ours, a folder, an address of a library, or what timm registers."""
    spec = find(name)
    if spec is not None:
        return spec
    library, colon, address = name.partition(":")
    if colon and library == "transformers":
        return transformers_models.spec_of(address)
    if colon and library == "torchvision":
        return torchvision_models.spec_of(address)
    if name.startswith(("hf-hub:", "hf_hub:", "local-dir:")):
        return ModelSpec(name, name, 0, name)
    if (Path(name) / "config.json").is_file():
        return _of_folder(Path(name))
    architectures = timm_models.timm_architectures()
    if name.partition(".")[0] in architectures:
        return ModelSpec(name, name, 0, name)
    raise unknown_model(name, sorted(architectures))


def _of_folder(folder: Path) -> ModelSpec:
    """Of a folder with a config.json, as timm or transformers writes it."""
    config = read_json(folder / "config.json", "config", "expected what timm or transformers writes")
    if isinstance(config, dict) and "architecture" in config:
        name = f"local-dir:{folder}"
        return ModelSpec(name, name, 0, name)
    return transformers_models.spec_of(str(folder))


def spec_for(request: ExportRequest) -> ModelSpec:
    """Of the model that was asked for, by its name or as a module."""
    if request.given is None:
        return resolve(request.model)
    return ModelSpec(request.model, "", 0, request.model, library="module")


def channels_of(spec: ModelSpec) -> int | None:
    """How many channels the model's images have, without its weights; None where that is not known yet."""
    return timm_models.timm_channels(spec) if spec.library == "timm" else None


def load_for(request: ExportRequest, spec: ModelSpec) -> LoadedModel:
    """The model that was asked for."""
    options, kind = request.options, request.output_kind
    if request.given is not None:
        model = _finish(Built(request.given.module, request.given.preprocessing, "module"), spec.name, kind)
    else:
        classes = request.num_classes
        model = load(
            spec, request.checkpoint, request.random_weights, options.seed, request.img_size, classes, kind
        )  # fmt: skip
    if model.kind.name == "logits" or options.labels == "signs" or request.plan is not None:
        return model
    remark = (
        f"{model.kind.name} output has no labels: calibration weighs errors by signs, not by {options.labels} labels"
    )
    return replace(model, remarks=(*model.remarks, remark))


def load(
    spec: ModelSpec,
    checkpoint: Path | None = None,
    random_weights: bool = False,
    seed: int = 0,
    img_size: ImageSize | None = None,
    num_classes: int | None = None,
    kind: AskedKind = "auto",
) -> LoadedModel:
    """Build the model and give it weights; a UserError says which other ways there are to get weights.

    seed: of random weights. torch's global random generator is as before. img_size: of the images, instead of the
    model's own; a model that cannot take it is refused before its weights are fetched. num_classes: 0 takes the head
    off. kind: of what it returns; auto tells it from the model.
    """
    if checkpoint is not None and random_weights:
        raise UserError("--checkpoint and --random-weights exclude each other; give one of them")
    import torch

    wanted = Wanted(spec, checkpoint, random_weights, seed, img_size, num_classes, kind)
    with torch.random.fork_rng(devices=[]):  # every constructor draws weights, also where they are replaced
        if random_weights:
            torch.default_generator.manual_seed(seed)  # the CPU's, restored here; torch.manual_seed seeds all devices
        built = _SOURCES[spec.library](wanted)
    built.module.eval().requires_grad_(False)
    for sentence in (built.resampled, *built.remarks):
        if sentence:
            logger.warning("%s", sentence)
    return _finish(built, spec.name, kind)


def _finish(built: Built, name: str, kind: AskedKind) -> LoadedModel:
    import torch

    outputs = run_once(built.module, torch.zeros(1, *built.preprocessing.size), name)
    first = require_outputs(outputs, 1, name)[0]
    taken = take_for(kind, built.module, outputs, name)
    return LoadedModel(
        name, built.module, built.preprocessing, built.origin, fingerprint_of(built.module), first.shape[-1],
        built.resampled, taken.kind, taken.names, taken.why, built.remarks,
    )  # fmt: skip


def fingerprint_of(module: nn.Module) -> str:
    """SHA-256 over names, shapes and values of all weights."""
    digest = hashlib.sha256()
    for key, value in sorted(module.state_dict().items()):
        digest.update(f"{key} {list(value.shape)} {value.dtype}".encode())
        digest.update(value.contiguous().numpy().tobytes())
    return digest.hexdigest()
