"""Tensors inside a model, as ONNX Runtime computes them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import onnx

from ptq4vit_onnx.graph.integer_products import Array
from ptq4vit_onnx.runtime.feeding import as_fed
from ptq4vit_onnx.runtime.session import run_once, session, static_batch


def fetch(model: onnx.ModelProto, names: list[str], images: Array, optimise: bool = False) -> dict[str, Array]:
    """The values of tensors `names` for `images` [n, channels, height, width]; none for no names."""
    return Inside(model, names, optimise).values(images) if names else {}


class Inside:
    """A model laid open at tensors `names`. The graph runs as it is unless `optimise`."""

    def __init__(self, model: onnx.ModelProto, names: list[str], optimise: bool) -> None:
        self.names = names
        with _outputs(model, names):
            self._runner = session(model, optimise=optimise)

    @property
    def batch(self) -> int | None:
        """The number of images that the model is fixed to; None where it is free."""
        return static_batch(self._runner)

    def values(self, images: Array) -> dict[str, Array]:
        """The tensors for `images`; a model of static batch is run as often as they need."""
        images = as_fed(self._runner, images)
        size = static_batch(self._runner) or len(images)
        parts = [images[start : start + size] for start in range(0, len(images), size)]
        entry = self._runner.get_inputs()[0].name
        runs = [run_once(self._runner, {entry: _filled(part, size)}, self.names) for part in parts]
        return {
            name: _joined([values[position] for values in runs], size, len(images))
            for position, name in enumerate(self.names)
        }


def _filled(part: Array, size: int) -> Array:
    return part if len(part) == size else np.resize(part, (size, *part.shape[1:]))


def _joined(values: list[Array], size: int, count: int) -> Array:
    """The values of several runs of `size` images as those of one run of `count`.

    Images lie along the first axis, windows or heads possibly folded in; a classifier's product has a first
    axis of length 1 before it.
    """
    axis = 1 if values[0].shape[0] % size and values[0].ndim > 1 else 0
    whole = values[0] if len(values) == 1 else np.concatenate(values, axis)
    per_image = values[0].shape[axis] // size
    return whole if size * len(values) == count else whole.take(range(count * per_image), axis)


@contextmanager
def _outputs(model: onnx.ModelProto, names: list[str]) -> Iterator[None]:
    """`model` with `names` as its outputs while the context is open. ONNX Runtime infers their types."""
    original = list(model.graph.output)
    del model.graph.output[:]
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    try:
        yield
    finally:
        del model.graph.output[:]
        model.graph.output.extend(original)
