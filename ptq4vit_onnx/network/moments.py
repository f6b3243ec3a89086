"""Second moments of the quantised inputs of every weight, added up image by image: what compensated rounding needs.

Keeping the inputs themselves would take as much memory as there are images. Of each weight [inputs, outputs] only a
matrix [inputs, inputs] is kept, and one block's at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass

import torch
from torch import Tensor

from ptq4vit_onnx.network.calls import Call
from ptq4vit_onnx.network.dependencies import own_tensor
from ptq4vit_onnx.network.recording import Recorder, Recording, rows_of

Inputs = Callable[[Tensor], tuple[Tensor, Tensor]]  # rows [n, inputs] -> as the file multiplies them, and as they were


@dataclass(frozen=True)
class Moments:
    """Sums over all rows x of a weight's inputs, each row weighed by d, the root mean square of its output's gradient.

    quantised: sum d q q^T [inputs, inputs] of the quantised rows q. crossed: sum d q x^T, the rows x being what the
    float model multiplies. weight: sum d.
    The root of the Fisher diagonal, not the diagonal itself: with the diagonal a few tokens would make all of the sum,
    with no weight at all a few huge inputs (DeiT-T at W4A8, KL: 0.060 with the root, 0.070 and 0.081 with the others).
    """

    quantised: Tensor
    crossed: Tensor
    weight: float


@dataclass(frozen=True)
class Observation:
    """One site in the second pass: the recording of the images that were searched on; moments of a weight, of all."""

    recording: Recording
    moments: Moments | None


class MomentRecorder(Recorder):
    """Records the first batches as `Recorder` does, and adds up moments of the weights in `inputs` over all of them.

    inputs: by site. first: of how many batches the recording is. crossed: whether crossed moments are added up, too;
    they are the quantised ones otherwise.
    """

    def __init__(
        self, most: int, seed: int, foldable: Set[str], sites: Set[str], changed: Set[str], *,
        inputs: Mapping[str, Inputs], first: int, crossed: bool,
    ) -> None:  # fmt: skip
        super().__init__(most, seed, foldable, sites, changed)
        self.inputs, self.first, self.crossed = inputs, first, crossed
        self.sums: dict[str, Sums] = {}

    def __call__(self, call: Call) -> Tensor:
        name = call.site.name
        sums = self.sums.setdefault(name, Sums())
        out = super().__call__(call) if sums.calls < self.first else own_tensor(call.plain())
        if not out.requires_grad or name not in (self.sites or ()):
            return out
        sums.calls += 1
        if name in self.inputs:
            sides = self.inputs[name](rows_of(call.lhs, call, None))
            out.register_hook(lambda grad: self._add(sums, sides, rows_of(call.unfinish(grad), call, None)))  # type: ignore[no-untyped-call]
        return out

    def _add(self, sums: Sums, sides: tuple[Tensor, Tensor], grad: Tensor) -> None:
        """sides: the inputs [rows, inputs] of one call, quantised and as they were; grad: [rows, outputs]."""
        quantised, plain = sides
        d = torch.linalg.vector_norm(grad, dim=-1, keepdim=True) / grad.shape[-1] ** 0.5
        weighed = (quantised * d).T
        sums.add(weighed @ quantised, weighed @ plain if self.crossed else None, float(d.sum()))

    def observe(self) -> Iterator[Observation]:
        """The sites whose gradients are all there, last site first; they are forgotten then."""
        for recording in self.take():
            sums = self.sums.pop(recording.site.name)
            yield Observation(recording, sums.moments)


class Sums:
    """Moments of one site so far. calls: how often it was computed."""

    def __init__(self) -> None:
        self.calls, self.weight = 0, 0.0
        self.quantised: Tensor | None = None
        self.crossed: Tensor | None = None

    def add(self, quantised: Tensor, crossed: Tensor | None, weight: float) -> None:
        self.weight += weight
        self.quantised = quantised if self.quantised is None else self.quantised.add_(quantised)
        if crossed is not None:
            self.crossed = crossed if self.crossed is None else self.crossed.add_(crossed)

    @property
    def moments(self) -> Moments | None:
        if self.quantised is None:
            return None
        return Moments(self.quantised, self.quantised if self.crossed is None else self.crossed, self.weight)
