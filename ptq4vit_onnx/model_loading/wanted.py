"""What is wanted of a source of models, and what it gives back."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ptq4vit_onnx.errors import UserError
from ptq4vit_onnx.images.preprocessing import Preprocessing
from ptq4vit_onnx.models.specs import ModelSpec
from ptq4vit_onnx.request import AskedKind, ImageSize

if TYPE_CHECKING:
    from torch import nn

Origin = Literal["pretrained", "checkpoint", "embedded", "random", "module"]


@dataclass(frozen=True)
class Wanted:
    """seed: of random weights. img_size, num_classes None: the model's own; no classes: without its classifier.
    kind: what the user says that the model returns.
    """

    spec: ModelSpec
    checkpoint: Path | None = None
    random_weights: bool = False
    seed: int = 0
    img_size: ImageSize | None = None
    num_classes: int | None = None
    kind: AskedKind = "auto"

    @property
    def headless(self) -> bool:
        return self.num_classes == 0


@dataclass(frozen=True)
class Built:
    """A module with weights, and how its images are prepared. resampled: a sentence, where the weights are for another
    image size. remarks: sentences on what else the user should know."""

    module: nn.Module
    preprocessing: Preprocessing
    origin: Origin
    resampled: str = ""
    remarks: tuple[str, ...] = ()


def no_pretrained_head(wanted: Wanted, own: int) -> UserError:
    """For classes that the pretrained head does not have. own: how many it has."""
    return UserError(
        f"the pretrained weights of {wanted.spec.name} have {own} classes, not {wanted.num_classes}; leave "
        "--num-classes out, give --num-classes 0 for the model without its head, or give --checkpoint FILE"
    )
