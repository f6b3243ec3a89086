"""Types of the part of onnx-graphsurgeon that this project uses; the library itself ships none.

A node and its tensors know each other: `node.inputs` and `tensor.outputs` are kept in step, so assigning a list to one
changes the other.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

class Tensor:
    """inputs: the nodes that write it, at most one. outputs: the nodes that read it."""

    name: str
    inputs: list[Node]
    outputs: list[Node]
    @property
    def shape(self) -> Sequence[int | str] | None: ...
    @property
    def dtype(self) -> Any: ...
    def is_empty(self) -> bool: ...

class Variable(Tensor):
    """A computed tensor. shape: None where unknown; a length may have a name instead of a number."""

    shape: list[int | str] | None
    dtype: Any
    def __init__(self, name: str, dtype: Any = None, shape: Sequence[int | str] | None = None) -> None: ...
    @staticmethod
    def empty() -> Variable: ...

class Constant(Tensor):
    values: NDArray[Any]
    def __init__(self, name: str, values: NDArray[Any]) -> None: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> np.dtype[Any]: ...

class Node:
    """attrs: numbers, strings, or lists of them, by the name that ONNX gives the attribute."""

    op: str
    name: str
    attrs: dict[str, Any]
    inputs: list[Tensor]
    outputs: list[Tensor]
    domain: str | None
    def __init__(
        self,
        op: str,
        name: str | None = None,
        attrs: dict[str, Any] | None = None,
        inputs: Sequence[Tensor] | None = None,
        outputs: Sequence[Tensor] | None = None,
        domain: str | None = None,
    ) -> None: ...

class Graph:
    nodes: list[Node]
    inputs: list[Tensor]
    outputs: list[Tensor]
    def cleanup(self) -> Graph: ...
    def toposort(self) -> Graph: ...
    def tensors(self) -> dict[str, Tensor]: ...
    def copy(self) -> Graph: ...

def import_onnx(onnx_model: onnx.ModelProto) -> Graph: ...
def export_onnx(graph: Graph) -> onnx.ModelProto: ...
