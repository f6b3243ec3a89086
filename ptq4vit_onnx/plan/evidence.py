"""What calibration saw of one site, small enough to put in a report: values that JSON holds, no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class Histogram:
    """How many values lie in each of equally wide bins from low to high."""

    low: float
    high: float
    counts: tuple[int, ...]


@dataclass(frozen=True)
class SearchCurve:
    """How each metric judges the candidates of the left side, the right side being the plan's.

    axis: what `x` is: the scale over the scale that just covers all values, or the shift between twin ranges.
    losses: by metric, over the metric's own smallest: 1 is its best candidate; None: the estimate is no loss.
    chosen: where the plan lies on the axis, one value for each scale it has (heads).
    """

    axis: Literal["scale", "shift"]
    x: tuple[float, ...]
    losses: Mapping[str, tuple[float | None, ...]]
    chosen: tuple[float, ...]


@dataclass(frozen=True)
class SiteEvidence:
    """histograms: of the left side; one for a single range, one for each range of a twin (fine, coarse).

    clipped: share of left values beyond the last quantisation point. sqnr: 10 log10(sum o^2 / sum d^2) in dB
    of the output o and its error d under the plan; None for an error of zero. damage: 1/2 sum g^2 d^2 over
    all images, in the unit of the output's kind (nats for logits): what the error is expected to add to the loss, so
    sites can be compared.
    curve: None where nothing was searched.
    """

    histograms: tuple[Histogram, ...]
    clipped: float
    sqnr: float | None
    damage: float
    curve: SearchCurve | None

    def to_data(self) -> dict[str, Any]:
        return asdict(self)
