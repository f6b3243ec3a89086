"""Successive halving: which candidates go on to the next larger sample, and what the smaller ones said of them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

NEIGHBOURS = 4  # candidates of a weight that the smallest sample judges by one of them


@dataclass(frozen=True)
class Known:
    """What several samples of a linear said of each candidate [n, groups]: the mean of its losses.

    They count by the squares of their rows: the more rows are drawn, the more of the heavy ones are certain to be
    among them, and so twice the rows tell more than twice as much.
    """

    losses: Tensor
    weight: int = 0

    @classmethod
    def nothing_of(cls, candidates: Tensor) -> Known:
        return cls(torch.zeros(candidates.shape, dtype=torch.float64))

    def and_of(self, losses: Tensor, rows: int) -> Known:
        """With one more sample, of `rows`."""
        weight = self.weight + rows**2
        return Known(self.losses + (losses - self.losses) * (rows**2 / weight), weight)

    def of(self, best: Tensor) -> Known:
        return Known(self.losses.gather(0, best), self.weight)


def best_of(candidates: Tensor, losses: Tensor, count: int) -> Tensor:
    """The `count` candidates of each group with the smallest losses, best first; all are [n, groups]."""
    return candidates.gather(0, losses.argsort(dim=0, stable=True)[:count])


def scouts(candidates: Tensor) -> Tensor:
    """One of every few of all candidates [n, groups], which are in order, the largest scale first."""
    index = torch.arange(0, len(candidates), NEIGHBOURS) + NEIGHBOURS // 2
    return candidates[index.clamp(max=len(candidates) - 1)]


def with_neighbours(scouts: Tensor, count: int) -> Tensor:
    """The candidates that `scouts` [n, groups] stand for, of `count` in all: [n * NEIGHBOURS, groups]."""
    around = scouts[:, None] + torch.arange(-1, NEIGHBOURS - 1).flip(0)[:, None]
    return around.clamp(0, count - 1).flatten(0, 1)
