"""The kinds of output, each with the curvature of what its users care about.

The Hessian metric weighs the errors of a product by squared gradients of v^T output, where v is a random vector with
E v v^T = H, the curvature of the output's own distance: a Rademacher sketch of H, one draw per image.

logits     [n, classes]         H of cross-entropy                  diag(p) - p p^T, p = softmax(logits)
embedding  [n, d]               H of cosine distance                (I - z z^T / |z|^2) / |z|^2
features   [n, ...] each        H of half the relative square error I / (elements * variance), image by image

A kind is one class: its curvature, its metrics, its limits in `parity` and its words in reports. It is listed here.
"""

from __future__ import annotations

from ptq4vit_onnx.errors import UserError
from ptq4vit_onnx.output_kinds.embedding import Embedding
from ptq4vit_onnx.output_kinds.features import Features
from ptq4vit_onnx.output_kinds.logits import Logits
from ptq4vit_onnx.output_kinds.output_kind import KindName, OutputKind

__all__ = ["KINDS", "Embedding", "Features", "KindName", "Logits", "OutputKind", "kind_named"]

KINDS: dict[str, OutputKind] = {kind.name: kind for kind in (Logits(), Embedding(), Features())}


def kind_named(name: str) -> OutputKind:
    if name not in KINDS:
        raise UserError(f"output-kind is {name!r}; expected one of auto, {', '.join(KINDS)}")
    return KINDS[name]
