"""ONNX Runtime's own float kernels inside a torch model: LayerNorm, softmax, GELU, sigmoid, means, float products, ...

The LayerNorms of two libraries differ in the last bit. Where a value lies halfway between two codes, that bit decides
which one it gets, and at few bits one code changes the next hundred. With the runtime's kernels on both sides,
what is left between a simulator and the file is what the file does wrong.

Sums, differences, products and quotients of elements are the same in both libraries, so they stay in torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ptq4vit_onnx.network.tensor_tags import made_of_pixels
from ptq4vit_onnx.simulation.node_models import FLOAT, Constant, Kind, Model, Node, compute, frozen, kinds_of

_SOFTMAX = {F.softmax, torch.softmax, Tensor.softmax}
_MEAN = {torch.mean, Tensor.mean}
_SUM = {torch.sum, Tensor.sum}
_NORM = {torch.norm, Tensor.norm, torch.linalg.vector_norm}
_UNARY: dict[Any, str] = {
    func: operation
    for operation, name in (("Sigmoid", "sigmoid"), ("Tanh", "tanh"), ("Exp", "exp"), ("Erf", "erf"), ("Log", "log"))
    for func in (getattr(torch, name), getattr(Tensor, name))
} | {F.sigmoid: "Sigmoid", F.tanh: "Tanh", F.hardswish: "HardSwish", F.softplus: "Softplus", F.elu: "Elu"}

# What is made of no pixel, tables of positions and scales of attention, the exporter computes by numpy, and stores it.
_BY_NUMPY: dict[Any, Any] = {
    torch.sin: np.sin, Tensor.sin: np.sin, torch.cos: np.cos, Tensor.cos: np.cos, torch.exp: np.exp, Tensor.exp: np.exp,
    Tensor.__rpow__: lambda exponent, basis: np.power(basis, exponent),
}  # fmt: skip


class RuntimeFloats(TorchFunctionMode):
    """While it is open, these operations of any torch model run in ONNX Runtime; all others run in torch.

    Enter it before `watching`, so that products are seen first: the products that arrive here are those that stay in
    float, and constants.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        stored = func in _BY_NUMPY and not made_of_pixels(args)
        kernel = partial(_in_numpy, _BY_NUMPY[func]) if stored else _KERNELS.get(func)
        out = NotImplemented if kernel is None or not _floats(args) else kernel(*args, **kwargs)
        if out is NotImplemented:
            out = func(*args, **kwargs)
            if func is Tensor.contiguous:
                out._ptq4vit_before_copy = args[0]
        return out


def _floats(args: tuple[Any, ...]) -> bool:
    return bool(args) and isinstance(args[0], Tensor) and args[0].dtype == torch.float32


def layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """As torch's; the operator always has a weight: ones, where torch has none, change no bit."""
    inputs = [input, torch.ones(*normalized_shape) if weight is None else weight, *([] if bias is None else [bias])]
    return _run("LayerNormalization", inputs, axis=-len(normalized_shape), epsilon=float(eps))


def softmax(input: Tensor, dim: int, _stacklevel: int = 3, dtype: Any = None) -> Tensor:
    return _run("Softmax", [input], axis=dim)


def gelu(input: Tensor, *, approximate: str = "none") -> Tensor:
    return _run("Gelu", [input], approximate=approximate)


def silu(input: Tensor, inplace: bool = False) -> Tensor:
    """The exporter writes x * Sigmoid(x), of which ONNX Runtime makes one kernel."""
    model = Model((Node("Sigmoid", ("x0",), "gate"), Node("Mul", ("x0", "gate"), "y")), kinds_of([input]))
    return compute(model, [input])


def mean(input: Tensor, dim: int | Sequence[int] | None = None, keepdim: bool = False, dtype: Any = None) -> Any:
    return _reduced("ReduceMean", input, dim, keepdim)


def total(input: Tensor, dim: int | Sequence[int] | None = None, keepdim: bool = False, dtype: Any = None) -> Any:
    return _reduced("ReduceSum", input, dim, keepdim)


def length(input: Tensor, ord: Any = 2, dim: Any = None, keepdim: bool = False, **others: Any) -> Any:
    """torch.norm(x, p, dim), torch.linalg.vector_norm(x, ord, dim); p by name, too."""
    plain = others.get("p", ord) in (2, 2.0, "fro", None) and others.get("dtype") is None
    return _reduced("ReduceL2", input, dim, keepdim) if plain else NotImplemented


def normalize(input: Tensor, p: float = 2.0, dim: int = 1, eps: float = 1e-12, out: Tensor | None = None) -> Any:
    """A vector over its length."""
    if p != 2.0 or out is not None:
        return NotImplemented
    return input / length(input, 2, dim, True).clamp_min(eps).expand_as(input)


def average_pool(input: Tensor, output_size: Any) -> Any:
    """F.adaptive_avg_pool2d to one value, which the exporter writes as a mean."""
    whole = output_size in (1, (1, 1), [1, 1])
    return _reduced("ReduceMean", input, (-2, -1), True) if whole else NotImplemented


def average_row(input: Tensor, output_size: Any) -> Any:
    """F.adaptive_avg_pool1d to one value: a mean, behind which ONNX Runtime moves no Transpose."""
    whole = output_size in (1, (1,), [1])
    return _run("ReduceMean", [input, torch.tensor([-1])], keepdims=1) if whole else NotImplemented


def pool_windows(
    input: Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False,
    count_include_pad: bool = True, divisor_override: int | None = None,
) -> Any:  # fmt: skip
    """F.avg_pool2d."""
    if ceil_mode or divisor_override is not None or input.dim() != 4:
        return NotImplemented
    kernel, strides, pads = (
        [x, x] if isinstance(x, int) else list(x) for x in (kernel_size, stride or kernel_size, padding)
    )
    return _run("AveragePool", [input], kernel_shape=kernel, strides=strides, pads=pads * 2,
                count_include_pad=int(count_include_pad))  # fmt: skip


def _reduced(operation: str, input: Tensor, dim: int | Sequence[int] | None, keepdim: bool) -> Any:
    """Over some axes. ONNX Runtime moves a Transpose in front of it behind it, so the order of addition is that of the
    elements in memory before any permutation, also of one that torch has copied."""
    if dim is None:
        return NotImplemented
    x = getattr(input, "_ptq4vit_before_copy", input)
    strides: tuple[int, ...] = x.stride()
    order = sorted(range(x.dim()), key=lambda axis: -strides[axis])
    turned = x.permute(order)
    if not turned.is_contiguous():
        order, turned = list(range(x.dim())), input
    axes = {axis % x.dim() for axis in ([dim] if isinstance(dim, int) else dim)}
    places = torch.tensor(sorted(order.index(axis) for axis in axes))
    out = _run(operation, [turned, places], keepdims=1).permute([order.index(axis) for axis in range(x.dim())])
    return out if keepdim else out.reshape([length for axis, length in enumerate(out.shape) if axis not in axes])


def batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Any:
    """The identity stays what it is: a norm that was folded into the convolution before it."""
    if running_mean is None or running_var is None or weight is None or bias is None or training:
        return NotImplemented
    if eps == 0.0 and not running_mean.any() and (running_var == 1).all() and (weight == 1).all() and not bias.any():
        return input
    statistics = [weight, bias, running_mean, running_var]
    return _run("BatchNormalization", [input, *statistics], epsilon=float(eps))


def group_norm(
    input: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """As the exporter writes it: InstanceNormalization of the groups, then the channels' own weights and biases."""
    grouped = [input.reshape(len(input), num_groups, -1), torch.ones(num_groups), torch.zeros(num_groups)]
    out = _run("InstanceNormalization", grouped, epsilon=float(eps)).reshape(input.shape)
    shape = (-1, *[1] * (input.dim() - 2))
    out = out if weight is None else out * weight.reshape(shape)
    return out if bias is None else out + bias.reshape(shape)


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """As the exporter writes it: Gemm for a matrix with a bias, else MatMul and Add."""
    if input.dim() == 2 and bias is not None:
        return _run("Gemm", [input, weight, bias], transB=1)
    out = matmul(input, weight.mT)
    return out if bias is None else out + bias


def matmul(input: Tensor, other: Tensor) -> Tensor:
    return _run("MatMul", [input, other])


def conv(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1,
    groups: int = 1,
) -> Any:  # fmt: skip
    """Its weight is a constant, so that ONNX Runtime lays it out as in the file."""
    if isinstance(padding, str) or input.dim() != weight.dim():
        return NotImplemented
    axes = weight.dim() - 2
    strides, pads, steps = ([x] * axes if isinstance(x, int) else list(x) for x in (stride, padding, dilation))
    options: dict[str, Any] = {"strides": strides, "pads": pads * 2, "dilations": steps, "group": groups}
    options["kernel_shape"] = list(weight.shape[2:])
    constants = [Constant(item) for item in (weight, bias) if item is not None]
    names = ("x0", *(f"c{place}" for place in range(len(constants))))
    node = Node("Conv", names, "y", frozen(options))
    shape = (None, *input.shape[1:])
    return compute(Model((node,), (Kind(shape, FLOAT),), tuple(constants)), [input])


def interpolate(
    input: Tensor, size: Any = None, scale_factor: Any = None, mode: str = "nearest", align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None, antialias: bool = False,
) -> Any:  # fmt: skip
    """To a size, bilinear or bicubic; what is sharpened or aligned otherwise stays torch's."""
    modes = {"bicubic": "cubic", "bilinear": "linear"}
    if size is None or mode not in modes or align_corners or antialias or input.dim() != 4:
        return NotImplemented
    sizes = [*input.shape[:2], *([size] * 2 if isinstance(size, int) else map(int, size))]
    options: dict[str, Any] = {
        "mode": modes[mode], "coordinate_transformation_mode": "half_pixel", "cubic_coeff_a": -0.75,
        "nearest_mode": "floor",
    }  # fmt: skip
    node = Node("Resize", ("x0", "", "", "c0"), "y", frozen(options))
    return compute(Model((node,), kinds_of([input]), (Constant(torch.tensor(sizes)),)), [input])


def _in_numpy(calculate: Any, input: Tensor, *others: Any) -> Any:
    if any(not isinstance(item, (int, float)) for item in others):
        return NotImplemented
    return torch.from_numpy(calculate(input.detach().numpy(), *(np.float32(item) for item in others)))


def _run(operation: str, inputs: list[Tensor], **attributes: Any) -> Tensor:
    names = tuple(f"x{place}" for place in range(len(inputs)))
    return compute(Model((Node(operation, names, "y", frozen(attributes)),), kinds_of(inputs)), inputs)


_KERNELS: dict[Any, Callable[..., Any]] = {
    F.layer_norm: layer_norm,
    F.gelu: gelu,
    F.silu: silu,
    F.normalize: normalize,
    F.batch_norm: batch_norm,
    F.group_norm: group_norm,
    F.avg_pool2d: pool_windows,
    F.linear: linear,
    F.interpolate: interpolate,
    F.adaptive_avg_pool2d: average_pool,
    F.adaptive_avg_pool1d: average_row,
    **dict.fromkeys(_SOFTMAX, softmax),
    **dict.fromkeys(_MEAN, mean),
    **dict.fromkeys(_SUM, total),
    **dict.fromkeys(_NORM, length),
    **dict.fromkeys((torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.bmm, torch.mm), matmul),
    **dict.fromkeys((F.conv1d, F.conv2d, torch.conv1d, torch.conv2d), conv),
    **{func: lambda input, *_, operation=name, **__: _run(operation, [input]) for func, name in _UNARY.items()},
}
