"""What depends on what, read from the autograd graph: which operations lead from the pixels to the outputs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from ptq4vit_onnx.errors import UserError, one_line

Node = Any  # an operation of the autograd graph (grad_fn); equal where it is the same one


@contextmanager
def graph_alone() -> Iterator[None]:
    """Record the autograd graph without its saved tensors: it can be walked, not differentiated."""

    def refuse(_: Any) -> Any:
        raise AssertionError("no values were kept for a backward pass")

    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(lambda _: None, refuse):
        yield


def own_tensor(out: Tensor) -> Tensor:
    """The tensor, copied if it is a view: a view that is changed in place gets another grad_fn."""
    return out.clone() if out._is_view() else out


def behind(starts: Iterable[Node | None]) -> set[Node]:
    """The operations that these are computed from, and they themselves; leaves of the graph are left out."""
    waiting, found = [node for node in starts if node is not None], set()
    while waiting:
        node = waiting.pop()
        if node not in found and not hasattr(node, "variable"):
            found.add(node)
            waiting += [source for source, _ in node.next_functions if source is not None]
    return found


def between(leaf: Tensor, end: Tensor) -> set[Node]:
    """The operations that lead from a leaf to `end`: what depends on the one and matters to the other."""
    readers: dict[Node, list[Node]] = {}
    for node in behind([end.grad_fn]):
        for source, _ in node.next_functions:
            readers.setdefault(source, []).append(node)
    start = torch.autograd.graph.get_gradient_edge(leaf).node
    waiting, found = list(readers.get(start, [])), set()
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            waiting += readers.get(node, [])
    return found


def cannot_differentiate(error: Exception) -> UserError | None:
    """For what torch says of a forward that overwrites a value which its own gradient needs; None for another error."""
    said = one_line(error)
    if "inplace" not in said and "in-place" not in said:
        return None
    return UserError(
        f"cannot quantise this model: its forward cannot be differentiated, which calibration needs ({said[:150]}); "
        "compute a tensor anew where it is changed in place: x = x - y for x -= y or x.sub_(y)"
    )


def require_gradients(outputs: Iterable[Tensor]) -> None:
    if not any(output.requires_grad for output in outputs):
        raise UserError(
            "cannot quantise this model: gradients do not flow from its images to what it returns, and calibration "
            "needs them; give a module whose forward has no torch.no_grad, no detach and no numpy"
        )
