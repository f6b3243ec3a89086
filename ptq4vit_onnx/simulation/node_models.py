"""Models of one or two nodes, run by ONNX Runtime on torch's tensors."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor

from ptq4vit_onnx.runtime.session import session

FLOAT = TensorProto.FLOAT
OPSET, IR_VERSION = 20, 9  # the opset that the float model is exported with


@dataclass(frozen=True)
class Kind:
    """What enters: lengths of the axes, None where any; and TensorProto's type."""

    shape: tuple[int | None, ...]
    type: int


@dataclass(frozen=True)
class Node:
    operation: str
    inputs: tuple[str, ...]
    output: str
    attributes: tuple[tuple[str, Any], ...] = ()


class Constant:
    """A parameter; equal to another one of the same values."""

    def __init__(self, value: Tensor) -> None:
        self.value = value.detach().contiguous().numpy()
        self.key = (self.value.shape, hashlib.blake2b(self.value.tobytes()).digest())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Constant) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


@dataclass(frozen=True)
class Model:
    """A few nodes from inputs x0, x1, .. and constants c0, c1, .. to y."""

    nodes: tuple[Node, ...]
    inputs: tuple[Kind, ...]
    constants: tuple[Constant, ...] = ()


def kinds_of(inputs: list[Tensor]) -> tuple[Kind, ...]:
    types = {torch.int64: TensorProto.INT64}
    return tuple(Kind((None,) * x.dim(), types.get(x.dtype, TensorProto.FLOAT)) for x in inputs)


def frozen(attributes: dict[str, Any]) -> tuple[tuple[str, Any], ...]:
    return tuple((key, tuple(x) if isinstance(x, list) else x) for key, x in sorted(attributes.items()))


def compute(model: Model, inputs: list[Tensor]) -> Tensor:
    feeds = {f"x{place}": x.detach().contiguous().numpy() for place, x in enumerate(inputs)}
    return torch.from_numpy(_session(model).run(None, feeds)[0])


@lru_cache(maxsize=256)
def _session(model: Model) -> Any:
    values = [
        helper.make_tensor_value_info(
            f"x{place}", kind.type, [f"x{place}_{axis}" if n is None else n for axis, n in enumerate(kind.shape)]
        )
        for place, kind in enumerate(model.inputs)
    ]
    nodes = [
        helper.make_node(item.operation, item.inputs, [item.output], **dict(item.attributes)) for item in model.nodes
    ]
    constants = [numpy_helper.from_array(item.value, f"c{place}") for place, item in enumerate(model.constants)]
    output = onnx.ValueInfoProto(name="y")
    output.type.tensor_type.elem_type = TensorProto.FLOAT
    graph = helper.make_graph(nodes, model.nodes[-1].operation, values, [output], constants)
    opset = [helper.make_opsetid("", OPSET)]
    return session(helper.make_model(graph, opset_imports=opset, ir_version=IR_VERSION))
