"""Search spaces: which quantizers are tried for one side of a product.

A grid has `count` candidates for each of `groups` groups (heads, or output columns of a weight); groups are searched
independently, and `pick(indices)` is the quantizer that takes candidate indices[g] in group g.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ptq4vit_onnx.plan.options import Options
from ptq4vit_onnx.plan.quantizers import Quantizer, Uniform

_TINY = 1e-12  # an all-zero tensor still needs a positive scale


@dataclass(frozen=True)
class UniformGrid:
    """scales: float32 [count, groups]. form: Uniform, or Diffused (error diffusion) for a patch embedding's weight."""

    bits: int
    axis: int
    scales: np.ndarray[tuple[int, int], np.dtype[np.float32]]
    form: type[Uniform] = Uniform

    @property
    def count(self) -> int:
        return self.scales.shape[0]

    @property
    def groups(self) -> int:
        return self.scales.shape[1]

    def pick(self, indices: Sequence[int]) -> Uniform:
        chosen = self.scales[np.asarray(indices), np.arange(self.groups)]
        return self.form(self.bits, tuple(chosen.tolist()), self.axis)

    def single(self, candidate: int, group: int) -> Uniform:
        """A candidate of one group, for that group's values alone."""
        return self.form(self.bits, (float(self.scales[candidate, group]),), self.axis)


@dataclass(frozen=True)
class ListGrid:
    """Candidates that quantise the whole tensor."""

    quantizers: tuple[Quantizer, ...]
    groups: int = 1
    axis: int = -3

    @property
    def count(self) -> int:
        return len(self.quantizers)

    def pick(self, indices: Sequence[int]) -> Quantizer:
        return self.quantizers[indices[0]]

    def single(self, candidate: int, group: int) -> Quantizer:
        return self.quantizers[candidate]

    def and_also(self, other: UniformGrid) -> ListGrid:
        """A grid of these candidates and those of another form with one group, so that one search compares both."""
        return ListGrid((*self.quantizers, *(other.single(index, 0) for index in range(other.count))))


Grid = UniformGrid | ListGrid


def factors(options: Options) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """`candidates` factors that divide [alpha, beta] evenly; zero is no scale, so alpha 0 starts a step up."""
    count = options.candidates
    if options.alpha > 0:
        return np.linspace(options.alpha, options.beta, count)
    return np.linspace(0, options.beta, count + 1)[1:]


def uniform_grid(x: Tensor, bits: int, groups: int, axis: int, options: Options) -> UniformGrid:
    """Symmetric candidates around max|x| / 2^(k-1), per group along `axis`."""
    largest = group_reduce(x.abs(), groups, axis, "amax").clamp(min=_TINY).numpy().astype(np.float64)
    scales = factors(options)[:, None] * (largest / 2 ** (bits - 1))[None]
    return UniformGrid(bits, axis, scales.astype(np.float32))


def channel_grid(weight: Tensor, bits: int, options: Options) -> UniformGrid:
    """Candidates with a scale per output for a weight [inputs, outputs], up to where no pair of codes exceeds 2^(k-1).

    Measured in its column's scale, a pair of neighbouring weights is large far more often than in the whole tensor's.
    Pair-safety (see saturation_safe_weights) then takes off more than a coarser scale loses, so coarser scales are
    candidates too.
    """
    even = weight.shape[0] // 2 * 2
    pairs = weight[0:even:2] + weight[1:even:2]
    reach = torch.cat([weight.abs(), pairs.abs()])
    return uniform_grid(reach, bits, weight.shape[1], -1, options)


def form_grid(form: type[Quantizer], x: Tensor, bits: int, options: Options) -> ListGrid:
    """What a form of quantizer offers for the values of x, as one tensor."""
    scales = factors(options).tolist()
    offered = form.candidates(bits, float(x.min()), float(x.max()), scales)
    assert form.searched != "scale" or len(offered) == len(scales), (
        f"{form.__name__} offers {len(offered)} candidates for {len(scales)} factors of its scale, expected one each"
    )
    return ListGrid(offered)


def group_reduce(x: Tensor, groups: int, axis: int, how: str) -> Tensor:
    """x reduced ("sum" or "amax") to one value per group, the groups being equal consecutive parts of `axis`."""
    if groups == 1:
        whole: Tensor = getattr(x, how)()
        return whole.reshape(1)
    others = [dim for dim in range(x.dim()) if dim != x.dim() + axis]
    line = getattr(x, how)(dim=others)  # first along the other axes: no copy of x
    reduced: Tensor = getattr(line.reshape(groups, -1), how)(dim=1)
    return reduced


def covering(x: Tensor, bits: int, groups: int, axis: int) -> Uniform:
    """The symmetric quantizer whose scale is max|x| / 2^(k-1): where the paper's search starts."""
    largest = group_reduce(x.abs(), groups, axis, "amax").clamp(min=_TINY)
    scales = (largest / 2 ** (bits - 1)).to(torch.float32)
    return Uniform(bits, tuple(float(scale) for scale in scales), axis)
