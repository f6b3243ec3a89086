"""What can be quantised, by the short names of the paper; plain values, without torch and timm."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ptq4vit_onnx.errors import UserError

DIGITS_FOLDER = Path(__file__).resolve().parent / "digits"
PHOTOS_FOLDER = Path(__file__).resolve().parent / "photos"

Library = Literal["timm", "transformers", "torchvision", "module"]


@dataclass(frozen=True)
class ModelSpec:
    """name: what the user types; timm: architecture and pretrained tag, `arch.tag` ("" for embedded models);
    size: image height and width; top1: float ImageNet accuracy in the paper's Table 1 (None where it has no
    row); embedded: weights and images ship with the package; library: that builds it, or "module" for one of the
    user's; address: in a library other than timm, a hub name, a folder or a function's name.
    """

    name: str
    timm: str
    size: int
    title: str
    top1: float | None = None
    embedded: bool = False
    library: Library = "timm"
    address: str = ""

    @property
    def checkpoint(self) -> Path | None:
        return DIGITS_FOLDER / f"{self.name}.safetensors" if self.embedded else None


DEFAULT = "vit_digits"
_AUGREG = "augreg_in21k_ft_in1k"

# The tags are those whose float accuracy the paper starts from: ViT-B's 84.54 is AugReg's first fine-tuning,
# not timm's later default (augreg2, 85.1); Swin-B's 85.27 and 86.44 are pretrained on ImageNet-22k.
SPECS: tuple[ModelSpec, ...] = (
    ModelSpec("vit_s_32", f"vit_small_patch32_224.{_AUGREG}", 224, "ViT-S/224/32", 75.99),
    ModelSpec("vit_s", f"vit_small_patch16_224.{_AUGREG}", 224, "ViT-S/224", 81.39),
    ModelSpec("vit_b", f"vit_base_patch16_224.{_AUGREG}", 224, "ViT-B/224", 84.54),
    ModelSpec("vit_b_384", f"vit_base_patch16_384.{_AUGREG}", 384, "ViT-B/384", 86.00),
    ModelSpec("deit_s", "deit_small_patch16_224.fb_in1k", 224, "DeiT-S/224", 79.80),
    ModelSpec("deit_b", "deit_base_patch16_224.fb_in1k", 224, "DeiT-B/224", 81.80),
    ModelSpec("deit_b_384", "deit_base_patch16_384.fb_in1k", 384, "DeiT-B/384", 83.11),
    ModelSpec("swin_t", "swin_tiny_patch4_window7_224.ms_in1k", 224, "Swin-T/224", 81.39),
    ModelSpec("swin_s", "swin_small_patch4_window7_224.ms_in1k", 224, "Swin-S/224", 83.23),
    ModelSpec("swin_b", "swin_base_patch4_window7_224.ms_in22k_ft_in1k", 224, "Swin-B/224", 85.27),
    ModelSpec("swin_b_384", "swin_base_patch4_window12_384.ms_in22k_ft_in1k", 384, "Swin-B/384", 86.44),
    ModelSpec("vit_t", f"vit_tiny_patch16_224.{_AUGREG}", 224, "ViT-T/224"),
    ModelSpec("deit_t", "deit_tiny_patch16_224.fb_in1k", 224, "DeiT-T/224"),
    ModelSpec("vit_digits", "", 32, "ViT on handwritten digits", embedded=True),
    ModelSpec("swin_digits", "", 32, "Swin on handwritten digits", embedded=True),
)
PAPER_MODELS = tuple(spec.name for spec in SPECS if spec.top1 is not None)


def find(name: str) -> ModelSpec | None:
    """The spec of a short name; None where the name has to be looked up in timm."""
    return next((spec for spec in SPECS if spec.name == name), None)


def is_embedded(name: str) -> bool:
    """Whether weights and images of the model of this name ship with the package."""
    spec = find(name)
    return spec is not None and spec.embedded


def closest(name: str, known: list[str], count: int = 3) -> list[str]:
    """Up to `count` known names that resemble `name`, best first."""
    return difflib.get_close_matches(name.lower(), known, count, cutoff=0.6)


def unknown_model(name: str, known: list[str] | None = None) -> UserError:
    """The error for a name that is neither ours nor timm's."""
    near = closest(name, [spec.name for spec in SPECS]) or closest(name, known or [])
    hint = f"; closest are {', '.join(near)}" if near else ""
    return UserError(f"no model named {name!r}{hint} (all: ptq4vit-onnx models)")
