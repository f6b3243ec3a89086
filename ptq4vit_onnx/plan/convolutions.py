"""The inputs of a convolution as those of a product: their order, which torch and ONNX must share."""

from __future__ import annotations

from typing import Any

from ptq4vit_onnx.plan.quantizers.patch_order import pair_far_inputs

# Windows that overlap are copied before they are multiplied. Below this many channels the copies take longer than
# ONNX Runtime's float convolution does as a whole (3 channels, kernel 3: 2.3 times; 32 channels: 0.7 times).
LEAST_CHANNELS = 16


def matrix_of(weight: Any, tiles: bool) -> Any:
    """A weight [outputs, channels, height, width] as [inputs, outputs], of a torch tensor or a numpy array.

    tiles: the windows tile the image. Then far pixels make pairs, as `pair_far_inputs` orders them; else the inputs
    are ordered by row, column and channel of the window.
    """
    if tiles:
        return pair_far_inputs(weight.reshape(weight.shape[0], -1)).T
    by_position = weight.permute(2, 3, 1, 0) if hasattr(weight, "permute") else weight.transpose(2, 3, 1, 0)
    return by_position.reshape(-1, weight.shape[0])
