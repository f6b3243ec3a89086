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
    sides, else 1. norm: path of the LayerNorm whose output a linear reads as it is or rearranged; else empty.
    has_bias: of a linear, as a parameter of its own that can be changed. weight_shape: [inputs, outputs] where rhs is a
    weight.
    """

    name: str
    kind: Kind
    scope: str
    lhs_source: Source = "other"
    weight_groups: int = 1
    heads: int = 1
    norm: str = ""
    has_bias: bool = False
    weight_shape: tuple[int, int] | None = None

    @property
    def rhs_is_weight(self) -> bool:
        return self.kind != "matmul"


@dataclass(frozen=True)
class FloatProduct:
    """A product that stays in float. reason: why, as a clause; scope: as of a site."""

    name: str
    scope: str
    reason: str
    heads: int = 1


@dataclass(frozen=True)
class Attention:
    """The names of attention's sites, by the path of the module that computes them: the one place that knows them."""

    scope: str

    @classmethod
    def around(cls, site: str) -> Attention:
        """Of the module that a site, such as blocks.0.attn.qkv, lies in."""
        return cls(site.rpartition(".")[0])

    @property
    def qk(self) -> str:
        """Q @ K^T: blocks.0.attn.qk"""
        return self._named("qk")

    @property
    def pv(self) -> str:
        """softmax(..) @ V: blocks.0.attn.pv"""
        return self._named("pv")

    @property
    def qkv(self) -> str:
        """The linear that makes q, k and v, where one makes all three: blocks.0.attn.qkv"""
        return self._named("qkv")

    def _named(self, what: str) -> str:
        return f"{self.scope}.{what}".lstrip(".")
