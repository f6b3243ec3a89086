"""What passes ask about tensors and nodes, and how they change who reads what."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np
import onnx_graphsurgeon as gs

Array: TypeAlias = np.ndarray[Any, Any]


def values_of(tensor: gs.Tensor) -> Array:
    """The values of a tensor that is known to be a constant."""
    assert isinstance(tensor, gs.Constant), f"{tensor.name} is computed, not a constant"
    return tensor.values


def shape_of(tensor: gs.Tensor) -> Sequence[int | str]:
    """The shape of a tensor whose shape is known."""
    assert tensor.shape is not None, f"the shape of {tensor.name} is unknown"
    return tensor.shape


def whole_lengths(shape: Sequence[int | str] | None) -> list[int] | None:
    """The lengths as numbers; None where one of them is only a name, or the rank is unknown."""
    numbers = [length for length in shape or () if isinstance(length, int)]
    return numbers if shape is not None and len(numbers) == len(shape) else None


def maker_of(tensor: gs.Tensor) -> gs.Node | None:
    """The node that computes the tensor; None for constants and the graph's inputs."""
    return tensor.inputs[0] if tensor.inputs else None


def is_made_by(tensor: gs.Tensor, operation: str) -> bool:
    maker = maker_of(tensor)
    return maker is not None and maker.op == operation


def only_reader(tensor: gs.Tensor) -> gs.Node | None:
    """The node that reads the tensor, if there is exactly one."""
    return tensor.outputs[0] if len(tensor.outputs) == 1 else None


def constant_inputs(node: gs.Node) -> list[gs.Constant]:
    return [item for item in node.inputs if isinstance(item, gs.Constant)]


def computed_input(node: gs.Node) -> gs.Tensor:
    """The first input that is no constant."""
    return next(item for item in node.inputs if not isinstance(item, gs.Constant))


def read_instead(readers: Iterable[gs.Node], old: gs.Tensor, new: gs.Tensor) -> None:
    """Let the nodes read `new` wherever they read `old`."""
    for node in list(readers):
        node.inputs = [new if item is old else item for item in node.inputs]


def replace_tensor(old: gs.Tensor, new: gs.Tensor) -> None:
    """`new` takes the place and the name of `old`; the node that computed `old` loses its output."""
    maker = new.inputs[0]
    old.inputs.clear()
    maker.outputs = [old]
