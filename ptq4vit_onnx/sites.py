"""A site: one product `lhs @ rhs` of the network, by the name its user knows.

blocks.0.attn.qkv    linear   rhs is a weight
patch_embed.proj     conv     a linear over flattened patches
blocks.0.attn.qk     matmul   both sides are activations, [.., heads, tokens, depth]
blocks.0.attn.pv     matmul   lhs comes out of softmax
blocks.0.mlp.fc2     linear   lhs comes out of GELU
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Kind = Literal["linear", "conv", "matmul"]
Source = Literal["softmax", "gelu", "other"]
KINDS: tuple[str, ...] = get_args(Kind)
SOURCES: tuple[str, ...] = get_args(Source)


@dataclass(frozen=True)
class Site:
    """name: unique; scope: path of the module whose forward computes the product (binds it to ONNX nodes).

    lhs_source: what feeds the left side. weight_groups: how many equal blocks of output columns the paper
    gives a weight scale of their own (3 for a fused qkv, else 1). heads: length of axis -3 of a matmul's
    sides, else 1. norm: path of the LayerNorm whose output a linear reads, moved about at most; else empty.
    has_bias: of a linear, as a parameter of its own that can be changed.
    """

    name: str
    kind: Kind
    scope: str
    lhs_source: Source = "other"
    weight_groups: int = 1
    heads: int = 1
    norm: str = ""
    has_bias: bool = False

    @property
    def rhs_is_weight(self) -> bool:
        return self.kind != "matmul"
