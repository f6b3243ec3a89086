"""What depends on what, read from the autograd graph: which operations lead from the pixels to the outputs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

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
