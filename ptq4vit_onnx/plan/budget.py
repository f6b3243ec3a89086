"""What a file may cost, given instead of a width: its size, its distance from the float model, its bits on average."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from ptq4vit_onnx.errors import UserError
from ptq4vit_onnx.plan.quantizers import MAX_BITS, MIN_BITS

Limited = Literal["max_size", "max_kl", "max_drop", "average_weight_bits"]
BUDGET = "budget"  # a plan's options have it where widths were chosen within one
_UNITS = {"": 1.0, "kb": 1e3, "mb": 1e6, "gb": 1e9, "kib": 2.0**10, "mib": 2.0**20, "gib": 2.0**30}
_SIZE = re.compile(r"(\d{1,12}(?:\.\d{1,9})?)\s*([kmg]i?b)?", re.IGNORECASE)


@dataclass(frozen=True)
class Budget:
    """limited: what. limit: bytes of model.onnx (max_size), nats from the float model (max_kl), points of top-1
    (max_drop), or bits per weight on average (average_weight_bits)."""

    limited: Limited
    limit: float

    def __post_init__(self) -> None:
        if self.limited not in get_args(Limited):
            raise UserError(f"budget is {self.limited!r:.40}; expected one of {', '.join(get_args(Limited))}")
        name = self.limited.replace("_", "-")
        if isinstance(self.limit, bool) or not isinstance(self.limit, (int, float)) or not 0 <= self.limit < math.inf:
            raise UserError(f"--{name} is {self.limit!r}; expected a number of at least 0")
        if self.limited == "average_weight_bits" and not MIN_BITS <= self.limit <= MAX_BITS:
            raise UserError(f"--{name} is {self.limit:g}; expected {MIN_BITS} to {MAX_BITS} bits")

    @classmethod
    def given(
        cls,
        max_size: int | str | None = None,
        max_kl: float | None = None,
        max_drop: float | None = None,
        average_weight_bits: float | None = None,
    ) -> Budget | None:
        """The one that is not None; a UserError where there are several."""
        size = None if max_size is None else parse_bytes(max_size)
        values: dict[Limited, float | None] = {
            "max_size": size, "max_kl": max_kl, "max_drop": max_drop, "average_weight_bits": average_weight_bits,
        }  # fmt: skip
        found = {name: value for name, value in values.items() if value is not None}
        if len(found) > 1:
            names = " and ".join(f"--{name.replace('_', '-')}" for name in found)
            raise UserError(f"{names} are two budgets; give one of them")
        return next((cls(name, value) for name, value in found.items()), None)

    @classmethod
    def from_data(cls, data: Any) -> Budget:
        """What `to_data` returned, as a plan's options hold it."""
        if not isinstance(data, dict) or set(data) != {"limited", "limit"}:
            raise UserError(f"the plan's budget is {data!r:.60}; expected limited and limit")
        return cls(**data)

    def to_data(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def by_measurement(self) -> bool:
        """Whether only a finished file tells if it fits."""
        return self.limited in ("max_kl", "max_drop")

    @property
    def label(self) -> str:
        """For the name of a folder: 4MB, kl0.02, drop0.5, 5bits."""
        number = f"{self.limit:g}"
        return {"max_size": f"{self.limit / 1e6:g}MB", "max_kl": f"kl{number}", "max_drop": f"drop{number}",
                "average_weight_bits": f"{number}bits"}[self.limited]  # fmt: skip

    def __str__(self) -> str:
        number = f"{self.limit:g}"
        return {"max_size": f"at most {self.limit / 1e6:g} MB", "max_kl": f"a KL of at most {number}",
                "max_drop": f"a drop of at most {number} points",
                "average_weight_bits": f"{number} bits per weight on average"}[self.limited]  # fmt: skip


def parse_bytes(size: int | str) -> int:
    """4000000, "4MB", "3.5 MiB" -> bytes."""
    found = _SIZE.fullmatch(str(size).strip())
    if found is None or isinstance(size, bool):
        raise UserError(f"--max-size is {size!r:.40}; expected bytes, or a number with KB, MB, GB, KiB, MiB or GiB")
    return int(float(found[1]) * _UNITS[(found[2] or "").lower()])


@dataclass(frozen=True)
class Point:
    """A file that was considered. bits: of each weight by site. size: in bytes. predicted: the distance from the float
    model that sensitivities promise; measured: what the file had on the images that it was chosen on, None where it was
    not measured. agreement and drop: in percent and points, where the kind of output has them."""

    title: str
    bits: Mapping[str, int]
    size: int
    average: float
    predicted: float | None
    measured: float | None
    agreement: float | None = None
    drop: float | None = None
    drop_error: float | None = None


@dataclass(frozen=True)
class Allocation:
    """How a budget was spent. points: the single widths and the mixtures that were considered; chosen: which of them it
    became. measured_on: how many images, none of them calibrated on. distance: what is measured, with its unit."""

    budget: Budget
    points: tuple[Point, ...]
    chosen: int
    measured_on: int
    distance: str

    @property
    def choice(self) -> Point:
        return self.points[self.chosen]

    @property
    def sentence(self) -> str:
        point = self.choice
        widths = sorted(set(point.bits.values()))
        mixed = f"{widths[0]} to {widths[-1]} bits, {point.average:.2f} on average"
        bits = mixed if len(widths) > 1 else f"{widths[0]} bits"
        promised = "" if point.predicted is None else f", predicted {point.predicted:.2g}"
        return (
            f"{self.budget}: weights have {bits}; {self.distance} {point.measured:.2g} on the {self.measured_on} "
            f"images that the choice was made on{promised}"
        )

    def to_data(self) -> dict[str, Any]:
        return {**asdict(self), "sentence": self.sentence}
