"""Every choice a user can make about calibration, as one frozen value, stored in the plan."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, get_args

from ptq4vit_onnx.errors import UserError
from ptq4vit_onnx.limits import MAX_COUNT, require_whole
from ptq4vit_onnx.plan.quantizers import MAX_BITS, MIN_BITS

Method = Literal["ptq4vit", "base"]
Preset = Literal["ptq4vit", "paper", "base"]  # what the user starts from: our defaults, or the paper's own two settings
Metric = Literal["hessian", "mse", "cosine", "pearson"]
SUMS_OF_SQUARES: tuple[Metric, ...] = ("hessian", "mse")  # the others are angles
Twin = Literal["auto", "both", "softmax", "gelu", "none"]
Weights = Literal["per-channel", "per-tensor"]
Activations = Literal["affine", "symmetric"]
OutlierMode = Literal["auto", "none"]
ChannelMode = Literal["auto", "none"]
Rounding = Literal["compensated", "diffused", "nearest"]
PixelGrid = Literal["bytes", "searched"]
BiasCorrection = Literal["auto", "always", "none"]
Search = Literal["fast", "exhaustive"]
Labels = Literal["sampled", "argmax", "signs"]


@dataclass(frozen=True)
class Options:
    """The defaults are what measured best; `base` and `paper` are the paper's own two settings.

    Attributes:
        weight_bits: 2 to 8.
        activation_bits: 2 to 8.
        method: PTQ4ViT, or the paper's Base PTQ.
        metric: What the search minimises.
        twin: Which inputs get two ranges; auto decides per site whether the second range pays for itself.
        weights: One scale for each output channel, or one for a whole weight.
        activations: affine offers a zero point next to the symmetric form of the paper, and keeps the better.
        outliers: auto gives single input channels that dwarf all others a scale of their own.
        channels: auto shifts and scales the input channels of layers behind a LayerNorm, where that lowers the loss.
        pixels: bytes takes an 8-bit image as it is, whatever the width of activations; searched rounds it as any other.
        rounding: compensated lets every weight below eight bits take up what rounding the others has changed; at eight
            little is gained. It and diffused round patch weights by error diffusion from pixel to pixel, where that
            lowers the loss. nearest does neither.
        rounding_images: How many images compensation looks at; 0: as many as the model's size allows.
        bias_correction: auto takes mean errors off the outputs where they share the weight's scale, as with per-tensor.
        search: fast drops bad scales early by successive halving; exhaustive prices every scale on every image.
        rounds: How often the search alternates between the two sides of a product; 0 searches each side by itself.
        candidates: Scales tried per search.
        alpha: Candidates divide [alpha, beta] evenly, in units of the scale that just covers the largest value.
        beta: The other end of that range.
        labels: Of the loss whose gradients weigh the errors; signs and sampled estimate the same, signs with less
            noise. argmax takes the model's own prediction.
        images: How many images are calibrated on.
        seed: Picks images, signs and sampled labels.
    """

    weight_bits: int = 8
    activation_bits: int = 8
    method: Method = "ptq4vit"
    metric: Metric = "hessian"
    twin: Twin = "auto"
    weights: Weights = "per-channel"
    activations: Activations = "affine"
    outliers: OutlierMode = "auto"
    channels: ChannelMode = "auto"
    pixels: PixelGrid = "bytes"
    rounding: Rounding = "compensated"
    rounding_images: int = 0
    bias_correction: BiasCorrection = "auto"
    search: Search = "fast"
    rounds: int = 0
    candidates: int = 100
    alpha: float = 0.0
    beta: float = 1.2
    labels: Labels = "signs"
    images: int = 32
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least, most in _WHOLE:
            require_whole(name, getattr(self, name), least, most)
        if 0 < self.rounding_images < self.images:
            raise UserError(
                f"rounding-images is {self.rounding_images}, expected at least the {self.images} images that are "
                "calibrated on"
            )
        ends = (self.alpha, self.beta)
        if not all(isinstance(value, (int, float)) for value in ends) or not 0 <= self.alpha < self.beta < math.inf:
            raise UserError(f"alpha {self.alpha!r} and beta {self.beta!r} are not numbers 0 <= alpha < beta")
        for name, kind in _CHOICES.items():
            if getattr(self, name) not in get_args(kind):
                raise UserError(f"{name} is {getattr(self, name)!r}; expected one of {', '.join(get_args(kind))}")

    @classmethod
    def base(cls, **changes: Any) -> Options:
        """Base PTQ of the paper's appendix: cosine, one round, no twins, layer-wise symmetric scales."""
        form = cls(method="base", metric="cosine", twin="none", rounds=1, alpha=0.5)
        return replace(form, **{**_PUBLISHED, **changes})

    @classmethod
    def paper(cls, **changes: Any) -> Options:
        """PTQ4ViT exactly as published: both twins, Hessian metric, three rounds, layer-wise symmetric scales."""
        return replace(cls(twin="both", rounds=3), **{**_PUBLISHED, **changes})

    @classmethod
    def resolve(
        cls,
        preset: Preset = "ptq4vit",
        bits: int | None = None,
        weight_bits: int | None = None,
        activation_bits: int | None = None,
        **changes: Any,
    ) -> Options:
        """A preset, changed by what the user gave; bits stands for whichever of the two widths was not given."""
        presets: dict[str, Callable[..., Options]] = {"ptq4vit": cls, "paper": cls.paper, "base": cls.base}
        if preset not in presets:
            raise UserError(f"method is {preset!r}; expected one of {', '.join(presets)}")
        widths = {
            "weight_bits": bits if weight_bits is None else weight_bits,
            "activation_bits": bits if activation_bits is None else activation_bits,
        }
        return presets[preset](**{name: value for name, value in widths.items() if value is not None}, **changes)

    def to_data(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def sums_squares(self) -> bool:
        """The metric is a sum over outputs, and not an angle."""
        return self.metric in SUMS_OF_SQUARES

    @property
    def as_published(self) -> bool:
        """One symmetric scale for a whole tensor, as in both of the paper's settings."""
        return self.weights == "per-tensor" and self.activations == "symmetric"

    @property
    def corrects_biases(self) -> bool:
        """By default next to one scale per tensor; with one per output, mean errors are small and carry over less."""
        return self.bias_correction == "always" or (self.bias_correction == "auto" and self.weights == "per-tensor")

    @property
    def diffuses(self) -> bool:
        """Patch weights may be rounded by error diffusion."""
        return self.rounding != "nearest"

    def compensates(self, weight_bits: int) -> bool:
        """Weights of this width are rounded together, and not each by itself."""
        return self.rounding == "compensated" and weight_bits < MAX_BITS

    @property
    def label(self) -> str:
        return f"w{self.weight_bits}a{self.activation_bits}"


MAX_CANDIDATES = 1000  # ten times the paper's; each is held against thousands of bins at once
_WHOLE = (
    ("weight_bits", MIN_BITS, MAX_BITS),
    ("activation_bits", MIN_BITS, MAX_BITS),
    ("rounds", 0, MAX_COUNT),
    ("candidates", 1, MAX_CANDIDATES),
    ("images", 1, MAX_COUNT),
    ("rounding_images", 0, MAX_COUNT),
    ("seed", 0, 2**32 - 1),
)
_PUBLISHED = {
    "weights": "per-tensor", "activations": "symmetric", "outliers": "none", "channels": "none",
    "pixels": "searched", "rounding": "nearest", "bias_correction": "none", "labels": "sampled",
}  # fmt: skip
_CHOICES: dict[str, Any] = {
    "method": Method,
    "metric": Metric,
    "twin": Twin,
    "weights": Weights,
    "activations": Activations,
    "outliers": OutlierMode,
    "channels": ChannelMode,
    "pixels": PixelGrid,
    "rounding": Rounding,
    "bias_correction": BiasCorrection,
    "search": Search,
    "labels": Labels,
}
