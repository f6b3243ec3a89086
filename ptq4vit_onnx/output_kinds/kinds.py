"""The kinds of output, each with the curvature of what its users care about.

The Hessian metric weighs the errors of a product by squared gradients of v^T output, where v is a random vector with
E v v^T = H, the curvature of the output's own distance: a Rademacher sketch of H, one draw per image.

logits     [n, classes]         H of cross-entropy                  diag(p) - p p^T, p = softmax(logits)
embedding  [n, d]               H of cosine distance                (I - z z^T / |z|^2) / |z|^2
features   [n, ...] each        H of half the relative square error I / (elements * variance), image by image
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Literal, TypeAlias

from ptq4vit_onnx.errors import UserError

Tensor: TypeAlias = Any  # a torch tensor; this room imports no torch
KindName = Literal["logits", "embedding", "features"]


class OutputKind(ABC):
    """name: as in --output-kind, plan.json and the files' metadata."""

    name: ClassVar[KindName]

    @abstractmethod
    def direction(self, output: Tensor, signs: Tensor) -> Tensor:
        """v [n, ...] with E v v^T = H(output), from independent random signs (1 or -1) of the output's shape."""


class Logits(OutputKind):
    name = "logits"

    def direction(self, output: Tensor, signs: Tensor) -> Tensor:
        """sqrt(p) * e - p <sqrt(p), e>"""
        p = output.detach().double().softmax(-1)
        signed = p.sqrt() * signs
        return (signed - p * signed.sum(-1, keepdim=True)).to(output.dtype)


class Embedding(OutputKind):
    name = "embedding"

    def direction(self, output: Tensor, signs: Tensor) -> Tensor:
        """(e - z <z, e> / |z|^2) / |z|: an error along z changes no angle."""
        z = output.detach().double()
        square = (z * z).sum(-1, keepdim=True).clamp_min(_SMALLEST)
        across = signs - z * ((z * signs).sum(-1, keepdim=True) / square)
        return (across / square.sqrt()).to(output.dtype)


class Features(OutputKind):
    name = "features"

    def direction(self, output: Tensor, signs: Tensor) -> Tensor:
        """e / sqrt(elements * variance), both of the image's own output."""
        flat = output.detach().double().flatten(1)
        total = ((flat - flat.mean(-1, keepdim=True)) ** 2).sum(-1).clamp_min(_SMALLEST)
        return (signs / total.sqrt().reshape(-1, *[1] * (output.dim() - 1))).to(output.dtype)


_SMALLEST = 1e-30  # of a squared length: an output of zeros has no direction, and must not divide by zero
KINDS: dict[str, OutputKind] = {kind.name: kind for kind in (Logits(), Embedding(), Features())}


def kind_named(name: str) -> OutputKind:
    if name not in KINDS:
        raise UserError(f"output-kind is {name!r}; expected one of auto, {', '.join(KINDS)}")
    return KINDS[name]
