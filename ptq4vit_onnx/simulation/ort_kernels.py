"""ONNX Runtime's own float kernels inside a torch model: LayerNorm, softmax, GELU and mean.

The LayerNorms of two libraries differ in the last bit. Where a value lies halfway between two codes, that bit decides
which one it gets, and at few bits one code changes the next hundred. With the runtime's kernels on both sides,
what is left between a simulator and the file is what the file does wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import onnx
import torch
import torch.nn.functional as F
from onnx import TensorProto, helper
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ptq4vit_onnx.runtime.session import session
from ptq4vit_onnx.simulation.ort_convolutions import RuntimeConvolutions

OPSET, IR_VERSION = 20, 9  # the opset that the float model is exported with
_SOFTMAX = {F.softmax, torch.softmax, Tensor.softmax}
_MEAN = {torch.mean, Tensor.mean}


class RuntimeFloats(TorchFunctionMode):
    """While it is open, these operations of any torch model run in ONNX Runtime; all others run in torch.

    Enter it before `watching`, so that products are seen first.
    """

    def __init__(self) -> None:
        super().__init__()
        self.convolutions = RuntimeConvolutions()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is F.layer_norm:
            return layer_norm(*args, **kwargs)
        if func in _SOFTMAX:
            return softmax(*args, **kwargs)
        if func is F.gelu:
            return gelu(*args, **kwargs)
        if func in _MEAN and (len(args) > 1 or "dim" in kwargs):
            return mean(*args, **kwargs)
        out = self.convolutions(func, args, kwargs)
        return func(*args, **kwargs) if out is NotImplemented else out


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


def mean(input: Tensor, dim: int | Sequence[int], keepdim: bool = False) -> Tensor:
    axes = [dim] if isinstance(dim, int) else list(dim)
    return _run("ReduceMean", [input, torch.tensor(axes)], keepdims=int(keepdim))


def _run(operation: str, inputs: list[Tensor], **attributes: Any) -> Tensor:
    ranks = tuple((x.dim(), x.dtype == torch.int64) for x in inputs)
    runner = _session(operation, ranks, tuple(sorted(attributes.items())))
    feeds = {f"x{index}": x.detach().contiguous().numpy() for index, x in enumerate(inputs)}
    return torch.from_numpy(runner.run(None, feeds)[0])


@lru_cache(maxsize=64)
def _session(operation: str, ranks: tuple[tuple[int, bool], ...], attributes: tuple[tuple[str, Any], ...]) -> Any:
    """A model of one node, its inputs of these ranks (and whether they are int64)."""
    names = [f"x{index}" for index in range(len(ranks))]
    values = [
        helper.make_tensor_value_info(
            name, TensorProto.INT64 if whole else TensorProto.FLOAT, [f"{name}_{axis}" for axis in range(rank)]
        )
        for name, (rank, whole) in zip(names, ranks, strict=True)
    ]
    node = helper.make_node(operation, names, ["y"], **dict(attributes))
    output = onnx.ValueInfoProto(name="y")
    output.type.tensor_type.elem_type = TensorProto.FLOAT
    graph = helper.make_graph([node], operation, values, [output])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
    return session(model)
