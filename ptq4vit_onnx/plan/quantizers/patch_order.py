"""The order in which the inputs of a patch embedding are multiplied."""

from __future__ import annotations

from typing import Any

import numpy as np

from ptq4vit_onnx.plan.quantizers.rounding import Tensor


def pair_far_inputs(flat: Tensor) -> Tensor:
    """The inputs of flattened patches or kernels [.., inputs] in the order they are multiplied in: each of the first
    half beside its counterpart in the second.

    As a kernel flattens, two pixels side by side would make a pair. Their weights mostly have one sign and their values
    move together, so that what pair-safety takes off adds up: in the published form of ViT-T at eight bits, fourteen
    such codes made a quarter of the model's KL. An odd number of inputs is left as it is.
    """
    inputs = flat.shape[-1]
    if inputs % 2:
        return flat
    return flat.reshape(*flat.shape[:-1], 2, inputs // 2).swapaxes(-1, -2).reshape(flat.shape)  # type: ignore[no-any-return]


def along_inputs(values: tuple[float, ...], inputs: int) -> np.ndarray[Any, Any]:
    """One value per colour as float32 [inputs], in the order of `pair_far_inputs`."""
    if inputs % len(values):
        raise ValueError(f"{len(values)} colours do not divide {inputs} inputs")
    return pair_far_inputs(np.repeat(np.asarray(values, np.float32), inputs // len(values)))
