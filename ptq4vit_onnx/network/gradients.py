"""The inputs of weights and the gradients of what they compute, handed on call by call instead of being kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set

from torch import Tensor

from ptq4vit_onnx.network.calls import Call
from ptq4vit_onnx.network.dependencies import own_tensor
from ptq4vit_onnx.network.recording import Recorder, rows_of

# Takes the inputs [rows, inputs] of one call, and later, behind it, the gradient [rows, outputs] of its product.
Listener = Callable[[Tensor], Callable[[Tensor], None]]


class GradientRecorder(Recorder):
    """Records the first batches as `Recorder` does, and lets `listeners`, by site, hear all of them.

    first: of how many batches the recording is. A site's listener has heard all calls when its recording is taken.
    """

    def __init__(
        self, most: int, seed: int, foldable: Set[str], sites: Set[str], changed: Set[str],
        listeners: Mapping[str, Listener], first: int,
    ) -> None:  # fmt: skip
        super().__init__(most, seed, foldable, sites, changed)
        self.listeners, self.first = listeners, first
        self.calls: dict[str, int] = {}

    def __call__(self, call: Call) -> Tensor:
        name = call.site.name
        seen = self.calls.get(name, 0)
        out = super().__call__(call) if seen < self.first else own_tensor(call.plain())
        if not out.requires_grad:  # blocks compute without a graph first, and again with one
            return out
        self.calls[name] = seen + 1
        if name in self.listeners:
            answer = self.listeners[name](rows_of(call.lhs, call, None))
            out.register_hook(lambda grad: answer(rows_of(call.unfinish(grad), call, None)))  # type: ignore[no-untyped-call]
        return out
