"""Recordings made of random numbers, for the tests of calibration."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from ptq4vit_onnx.network.recording import Recording
from ptq4vit_onnx.plan.sites import Site

QUICK: dict[str, Any] = {"candidates": 20, "rounds": 1}
SITE = Site("fc", "linear", "fc")


def recording(source: str = "other", rows: int = 300, inputs: int = 64) -> Recording:
    """A linear of 24 outputs whose rows weigh alike."""
    generator = torch.Generator().manual_seed(0)
    lhs = torch.randn(rows, inputs, generator=generator)
    if source == "gelu":
        lhs = torch.nn.functional.gelu(lhs)
    rhs = torch.randn(inputs, 24, generator=generator)
    site = Site("fc", "linear", "fc", source)  # type: ignore[arg-type]
    return Recording(site, lhs, rhs, torch.randn(rows, 24, generator=generator))


def uneven(rows: int = 600, has_bias: bool = True) -> Recording:
    """A linear behind a LayerNorm whose channels have ranges from 1/8 to 8 around centres from -4 to 4."""
    item = recording(rows=rows, inputs=32)
    item.lhs.mul_(torch.logspace(-3, 3, 32, base=2)).add_(torch.linspace(-4, 4, 32))
    item.rhs.div_(torch.logspace(-3, 3, 32, base=2)[:, None])
    return replace(item, site=replace(item.site, norm="norm", has_bias=has_bias))


def linear(rows: int = 400, inputs: int = 24, outputs: int = 16, seed: int = 0) -> Recording:
    """A linear whose rows weigh very differently: their gradients are cubes."""
    generator = torch.Generator().manual_seed(seed)
    lhs = torch.randn(rows, inputs, generator=generator)
    rhs = torch.randn(inputs, outputs, generator=generator) / 4
    return Recording(SITE, lhs, rhs, torch.randn(rows, outputs, generator=generator).pow(3))


def attention(batch: int = 6, tokens: int = 20, seed: int = 0) -> Recording:
    """Q @ K^T of three heads whose queries have different ranges."""
    generator = torch.Generator().manual_seed(seed)
    lhs = torch.randn(batch, 3, tokens, 8, generator=generator) * torch.tensor([1.0, 4.0, 0.3])[:, None, None]
    rhs = torch.randn(batch, 3, 8, tokens, generator=generator)
    grad = torch.randn(batch, 3, tokens, tokens, generator=generator)
    return Recording(Site("qk", "matmul", "attn", heads=3), lhs, rhs, grad)
