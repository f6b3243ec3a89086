"""Products of whole numbers, exact in floating point: the one definition for simulator and oracle."""

from __future__ import annotations

from typing import Any

import numpy as np

from ptq4vit_onnx.plan.quantizers import Tensor

EXACT = 2**24  # float32 holds every whole number up to here


def exact_product(lhs: Tensor, rhs: Tensor) -> Tensor:
    """lhs [.., rows, inner] @ rhs [.., inner, columns] of whole numbers held in float32; numpy or torch.

    float32 adds them up exactly as long as no sum can exceed 2^24, so the inner axis is cut into parts that cannot, and
    the parts are added up in float64. Codes have at most 8 bits and inner axes fewer than 2^20 entries: sums stay below
    2^36, where float64 is exact too.
    """
    largest = float(abs(lhs).max()) * float(abs(rhs).max()) if len(lhs) and len(rhs) else 0.0
    inner, step = lhs.shape[-1], max(1, int(EXACT // max(largest, 1.0)))
    if step >= inner:
        return lhs @ rhs  # type: ignore[no-any-return]
    parts = (slice(start, start + step) for start in range(0, inner, step))
    total: Tensor = sum(_wide(lhs[..., part] @ rhs[..., part, :]) for part in parts)
    return total


def _wide(x: Tensor) -> Any:
    return x.astype(np.float64) if isinstance(x, np.ndarray) else x.double()
