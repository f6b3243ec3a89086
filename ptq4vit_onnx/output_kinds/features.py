"""Features: tokens and maps, one or several outputs; each token and each place of a map against the float model's."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np

from ptq4vit_onnx.output_kinds.neighbours import cosines
from ptq4vit_onnx.output_kinds.output_kind import (
    SMALLEST,
    AgainstFloat,
    Array,
    Column,
    Headline,
    Kept,
    OutputKind,
    Outputs,
    Reading,
    Tensor,
    short,
)

_SHORTEST = 1e-3  # of an image's mean token length: relative errors of shorter tokens are taken against this


@dataclass(frozen=True)
class Closeness:
    """How close tokens are to the float model's.

    Attributes:
        cosine: Mean over tokens and images.
        worst_cosine: Of the single worst token.
        relative_error: Length of the error over that of the token, mean over tokens and images.
        worst_relative_error: Of the single worst token.
    """

    cosine: float
    worst_cosine: float
    relative_error: float
    worst_relative_error: float

    def __str__(self) -> str:
        return (
            f"cosine {self.cosine:.4f}, worst token {self.worst_cosine:.4f}, relative error {self.relative_error:.2g}"
        )


@dataclass(frozen=True)
class FeaturesAgainstFloat(AgainstFloat):
    """The quantised feature extractor against the float one.

    Attributes:
        images: How many were measured on.
        together: Means over the outputs, each counting alike, and the worst token of all.
        outputs: Each output by name.
    """

    together: Closeness
    outputs: dict[str, Closeness]
    kind: ClassVar[str] = "features"

    @property
    def figures(self) -> dict[str, Any]:
        return {**asdict(self.together), "outputs": {name: asdict(part) for name, part in self.outputs.items()}}

    def to_data(self) -> dict[str, Any]:
        return {"kind": self.kind, "images": self.images, **self.figures}

    @property
    def distance(self) -> float:
        return self.together.relative_error

    @property
    def summary(self) -> str:
        parts = f" ({self._parts})" if len(self.outputs) > 1 else ""
        return f"{self.together}{parts}"

    @property
    def _parts(self) -> str:
        return ", ".join(f"{name} {part.cosine:.4f}" for name, part in self.outputs.items())

    @property
    def headlines(self) -> list[Headline]:
        whole = self.together
        error = Headline(
            "Relative error",
            short(whole.relative_error),
            f"of a token's length; worst {short(whole.worst_relative_error)}",
        )
        note = f"worst token {whole.worst_cosine:.4f}" + (f"; {self._parts}" if len(self.outputs) > 1 else "")
        return [error, Headline("Cosine to float", f"{whole.cosine:.4f}", note)]

    @property
    def readings(self) -> dict[str, Reading]:
        whole, worst = self.together, min(self.outputs, key=lambda name: self.outputs[name].worst_cosine)
        mean = f"relative error {whole.relative_error:.2g}, mean cosine {whole.cosine:.5f} to the float model's tokens"
        return {
            "min_cosine": Reading(whole.cosine, mean),
            "min_worst_cosine": Reading(whole.worst_cosine, f"worst token {whole.worst_cosine:.5f}, of output {worst}"),
        }


class Features(OutputKind):
    name = "features"
    plural = "features"
    shape = "features [images, tokens, channels] or [images, channels, height, width], one or several"
    distance = "half the relative squared error"
    measured_by = "relative error"
    unit = "half relative squared error"
    damage = "of expected half relative squared error per image"
    columns = (
        Column("cosine", "cosine", ".4f"),
        Column("worst", "worst_cosine", ".4f"),
        Column("relative error", "relative_error", ".2g"),
        Column("worst error", "worst_relative_error", ".2g"),
    )
    own = 0
    limits = {"min_cosine": 0.99, "min_worst_cosine": None}  # noqa: RUF012

    def direction(self, output: Tensor, signs: Tensor) -> Tensor:
        """e / sqrt(elements * variance), both of the image's own output."""
        flat = output.detach().double().flatten(1)
        total = ((flat - flat.mean(-1, keepdim=True)) ** 2).sum(-1).clamp_min(SMALLEST)
        return (signs / total.sqrt().reshape(-1, *[1] * (output.dim() - 1))).to(output.dtype)

    def fits(self, outputs: Outputs) -> bool:
        return bool(outputs) and all(output.ndim >= 2 for output in outputs)

    def keep(self, outputs: Outputs, reference: Outputs) -> Array:
        """[images, outputs, 4], in the order of Closeness: whole feature maps of many images do not fit into memory."""
        return np.stack([_closeness(*pair) for pair in zip(outputs, reference, strict=True)], 1)

    def alone(self, kept: Kept) -> dict[str, float | None]:
        return {}

    def compare(self, kept: Kept, reference: Kept) -> FeaturesAgainstFloat:
        """`keep` has compared them already; the reference's own numbers say nothing."""
        parts = {name: _over_images(kept.values[:, place]) for place, name in enumerate(kept.outputs)}
        numbers = np.array([list(asdict(part).values()) for part in parts.values()])
        return FeaturesAgainstFloat(len(kept), _over_images(numbers), parts)


def tokens(output: Array) -> Array:
    """[images, tokens, channels] of tokens [n, t, c], of a map [n, c, h, w] or [n, h, w, c], of one vector [n, c].

    A map has its channels second, unless its second and third axis are alike and its last is not.
    """
    if output.ndim == 2:
        return output[:, None]
    channels_last = output.ndim == 3 or (output.ndim == 4 and output.shape[1] == output.shape[2] != output.shape[3])
    last = output if channels_last else np.moveaxis(output, 1, -1)
    return last.reshape(len(last), -1, last.shape[-1])


def _closeness(output: Array, wanted: Array) -> Array:
    """[images, 4]: mean and smallest cosine, mean and largest relative error of each image's tokens."""
    found, tokens_wanted = tokens(output).astype(np.float64), tokens(wanted).astype(np.float64)
    angles = cosines(found, tokens_wanted)
    lengths = np.linalg.norm(tokens_wanted, axis=-1)
    floor = np.maximum(_SHORTEST * lengths.mean(1, keepdims=True), SMALLEST)
    errors = np.linalg.norm(found - tokens_wanted, axis=-1) / np.maximum(lengths, floor)
    return np.stack([angles.mean(1), angles.min(1), errors.mean(1), errors.max(1)], 1)


def _over_images(numbers: Array) -> Closeness:
    """numbers: [.., 4], in the order of Closeness."""
    mean, least, most = numbers.mean(0), numbers.min(0), numbers.max(0)
    return Closeness(float(mean[0]), float(least[1]), float(mean[2]), float(most[3]))
