"""The simulator and ONNX Runtime, site by site.

Left to themselves, the two drift apart: LayerNorm, softmax and GELU differ in the last bit between torch and
ONNX Runtime, so now and then a value crosses a rounding tie and moves by a whole step; the next site sees
that, and more of its values cross. After a few blocks the two differ by a good part of the quantisation error
itself, although each computes exactly what it should. A replay does not let this add up: the simulator
computes every site from what ONNX Runtime computed before it, and what remains is the error of one site and
of the operations before it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ptq4vit_onnx.errors import ParityError
from ptq4vit_onnx.graph.integer_products import Array
from ptq4vit_onnx.graph.model_proto import Model, load
from ptq4vit_onnx.output_kinds import metrics
from ptq4vit_onnx.plan.scale_plan import ScalePlan
from ptq4vit_onnx.proof.float_sites import column_factors_of, output_tensors
from ptq4vit_onnx.runtime.inner_tensors import Inside

# Measured with right models (ViT-T and DeiT-T, trained): at most 0.0004 at 8 bits, 0.0009 at 6, 0.0024 at 4,
# all of it codes that crossed a tie. A LayerNorm weight that is 2 % off gives 0.023. Smaller mistakes inside
# a product (a bias off by 1 %) stay below this limit; check_sites sees those.
REPLAY_LIMIT = 0.01
FREE_LIMIT = 0.05  # a right model may exceed this after many blocks: see above


@dataclass(frozen=True)
class Divergence:
    """A site's output in the ONNX model against the simulator's: root mean square error over the spread."""

    site: str
    relative_error: float
    limit: float

    @property
    def passed(self) -> bool:
        return self.relative_error <= self.limit

    def __str__(self) -> str:
        return f"{self.site} differs from the simulator by {self.relative_error:.2g} of its spread"

    def to_data(self) -> dict[str, Any]:
        return asdict(self)


class Replay:
    """Compares each site's simulated output with ONNX Runtime's, and hands ONNX Runtime's on.

        replay = Replay(model, plan)
        replay.show(images)                      # a few images at a time
        ... in the simulator: output = replay(site, output), for every site in turn ...
        replay.first_divergent                   # None if all sites agree

    The last site's simulated output is handed on as it is, so that the simulator's output is its own.
    """

    def __init__(self, model: Model, plan: ScalePlan, limit: float = REPLAY_LIMIT) -> None:
        self.limit = limit
        self.errors: dict[str, float] = {}
        self._outputs = _SiteOutputs(model, plan)
        self._last = list(plan.sites)[-1]
        self._held: Mapping[str, Array] = {}

    @property
    def batch(self) -> int:
        """How many images to show at a time: one, or what the model takes."""
        return self._outputs.batch

    def show(self, images: Array) -> None:
        """Run the ONNX model on `images` [n, channels, height, width]; the next calls are about these."""
        self._held = self._outputs.of(images)

    def __call__(self, site: str, simulated: Array) -> Array:
        """What to go on with in place of `simulated`, the simulator's output of `site`."""
        held = _arranged(self._held.get(site), simulated)
        if held is None:
            raise ParityError(f"{site} has no output of shape {simulated.shape} in the ONNX model")
        error = metrics.relative_error(held, _rows_of(simulated, held))
        self.errors[site] = max(self.errors.get(site, 0.0), error)
        return simulated if site == self._last else _with_rows(simulated, held)

    @property
    def divergences(self) -> list[Divergence]:
        """Of all sites seen so far, in their order; each the largest over the images shown."""
        return [Divergence(site, error, self.limit) for site, error in self.errors.items()]

    @property
    def first_divergent(self) -> Divergence | None:
        return next((item for item in self.divergences if not item.passed), None)


def divergences(
    model: Model, plan: ScalePlan, simulated: Mapping[str, Array], images: Array, limit: float = FREE_LIMIT
) -> list[Divergence]:
    """Every site's distance from a simulator that ran freely; infinite where the model lacks the site."""
    outputs = _SiteOutputs(model, plan).of(images)
    found = []
    for site, wanted in simulated.items():
        held = _arranged(outputs.get(site), np.asarray(wanted))
        error = float("inf") if held is None else metrics.relative_error(held, _rows_of(np.asarray(wanted), held))
        found.append(Divergence(site, error, limit))
    return found


class _SiteOutputs:
    """The outputs of a model's sites, in the plan's units, from the kernels that really run."""

    def __init__(self, model: Model, plan: ScalePlan) -> None:
        proto = load(model)
        self._tensors = output_tensors(proto, plan.sites)
        self._factors = column_factors_of(proto, plan)
        # laid open, then optimised: integer kernels run, and no output is fused into a later node
        self._inside = Inside(proto, list(dict.fromkeys(self._tensors.values())), optimise=True)

    @property
    def batch(self) -> int:
        return self._inside.batch or 1

    def of(self, images: Array) -> dict[str, Array]:
        values = self._inside.values(images)
        return {
            site: (values[tensor] / self._factors[site]).astype(np.float32) if site in self._factors else values[tensor]
            for site, tensor in self._tensors.items()
        }


def _arranged(values: Array | None, like: Array) -> Array | None:
    """values in the shape of `like`: a patch grid may be laid out flat, heads be folded into the batch.

    A file computes only the first row where nobody reads the others (see DropUnreadRows).
    """
    if values is None or _cut_axis(values, like) is not None:
        return values
    if values.size != like.size:
        return None
    if values.shape == like.shape:
        return values
    if like.ndim == 4 and values.ndim == 3 and values.shape[-1] == like.shape[1]:
        return values.swapaxes(1, 2).reshape(like.shape)
    return values.reshape(like.shape)


def _cut_axis(values: Array, like: Array) -> int | None:
    """The axis along which `values` holds the first row of `like` alone: of tokens, but the last axis is of columns."""
    if values.ndim != like.ndim or like.ndim < 3:
        return None
    cut = [axis for axis, (own, whole) in enumerate(zip(values.shape, like.shape, strict=True)) if own != whole]
    return cut[0] if len(cut) == 1 and values.shape[cut[0]] == 1 and cut[0] != like.ndim - 1 else None


def _rows_of(simulated: Array, held: Array) -> Array:
    """Those rows that the file holds: all, or the first."""
    axis = _cut_axis(held, simulated)
    return simulated if axis is None else np.take(simulated, [0], axis)


def _with_rows(simulated: Array, held: Array) -> Array:
    """`held`, and behind it the rows that only the simulator has."""
    axis = _cut_axis(held, simulated)
    if axis is None:
        return held
    return np.concatenate([held, np.take(simulated, range(1, simulated.shape[axis]), axis)], axis)
