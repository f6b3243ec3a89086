"""What every quantizer answers: the codes it sends into integer products, its points, its words, its price."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from ptq4vit_onnx.plan.quantizers.rounding import Tensor, as_float32
from ptq4vit_onnx.plan.sites import Kind, Source

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Branch:
    """The share of a quantizer's values that one integer product computes: whole numbers low..high, worth a step each.

    name: of the product, behind its site: "" or "coarse". steps: one, or one per group.
    """

    name: str
    steps: tuple[float, ...]
    low: int
    high: int

    @property
    def reach(self) -> int:
        """How far its numbers go from zero, as an unsigned code would: a branch of negatives is counted upwards."""
        return self.high if self.high > 0 else -self.low


@dataclass(frozen=True)
class Points:
    """Quantisation points first, first + step, ..: `count` of them. name: of the range, empty where there is one."""

    name: str
    first: float
    step: float
    count: int

    @property
    def last(self) -> float:
        return self.first + (self.count - 1) * self.step


@dataclass(frozen=True)
class Colour:
    """How one colour of an image becomes bytes: round((x + offset) / step) + zero_point. All but the last: float32."""

    step: float
    offset: float
    zero_point: int

    @classmethod
    def of(cls, step: float, centre: float) -> Colour:
        """centre: the byte of a value of 0, not always a whole number."""
        return cls(step, as_float32((centre - round(centre)) * step), round(centre))


@dataclass(frozen=True)
class Quantizer(ABC):
    """kind: its name in plan.json; title: its name in words. source: the one operation whose output it is made for, or
    None. only_kind: the one kind of site it is made for, or None. only_weights: whether it is made for weights
    alone, which are right sides. searched: what its candidates differ in.

    The value of x is the sum over `branches` of step * units(x): that is all that simulators and proof need to know.
    Where inputs differ in what a step is worth, `row_steps` and `row_zeros` say more.
    """

    kind: ClassVar[str]
    title: ClassVar[str]
    source: ClassVar[Source | None] = None
    only_kind: ClassVar[Kind | None] = None
    only_weights: ClassVar[bool] = False
    searched: ClassVar[Literal["scale", "shift", "nothing"]] = "scale"

    bits: int

    @classmethod
    @abstractmethod
    def candidates(cls, bits: int, low: float, high: float, factors: Sequence[float]) -> tuple[Quantizer, ...]:
        """What a search tries for values low..high. factors: of the scale that just covers them.

        Where `searched` is "scale": one candidate for each factor, in their order.
        """

    @property
    @abstractmethod
    def branches(self) -> tuple[Branch, ...]:
        """One, or the fine and the coarse one of a twin."""

    def branch(self, name: str) -> Branch:
        """The branch of this name; of any other product (outliers) the first."""
        return next((item for item in self.branches if item.name == name), self.branches[0])

    @abstractmethod
    def units(self, x: Tensor) -> tuple[Tensor, ...]:
        """Whole numbers, counted from zero, of each branch; as floats of x's own type."""

    @abstractmethod
    def fake_quantize(self, x: Tensor) -> Tensor:
        """x, each value at the point it is rounded to."""

    @abstractmethod
    def encode(self, x: Array) -> Array:
        """Codes as they are stored, in k bits each."""

    @abstractmethod
    def decode(self, codes: Array) -> Array:
        """The values that stored codes stand for."""

    @property
    @abstractmethod
    def points(self) -> tuple[Points, ...]:
        """The points of each branch; of several groups, those of the largest step."""

    @property
    def colours(self) -> tuple[Colour, ...]:
        """Of an image whose bytes are its codes: how each colour becomes bytes, before patches are cut. Else empty."""
        return ()

    def row_steps(self, inputs: int) -> Array | None:
        """What a step of each input [inputs] is worth, float32: the weight's rows are multiplied by it before they are
        rounded. None: what the branches say."""
        return None

    @property
    def in_steps(self) -> Quantizer:
        """The quantizer of x / row_steps, next to weights that have taken up the steps."""
        return self

    def row_zeros(self, inputs: int) -> Array | None:
        """What unit 0 of each input [inputs] stands for, in its steps; the bias takes it up. None: zero."""
        return None

    @property
    def coordinates(self) -> tuple[float, ...]:
        """Where it lies among its candidates: its scales, one per group, or its shift."""
        return self.branches[-1].steps

    @property
    def remarks(self) -> tuple[str, ...]:
        """What there is to say of it besides its title, bits and steps."""
        return ()

    @property
    def groups(self) -> int:
        """How many scales it has; group by group along `groups_axis`."""
        return len(self.branches[0].steps)

    @property
    def groups_axis(self) -> int | None:
        """The axis that its groups cut into equal, consecutive parts; None for one scale."""
        return None

    @property
    def largest_code(self) -> int:
        """The largest unsigned code that it sends into one integer product."""
        return max(branch.reach for branch in self.branches)

    @property
    def border(self) -> float | None:
        """Where the fine branch ends and the coarse one begins; None for one branch."""
        return None

    @property
    def merged(self) -> Branch | None:
        """All branches as one, in steps of the first, where its codes fit a byte: one product is enough. Else None."""
        return self.branches[0] if len(self.branches) == 1 else None

    @property
    def price_in_nats(self) -> float:
        """How much damage it must save, in nats per image, to be worth its time next to one product."""
        return 0.0

    @property
    def price_as_ratio(self) -> float:
        """The same for metrics without nats: how many times smaller the loss must be."""
        return 1.0

    def beyond(self, x: Tensor) -> tuple[Any, Any]:
        """Below and above what values of x are clipped: half a step beyond the outermost points; broadcasts with x."""
        return self.points[0].first - 0.5 * self.points[0].step, self.points[-1].last + 0.5 * self.points[-1].step
