"""Inputs of a weight made of random numbers, and what rounding the weight costs, computed row by row."""

from __future__ import annotations

import torch
from torch import Tensor

from ptq4vit_onnx.calibration.rounding.moments import Moments
from ptq4vit_onnx.plan.quantizers import Affine, Uniform, as_float32
from ptq4vit_onnx.plan.quantizers.rounding import along_axis

LHS = Affine(8, (0.0625,), (128,))  # codes 0..255: pairs of weights add up to at most 128


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def alike(rows: int, inputs: int, seed: int = 1) -> Tensor:
    """Rows [rows, inputs] of which a quarter as many numbers, and a little noise, tell all."""
    few = max(1, inputs // 4)
    return drawn(rows, few, seed=seed) @ drawn(few, inputs, seed=seed + 1) + 0.1 * drawn(rows, inputs, seed=seed + 2)


def moments_of(rows: Tensor, d: Tensor | None = None, plain: Tensor | None = None) -> Moments:
    """Of quantised rows [n, inputs]. d: how much each row weighs [n]. plain: the rows before they were quantised."""
    weighed = rows.T if d is None else rows.T * d
    quantised = weighed @ rows
    return Moments(quantised, quantised if plain is None else weighed @ plain)


def scales_of(weight: Tensor, bits: int, groups: int = 0) -> Uniform:
    """Steps that just cover each group of outputs; groups 0: each output."""
    largest = weight.abs().amax(0).reshape(groups or weight.shape[1], -1).amax(1)
    return Uniform(bits, tuple(as_float32(value / 2 ** (bits - 1)) for value in largest.tolist()))


def decoded(codes: Tensor, rhs: Uniform) -> Tensor:
    values: Tensor = codes * along_axis(rhs.scale, codes, rhs.axis)
    return values


def lost(rows: Tensor, weight: Tensor, rounded: Tensor, d: Tensor | None = None) -> float:
    """sum d |x (W - Q)|^2 over the rows x."""
    squares = (rows.double() @ (weight - rounded).double()).square().sum(1)
    return float(squares.sum() if d is None else (d.double() * squares).sum())
