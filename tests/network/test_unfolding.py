"""Fused functions written out compute what torch's own do."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from ptq4vit_onnx.network.unfolding import Unfolding

CAUSAL = torch.ones(5, 5, dtype=torch.bool).triu(1)
PADDED = torch.tensor([[False] * 5, [False, False, False, True, True]])


@pytest.mark.parametrize(
    "masks",
    [
        {},
        {"attn_mask": CAUSAL},
        {"attn_mask": torch.zeros(5, 5).masked_fill(CAUSAL, float("-inf"))},
        {"attn_mask": CAUSAL.expand(4, 5, 5)},
        {"key_padding_mask": PADDED},
        {"key_padding_mask": PADDED, "attn_mask": CAUSAL},
        {"key_padding_mask": torch.zeros(2, 5).masked_fill(PADDED, float("-inf"))},
    ],
    ids=["none", "bool", "float", "by head", "padded", "padded and bool", "padded by floats"],
)
def test_multihead_attention_is_unfolded_with_its_masks(masks: dict[str, Any]) -> None:
    torch.manual_seed(0)
    attention, x = nn.MultiheadAttention(8, 2, batch_first=True).eval(), torch.randn(2, 5, 8)
    with torch.enable_grad():  # not the fast path
        expected, weights = attention(x, x, x, **masks)
        with Unfolding(), pytest.MonkeyPatch.context() as patched:  # torch's own must not be called
            patched.setattr(torch, "baddbmm", None)
            patched.setattr(nn.functional, "scaled_dot_product_attention", None)
            found, probabilities = attention(x, x, x, **masks)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(probabilities, weights)
