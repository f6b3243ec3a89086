"""One product as it is computed: its two sides, whichever function multiplies them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from ptq4vit_onnx.errors import UserError
from ptq4vit_onnx.network.patches import Window, windows
from ptq4vit_onnx.network.tensor_tags import norm_of, source_of
from ptq4vit_onnx.plan.quantizers.patch_order import flat_kernels
from ptq4vit_onnx.plan.sites import Site

# Below, putting windows together from bytes costs more than integers save: benchmarks/convolutions.py, with and without
# VNNI. A patch embedding reads every pixel once.
FEWEST_CHANNELS = 24


class NotAProductError(UserError):
    """A product that cannot be computed in integers. name: of its site, had it one; reason: why, as a clause."""

    def __init__(self, name: str, scope: str, reason: str) -> None:
        super().__init__(f"{name}: {reason}")
        self.name, self.scope, self.reason = name, scope, reason


@dataclass(frozen=True)
class Call:
    """One call of a product: out = arrange(lhs @ rhs + bias).

    linear   lhs [.., inputs], rhs [inputs, outputs]
    conv     lhs [batch, positions, inputs], rhs [inputs, outputs]; arrange folds positions back into an image
    matmul   lhs [.., heads, rows, inner], rhs [.., heads, inner, columns], both of four axes; no bias
    """

    site: Site
    lhs: Tensor
    rhs: Tensor
    bias: Tensor | None
    arrange: Callable[[Tensor], Tensor]
    unfinish: Callable[[Tensor], Tensor]  # the gradient of the output -> that of lhs @ rhs
    plain: Callable[[], Tensor]  # computes the output as the model does

    def finish(self, out: Tensor) -> Tensor:
        """From lhs @ rhs to the output."""
        return self.arrange(out if self.bias is None else out + self.bias)


def _as_it_is(x: Tensor) -> Tensor:
    return x


def linear_call(
    name: str, scope: str, x: Tensor, matrix: Tensor, bias: Tensor | None, has_bias: bool, plain: Callable[[], Tensor]
) -> Call:
    """matrix: the weight as [inputs, outputs]. has_bias: the bias is a parameter of this linear alone."""
    fused = name.rpartition(".")[2] in ("qkv", "in_proj") and matrix.shape[1] % 3 == 0
    site = Site(
        name, "linear", scope, source_of(x), 3 if fused else 1, norm=norm_of(x), has_bias=has_bias,
        weight_shape=shape_of(matrix),
    )  # fmt: skip
    return Call(site, x, matrix, bias, _as_it_is, _as_it_is, plain)


def shape_of(matrix: Tensor) -> tuple[int, int]:
    return int(matrix.shape[0]), int(matrix.shape[1])


def matmul_call(name: str, scope: str, lhs: Tensor, rhs: Tensor, plain: Callable[[], Tensor]) -> Call:
    """A product of two activations of any number of axes, which may broadcast.

    Scales may differ by head where there are four axes, the second of which has one length for all batches (see
    `discover`): [batch, heads, rows, inner]. Everything before the last two axes is one axis otherwise.
    """
    outer = np.broadcast_shapes(tuple(lhs.shape[:-2]), tuple(rhs.shape[:-2]))
    heads = outer[-1] if len(outer) == 2 else 1
    wide = (lhs.expand(*outer, *lhs.shape[-2:]), rhs.expand(*outer, *rhs.shape[-2:]))
    left, right = wide if len(outer) == 2 else (x.reshape(-1, 1, *x.shape[-2:]) for x in wide)

    def arrange(out: Tensor) -> Tensor:
        return out if len(outer) == 2 else out.reshape(*outer, *out.shape[-2:])

    def unfinish(grad: Tensor) -> Tensor:
        return grad if len(outer) == 2 else grad.reshape(-1, 1, *grad.shape[-2:])

    return Call(
        Site(name, "matmul", scope, source_of(lhs), heads=heads), left, right, None, arrange, unfinish, plain
    )  # fmt: skip


def conv_call(
    name: str, scope: str, x: Tensor, weight: Tensor, bias: Tensor | None, window: Window, plain: Callable[[], Tensor]
) -> Call:
    """A convolution is a product over its windows."""
    if window.groups != 1:
        raise NotAProductError(
            name, scope, f"a convolution in {window.groups} groups, which no integer kernel is faster at"
        )
    if not window.fills(x):
        size = tuple(int(length) for length in x.shape[-2:])
        reason = f"a convolution of {size} pixels, no whole number of windows {window.kernel}"
        raise NotAProductError(name, scope, reason)
    tiles, channels = window.tiles, int(weight.shape[1])
    if channels < FEWEST_CHANNELS and (window.is_pixel or not tiles):
        form = f"a convolution of kernel {window.kernel} and stride {window.stride} over {channels} channels"
        raise NotAProductError(name, scope, f"{form}, where integers are slower (below {FEWEST_CHANNELS})")
    rows, columns = window.positions(x)

    def arrange(out: Tensor) -> Tensor:
        return out.transpose(1, 2).reshape(len(out), -1, rows, columns)

    matrix = flat_kernels(weight, tiles).t()
    return Call(
        Site(name, "conv", scope, weight_shape=shape_of(matrix)),
        windows(x.detach(), window), matrix, bias, arrange, lambda grad: grad.flatten(2).transpose(1, 2), plain,
    )  # fmt: skip


def window_of(name: str, scope: str, x: Tensor, weight: Tensor, options: dict[str, Any]) -> Window:
    """options: stride, padding, dilation, groups of the call."""
    padding = options.get("padding", 0)
    if x.dim() != 4:
        raise NotAProductError(
            name, scope, f"a convolution of {x.dim()} axes; expected [batch, channels, height, width]"
        )
    stride, dilation = _pair(options.get("stride", 1)), _pair(options.get("dilation", 1))
    if isinstance(padding, str):
        kernel = tuple(weight.shape[-2:])
        needed = [step * (length - 1) for step, length in zip(dilation, kernel, strict=True)]
        if padding == "same" and any(length % 2 for length in needed):
            raise NotAProductError(name, scope, "a convolution padded by more on one side than on the other")
        padding = tuple(length // 2 for length in needed) if padding == "same" else (0, 0)
    kernel_size = (int(weight.shape[-2]), int(weight.shape[-1]))
    return Window(kernel_size, stride, _pair(padding), dilation, int(options.get("groups", 1)))


def _pair(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (int(value[0]), int(value[-1]))
