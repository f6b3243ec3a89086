"""Outlier channels apart from all others: the one definition of what the main and the narrow product multiply.

    x @ w  =  without_channels(x) @ without_channels(w)  +  only_channels(x) @ only_channels(w)

where channels are columns of x [.., inputs] and rows of w [inputs, outputs]. It is enough that one side of the main
product has zeros there: the file keeps x as it is and zeroes rows of w.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ptq4vit_onnx.plan.quantizers import Tensor

COLUMNS, ROWS = -1, 0  # which axis of x, and of w, the channels are


def only_channels(x: Tensor, channels: Sequence[int], axis: int) -> Tensor:
    """These channels of numpy or torch `x`, as a tensor of their own, contiguous."""
    index = list(channels)
    if isinstance(x, np.ndarray):
        return np.ascontiguousarray(x[index] if axis == ROWS else x[..., index])  # type: ignore[return-value]
    return (x[index] if axis == ROWS else x[..., index]).contiguous()  # type: ignore[no-any-return]


def without_channels(x: Tensor, channels: Sequence[int], axis: int) -> Tensor:
    """A copy of numpy or torch `x` in which these channels are zero."""
    copy = x.copy() if isinstance(x, np.ndarray) else x.clone()
    index = list(channels)
    if axis == ROWS:
        copy[index] = 0
    else:
        copy[..., index] = 0
    return copy
