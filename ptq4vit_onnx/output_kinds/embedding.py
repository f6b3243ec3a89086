"""Embeddings: the angle to the float model's, and whether images keep their nearest neighbours."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ptq4vit_onnx.output_kinds import metrics
from ptq4vit_onnx.output_kinds.neighbours import cosines, nearest, overlap, votes
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
    drop_note,
    drop_reading,
)


@dataclass(frozen=True)
class EmbeddingAgainstFloat(AgainstFloat):
    """The quantised embedding model against the float one.

    Attributes:
        images: How many were measured on.
        cosine: To the float embedding, mean over the images.
        worst_cosine: Of the worst image.
        agreement: Percent of the images whose nearest other image, in the gallery if there is one, is the float
            model's; None for a single image.
        neighbours: The same of the ten nearest, in any order.
        knn_float: Percent of the images whose label is the majority of their ten nearest, by the float model; None
            without labels.
        knn_quantised: The same by the quantised model.
        drop: The loss of that accuracy; None without labels.
    """

    cosine: float
    worst_cosine: float
    agreement: float | None
    neighbours: float | None
    knn_float: float | None
    knn_quantised: float | None
    drop: metrics.PairedDrop | None
    kind: ClassVar[str] = "embedding"

    @property
    def figures(self) -> dict[str, Any]:
        return {
            "drop": None if self.drop is None else self.drop.points,
            "drop_error": None if self.drop is None else self.drop.standard_error,
            "cosine": self.cosine,
            "worst_cosine": self.worst_cosine,
            "agreement": self.agreement,
            "neighbours": self.neighbours,
        }

    @property
    def distance(self) -> float:
        return 1 - self.cosine

    @property
    def summary(self) -> str:
        near = "" if self.agreement is None else f", nearest neighbour kept for {self.agreement:.1f} %"
        return f"cosine {self.cosine:.4f}, worst {self.worst_cosine:.4f}{near}"

    @property
    def accuracy(self) -> tuple[str, str] | None:
        if self.knn_quantised is None:
            return None
        return "k-NN accuracy", f"{self.knn_quantised:.1f} % (float {self.knn_float:.1f} %)"

    @property
    def headlines(self) -> list[Headline]:
        found = []
        if self.knn_quantised is not None:
            note = drop_note(self.knn_float, self.drop)
            found.append(Headline("k-NN accuracy", f"{self.knn_quantised:.1f} %", note))
        if self.agreement is not None:
            note = f"of the ten nearest {self.neighbours:.1f} %"
            found.append(Headline("Nearest kept", f"{self.agreement:.1f} %", note))
        return [*found, Headline("Cosine to float", f"{self.cosine:.4f}", f"worst image {self.worst_cosine:.4f}")]

    @property
    def readings(self) -> dict[str, Reading]:
        share = None if self.agreement is None else self.agreement / 100
        same = "a single image has no neighbours"
        if share is not None:
            same = f"{self.agreement:.2f} % of {self.images} images have the float model's nearest neighbour"
        return {
            "min_cosine": Reading(self.cosine, f"mean cosine {self.cosine:.5f} to the float model's embeddings"),
            "min_worst_cosine": Reading(self.worst_cosine, f"worst of {self.images} images {self.worst_cosine:.5f}"),
            "min_agreement": Reading(share, same, as_share=True),
            "max_drop": drop_reading("k-NN accuracy", self.knn_quantised, self.knn_float, self.drop),
        }


class Embedding(OutputKind):
    name = "embedding"
    plural = "embeddings"
    shape = "embeddings [images, coordinates]"
    distance = "the cosine distance"
    measured_by = "cosine distance"
    unit = "cosine distance"
    damage = "of expected cosine distance per image"
    columns = (
        Column("k-NN %", "knn"),
        Column("drop", "drop", error="drop_error"),
        Column("cosine", "cosine", ".4f"),
        Column("worst", "worst_cosine", ".4f"),
        Column("nearest kept %", "agreement"),
        Column("ten nearest %", "neighbours"),
    )
    own = 1
    limits = {"min_cosine": 0.99, "min_worst_cosine": None, "min_agreement": None, "max_drop": None}  # noqa: RUF012

    def direction(self, output: Tensor, signs: Tensor) -> Tensor:
        """(e - z <z, e> / |z|^2) / |z|: an error along z changes no angle."""
        z = output.detach().double()
        square = (z * z).sum(-1, keepdim=True).clamp_min(SMALLEST)
        across = signs - z * ((z * signs).sum(-1, keepdim=True) / square)
        return (across / square.sqrt()).to(output.dtype)

    def fits(self, outputs: Outputs) -> bool:
        return len(outputs) == 1 and outputs[0].ndim == 2

    def alone(self, kept: Kept) -> dict[str, float | None]:
        right = _right(kept, _near(kept))
        return {"knn": None if right is None else metrics.percent(right)}

    def compare(self, kept: Kept, reference: Kept) -> EmbeddingAgainstFloat:
        angles = cosines(kept.values, reference.values)
        near, wanted = _near(kept), _near(reference)
        lonely = wanted[0].shape[1] == 0
        same = None if lonely else metrics.percent(near[0][:, 0] == wanted[0][:, 0])
        among = None if lonely else overlap(near[0], wanted[0])
        after, before = _right(kept, near), _right(reference, wanted)
        accuracy: tuple[Any, ...] = (None, None, None)
        if after is not None and before is not None:
            accuracy = (metrics.percent(before), metrics.percent(after), metrics.drop_of(before, after))
        return EmbeddingAgainstFloat(len(kept), float(angles.mean()), float(angles.min()), same, among, *accuracy)


def _near(kept: Kept) -> tuple[Array, Array]:
    return nearest(kept.values, None if kept.gallery is None else kept.gallery.values)


def _right(kept: Kept, near: tuple[Array, Array]) -> Array | None:
    """Whether the vote of its neighbours is each image's label; None without labels or neighbours."""
    known = kept.labels if kept.gallery is None else kept.gallery.labels
    if kept.labels is None or known is None or near[0].shape[1] == 0:
        return None
    return np.asarray(votes(near, known) == kept.labels)
