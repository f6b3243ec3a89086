"""What a kind of output is: the curvature that weighs its errors, its metrics, and its words in reports."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias

import numpy as np

from ptq4vit_onnx.output_kinds.metrics import PairedDrop

Tensor: TypeAlias = Any  # a torch tensor; this room imports no torch
Array = np.ndarray[Any, Any]
Outputs: TypeAlias = tuple[Array, ...]  # all outputs of a model on the same images, each [images, ...]
SMALLEST = 1e-30  # of a squared length: an output of zeros has no direction, and must not divide by zero
KindName = Literal["logits", "embedding", "features"]


@dataclass(frozen=True)
class Gallery:
    """Labelled images that nearest neighbours are looked up in. values: as in Kept."""

    values: Array
    labels: Array


@dataclass(frozen=True)
class Kept:
    """What is kept of one model on some images. values: [images, ...], made by `OutputKind.keep`. labels: one for each
    image, None without labels. gallery: where neighbours come from, None for the images themselves."""

    values: Array
    outputs: tuple[str, ...]
    labels: Array | None = None
    gallery: Gallery | None = None

    def __len__(self) -> int:
        return len(self.values)


@dataclass(frozen=True)
class Column:
    """A column of the table that `eval` prints. key: of the figures. error: the key of its standard error, if any."""

    title: str
    key: str
    form: str = ".2f"
    error: str | None = None

    def cell(self, figures: Mapping[str, Any]) -> str:
        value, error = figures.get(self.key), figures.get(self.error or "")
        if value is None:
            return ""
        return format(value, self.form) + ("" if error is None else f" +- {format(error, self.form)}")


@dataclass(frozen=True)
class Headline:
    """A large number at the top of the page, with what it is and a note below it."""

    what: str
    number: str
    note: str


@dataclass(frozen=True)
class Reading:
    """A measured value that `parity` holds against a limit. value: None where it was not measured, as the sentence
    says. as_share: the limit is a share, said in percent."""

    value: float | None
    sentence: str
    as_share: bool = False


@dataclass(frozen=True)
class AgainstFloat(ABC):
    """The quantised model against the float one on the same images, as its kind measures that; each kind adds its own
    figures. images: how many it was measured on."""

    images: int
    kind: ClassVar[str]

    if TYPE_CHECKING:  # every kind has figures of its own

        def __getattr__(self, name: str) -> Any: ...

    @property
    @abstractmethod
    def figures(self) -> dict[str, Any]:
        """By the keys of `OutputKind.columns`, and the standard errors of these."""

    @property
    @abstractmethod
    def distance(self) -> float:
        """One number that files of the same model are compared by; see `OutputKind.measured_by`."""

    @property
    @abstractmethod
    def summary(self) -> str:
        """The distance from the float model, for one line of a table: "98.4 % agreement, KL 5.7e-05"."""

    @property
    def accuracy(self) -> tuple[str, str] | None:
        """What labels say, as a title and a text; None without labels."""
        return None

    @property
    @abstractmethod
    def headlines(self) -> list[Headline]:
        """For the page: first what labels say, if there are some, last the distance from the float model."""

    @property
    @abstractmethod
    def readings(self) -> dict[str, Reading]:
        """By the names of `OutputKind.limits`, in their order."""

    def to_data(self) -> dict[str, Any]:
        """What report.json holds."""
        return {"kind": self.kind, **asdict(self)}


class OutputKind(ABC):
    """name: as in --output-kind, plan.json and the files' metadata. plural: the outputs of several images, in words.
    shape: what is expected of them. distance: what its curvature is the curvature of. measured_by: what
    `AgainstFloat.distance` is. unit: of the curvature's. damage: the unit and what it is of, behind a number.
    columns: of the table that `eval` prints; the first `own` of them need no other model to compare with. limits: that
    `parity` knows, each with its default, None for no limit; a name says min_ or max_ and, behind it, what the check is
    called."""

    name: ClassVar[KindName]
    plural: ClassVar[str]
    shape: ClassVar[str]
    distance: ClassVar[str]
    measured_by: ClassVar[str]
    unit: ClassVar[str]
    damage: ClassVar[str]
    columns: ClassVar[tuple[Column, ...]]
    own: ClassVar[int]
    limits: ClassVar[Mapping[str, float | None]]

    @abstractmethod
    def direction(self, output: Tensor, signs: Tensor) -> Tensor:
        """v [n, ...] with E v v^T = H(output), from independent random signs (1 or -1) of the output's shape."""

    @abstractmethod
    def fits(self, outputs: Outputs) -> bool:
        """Whether these can be outputs of this kind."""

    def keep(self, outputs: Outputs, reference: Outputs) -> Array:
        """What is kept of a model's outputs on a few images, [images, ...]; `reference`: of the model it is compared
        with, on the same images. Not finite where the outputs of an image are not."""
        return outputs[0]

    @abstractmethod
    def alone(self, kept: Kept) -> dict[str, float | None]:
        """Figures of one model, by the keys of its own columns; None where they need labels."""

    @abstractmethod
    def compare(self, kept: Kept, reference: Kept) -> AgainstFloat:
        """A model next to the one it is to replace; both were kept from the same images, in the same order."""

    def classes(self, outputs: Outputs) -> int | None:
        """How many classes the labels may name; None where they are free."""
        return None

    def agreement(self, outputs: Outputs, others: Outputs) -> float | None:
        """Percent of the images for which both predict the same; None for a kind without predictions."""
        return None


def drop_reading(what: str, quantised: float | None, reference: float | None, drop: PairedDrop | None) -> Reading:
    """The loss of an accuracy in percent, called `what`, from `reference` to `quantised`."""
    if drop is None:
        return Reading(None, "no labels")
    change = f"drop {drop.points:.2f} +- {drop.standard_error:.2f} points"
    return Reading(drop.points, f"{what} {quantised:.2f} %, float {reference:.2f} %: {change}")


def drop_note(reference: float | None, drop: PairedDrop | None) -> str:
    """What stands below an accuracy on the page."""
    assert reference is not None and drop is not None, "an accuracy is that of both models"
    points = drop.points + 0.0  # makes -0.0 print as 0.0
    return f"float {reference:.1f} %, drop {points:.1f} ± {drop.standard_error:.1f} points"


def short(value: float) -> str:
    """Two digits, for the page: 0.012, 5.7e-5."""
    return f"{value:.2g}".replace("e-0", "e-")
