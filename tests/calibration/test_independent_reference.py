"""Two implementations of the published search, which share no code, find the same scales.

Of GELU's twin it is D2 that is compared: for D1 the reference counts one code more. Six bits: no pair of such weights
has to be made safe, which the reference knows nothing of.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.independent_reference import Product
from ptq4vit_onnx.calibration.calibrate import plan_site
from ptq4vit_onnx.network.recording import Recording
from ptq4vit_onnx.plan.options import Options
from ptq4vit_onnx.plan.scale_plan import SitePlan
from ptq4vit_onnx.plan.sites import Site

BITS = 6


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def ours(site: Site, lhs: Tensor, rhs: Tensor, grad: Tensor, rounds: int) -> SitePlan:
    options = Options.paper(weight_bits=BITS, activation_bits=BITS, rounds=rounds, search="exhaustive")
    return plan_site(Recording(site, lhs, rhs, grad), options)


def theirs(kind: str, lhs: Tensor, rhs: Tensor, grad: Tensor, rounds: int, weight: Tensor | None = None) -> Product:
    product = Product(kind, weight)
    product.record(lhs, rhs, grad)
    product.calibrate(BITS, rounds)
    return product


@pytest.mark.parametrize("rounds", [1, 2])
@pytest.mark.parametrize(("source", "groups"), [("other", 1), ("other", 3), ("gelu", 1)])
def test_of_a_linear(source: Any, groups: int, rounds: int) -> None:
    lhs, weight, grad = normal(600, 24, seed=0), normal(24, 12, seed=1) ** 3, normal(600, 12, seed=2) ** 3
    lhs = torch.nn.functional.gelu(2 * lhs) if source == "gelu" else lhs
    found = ours(Site("fc", "linear", "fc", lhs_source=source, weight_groups=groups), lhs, weight, grad, rounds)
    parts = weight.T.reshape(groups, -1, 24).mT.contiguous()
    grads = grad.T.reshape(groups, -1, 600).mT.contiguous()
    kind = "uniform" if source == "other" else source
    reference = theirs(kind, lhs[None], parts, grads, rounds, parts)
    torch.testing.assert_close(torch.tensor(found.rhs.scale), reference.scale_b.flatten())
    lhs_scale: Any = found.lhs.coordinates
    torch.testing.assert_close(torch.tensor(lhs_scale).reshape(1), reference.scale_a.flatten())


@pytest.mark.parametrize("rounds", [1, 2])
@pytest.mark.parametrize("source", ["other", "softmax"])
def test_of_two_activations(source: Any, rounds: int) -> None:
    lhs, rhs, grad = normal(5, 2, 40, 30, seed=0), normal(5, 2, 30, 16, seed=1), normal(5, 2, 40, 16, seed=2) ** 3
    lhs = (3 * lhs).softmax(-1) if source == "softmax" else lhs
    found = ours(Site("qk", "matmul", "attn", lhs_source=source, heads=2), lhs, rhs, grad, rounds)
    reference = theirs("uniform" if source == "other" else source, lhs, rhs, grad, rounds)
    torch.testing.assert_close(torch.tensor(found.rhs.scale), reference.scale_b.flatten())
    lhs_scale: Any = found.lhs.branches[0].steps
    torch.testing.assert_close(torch.tensor(lhs_scale).flatten(), reference.scale_a.flatten())
