"""ONNX Runtime's own convolutions, and what stands between them, inside a torch model.

They are what a file with products in float computes besides its integer products. A convolution's weight is a constant
of its session, as in the file: ONNX Runtime then lays it out in blocks of channels, and adds up in that order.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import onnx
import torch
import torch.nn.functional as F
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn

from ptq4vit_onnx.runtime.session import session

OPSET, IR_VERSION = 20, 9  # the opset that the float model is exported with
_OPTIONS = ("stride", "padding", "dilation", "groups")
_CONV = {F.conv2d, torch.conv2d}
_SUM = {torch.sum, Tensor.sum}
_SIMPLE: dict[Any, tuple[str, ...]] = {
    **dict.fromkeys((F.silu,), ("Sigmoid", "Mul")),
    **dict.fromkeys((F.hardswish,), ("HardSwish",)),
    **dict.fromkeys((F.sigmoid, torch.sigmoid, Tensor.sigmoid), ("Sigmoid",)),
    **dict.fromkeys((F.tanh, torch.tanh, Tensor.tanh), ("Tanh",)),
}


class RuntimeConvolutions:
    """Computes convolutions, norms, pools, sums and activations of torch in ONNX Runtime; NotImplemented for others."""

    def __init__(self) -> None:
        self.sessions: dict[int, tuple[Tensor, Any]] = {}  # by weight, which is held so that its id stays its own

    def __call__(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if func in _CONV:
            return self._convolve(*args, **kwargs)
        if func is F.batch_norm:
            return _normalise(*args, **kwargs)
        if func is F.group_norm:
            return _normalise_groups(*args, **kwargs)
        if func is F.avg_pool2d:
            return _average(*args, **kwargs)
        if func in _SUM and len(args) + len(kwargs) in (2, 3) and args[0].dtype == torch.float32:
            return _sum(*args, **kwargs)
        if func in _SIMPLE and args[0].dtype == torch.float32:
            return _run(_activation(_SIMPLE[func], args[0].dim()), args[0])
        return NotImplemented

    def _convolve(self, x: Tensor, weight: Tensor, bias: Tensor | None = None, *rest: Any, **options: Any) -> Any:
        given = {**dict(zip(_OPTIONS, rest, strict=False)), **options}
        if not isinstance(weight, nn.Parameter) or isinstance(given.get("padding"), str) or x.dim() != 4:
            return NotImplemented
        if id(weight) not in self.sessions:
            self.sessions[id(weight)] = weight, _convolution(weight, bias, given, tuple(x.shape[1:]))
        return _run(self.sessions[id(weight)][1], x)


def _convolution(weight: Tensor, bias: Tensor | None, given: dict[str, Any], shape: tuple[int, ...]) -> Any:
    stride, dilation = _pair(given.get("stride", 1)), _pair(given.get("dilation", 1))
    pads = _pair(given.get("padding", 0))
    constants = {"weight": weight, **({} if bias is None else {"bias": bias})}
    node = helper.make_node(
        "Conv", ["x", *constants], ["y"], strides=stride, dilations=dilation, pads=[*pads, *pads],
        group=int(given.get("groups", 1)),
    )  # fmt: skip
    return _session([node], ["batch", *shape], constants)


def _normalise(
    x: Tensor, mean: Tensor | None, variance: Tensor | None, weight: Tensor | None = None, bias: Tensor | None = None,
    training: bool = False, momentum: float = 0.1, eps: float = 1e-5,
) -> Any:  # fmt: skip
    """The identity stays what it is: a norm that was folded into the convolution before it."""
    if mean is None or variance is None or weight is None or bias is None or training:
        return NotImplemented
    if eps == 0.0 and not mean.any() and (variance == 1).all() and (weight == 1).all() and not bias.any():
        return x
    constants = {"weight": weight, "bias": bias, "mean": mean, "variance": variance}
    node = helper.make_node("BatchNormalization", ["x", *constants], ["y"], epsilon=float(eps))
    return _run(_session([node], ["batch", *x.shape[1:]], constants), x)


def _normalise_groups(
    x: Tensor, groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Any:
    """As the exporter writes it: InstanceNormalization of the groups, then the channels' own weights and biases."""
    constants = {"weight": torch.ones(groups), "bias": torch.zeros(groups)}
    node = helper.make_node("InstanceNormalization", ["x", *constants], ["y"], epsilon=float(eps))
    out = _run(_session([node], ["batch", groups, "inputs"], constants), x.reshape(len(x), groups, -1)).reshape(x.shape)
    shape = (-1, *[1] * (x.dim() - 2))
    out = out if weight is None else out * weight.reshape(shape)
    return out if bias is None else out + bias.reshape(shape)


def _average(
    x: Tensor, kernel: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False,
    count_include_pad: bool = True, divisor_override: int | None = None,
) -> Any:  # fmt: skip
    if ceil_mode or divisor_override is not None or x.dim() != 4:
        return NotImplemented
    node = helper.make_node(
        "AveragePool", ["x"], ["y"], count_include_pad=int(count_include_pad), kernel_shape=_pair(kernel),
        strides=_pair(stride or kernel), pads=_pair(padding) * 2,
    )  # fmt: skip
    return _run(_session([node], ["batch", *x.shape[1:]], {}), x)


def _sum(x: Tensor, dim: Any, keepdim: bool = False) -> Any:
    axes = torch.tensor([dim] if isinstance(dim, int) else list(dim))
    node = helper.make_node("ReduceSum", ["x", "axes"], ["y"], keepdims=int(keepdim))
    return _run(_session([node], [f"axis_{axis}" for axis in range(x.dim())], {"axes": axes}), x)


@lru_cache(maxsize=32)
def _activation(operations: tuple[str, ...], rank: int) -> Any:
    """One operation, or Sigmoid and the Mul by its own input."""
    first = helper.make_node(operations[0], ["x"], ["y" if len(operations) == 1 else "gate"])
    nodes = [first] if len(operations) == 1 else [first, helper.make_node(operations[1], ["x", "gate"], ["y"])]
    return _session(nodes, [f"axis_{axis}" for axis in range(rank)], {})


def _session(nodes: list[Any], shape: list[Any], constants: dict[str, Tensor]) -> Any:
    held = [numpy_helper.from_array(value.detach().numpy(), name) for name, value in constants.items()]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "floats", [x], [y], held)
    opsets = [helper.make_opsetid("", OPSET)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION)
    return session(onnx.shape_inference.infer_shapes(model))


def _run(runner: Any, x: Tensor) -> Tensor:
    return torch.from_numpy(runner.run(None, {"x": x.detach().contiguous().numpy()})[0])


def _pair(value: Any) -> list[int]:
    return [value, value] if isinstance(value, int) else [int(item) for item in value]
