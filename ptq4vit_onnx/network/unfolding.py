"""Fused functions written out: attention, nn.MultiheadAttention and einsum as the plain products they are made of.

`Unfolding` is a TorchFunctionMode. While it is open, these functions are computed by their plain operations, whoever
calls them and without a change to any module. The float export runs inside it, and so does everything that watches
products; so both see the same products in the same order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode


class Unfolding(TorchFunctionMode):
    """Computes fused functions by plain ones."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = unfold(func, args, kwargs or {})
        return func(*args, **kwargs or {}) if out is NotImplemented else out


def unfold(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What `func` returns, computed by plain functions; NotImplemented where it is not a fused one, or has no form."""
    plain = FUSED.get(func)
    return NotImplemented if plain is None else plain(*args, **kwargs)


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """F.scaled_dot_product_attention without dropout; q, k, v [.., heads, tokens, depth]."""
    if enable_gqa:
        key, value = (x.repeat_interleave(query.shape[-3] // x.shape[-3], -3) for x in (key, value))
    scores = (query * (query.shape[-1] ** -0.5 if scale is None else scale)) @ key.transpose(-2, -1)
    if is_causal:
        attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    return _masked(scores, attn_mask).softmax(-1) @ value


def _masked(scores: Tensor, mask: Tensor | None) -> Tensor:
    """A mask of booleans says where to look; one of numbers is added."""
    if mask is None:
        return scores
    return scores.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else scores + mask


def multi_head_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Tensor | None,
    in_proj_bias: Tensor | None,
    bias_k: Tensor | None,
    bias_v: Tensor | None,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Tensor,
    out_proj_bias: Tensor | None,
    training: bool = True,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    use_separate_proj_weight: bool = False,
    q_proj_weight: Tensor | None = None,
    k_proj_weight: Tensor | None = None,
    v_proj_weight: Tensor | None = None,
    static_k: Tensor | None = None,
    static_v: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> Any:
    """F.multi_head_attention_forward on [tokens, batch, width]; not what adds keys or drops out at random."""
    unusual = (bias_k, bias_v, static_k, static_v)
    if any(item is not None for item in unusual) or add_zero_attn or training or query.dim() != 3:
        return NotImplemented
    if use_separate_proj_weight:
        weights: tuple[Any, ...] = (q_proj_weight, k_proj_weight, v_proj_weight)
        q, k, v = _projected((query, key, value), weights, in_proj_bias)
    elif query is key and key is value:
        assert in_proj_weight is not None
        q, k, v = F.linear(query, in_proj_weight, in_proj_bias).chunk(3, -1)
    else:
        assert in_proj_weight is not None
        q, k, v = _projected((query, key, value), in_proj_weight.chunk(3), in_proj_bias)
    q, k, v = (x.reshape(*x.shape[:2], num_heads, -1).permute(1, 2, 0, 3) for x in (q, k, v))
    scores = (q * (q.shape[-1] ** -0.5)) @ k.transpose(-2, -1)
    if attn_mask is not None and attn_mask.dim() == 3:
        attn_mask = attn_mask.reshape(-1, num_heads, *attn_mask.shape[1:])
    for mask in (attn_mask, None if key_padding_mask is None else key_padding_mask[:, None, None]):
        inverted = mask is not None and mask.dtype == torch.bool  # here True says where not to look
        scores = _masked(scores, ~mask if mask is not None and inverted else mask)
    probabilities = scores.softmax(-1)
    out = (probabilities @ v).permute(2, 0, 1, 3).flatten(2)
    out = F.linear(out, out_proj_weight, out_proj_bias)
    if not need_weights:
        return out, None
    return out, probabilities.mean(1) if average_attn_weights else probabilities


def _projected(sides: tuple[Tensor, ...], weights: tuple[Tensor, ...], bias: Tensor | None) -> list[Tensor]:
    biases = (None,) * 3 if bias is None else bias.chunk(3)
    return [F.linear(x, weight, part) for x, weight, part in zip(sides, weights, biases, strict=True)]


def einsum(equation: Any, *operands: Any) -> Any:
    """torch.einsum of two operands, as one matmul: [.., rows, inner] @ [.., inner, columns].

    The first axis of each operand, which may be that of the images, stays an axis of its own. Not what repeats a
    letter in an operand, sums over a letter of one operand alone, or has nothing to sum over.
    """
    if len(operands) == 1 and isinstance(operands[0], (tuple, list)):
        operands = tuple(operands[0])
    parsed = _parse(equation, operands) if len(operands) == 2 and isinstance(equation, str) else None
    if parsed is None:
        return NotImplemented
    left, right, out = parsed
    inner = [letter for letter in left if letter in right and letter not in out]
    shared = [letter for letter in left if letter in right and letter in out]
    alone = [letters[0] for letters in (left, right) if letters[0] not in inner and letters[0] not in shared]
    outer = [letter for letter in out if letter in shared or letter in alone]
    rows = [letter for letter in left if letter not in (*outer, *inner)]
    columns = [letter for letter in right if letter not in (*outer, *inner)]
    lengths = {**dict(zip(right, operands[1].shape, strict=True)), **dict(zip(left, operands[0].shape, strict=True))}
    lhs = _laid_out(operands[0], left, outer, rows, inner)
    rhs = _laid_out(operands[1], right, outer, inner, columns)
    product = (lhs @ rhs).reshape([lengths[letter] for letter in (*outer, *rows, *columns)])
    order = (*outer, *rows, *columns)
    return product.permute([order.index(letter) for letter in out])


def _parse(equation: str, operands: tuple[Any, ...]) -> tuple[str, str, str] | None:
    """The letters of the operands and of the result; None where it is not a plain product of two."""
    text = equation.replace(" ", "")
    if "->" not in text or text.count(",") != 1:
        return None
    sides, out = text.split("->")
    left, right = sides.split(",")
    spare = [letter for letter in "ZYXWVUTSRQ" if letter not in text]
    more = max(x.dim() - len(letters.replace("...", "")) for x, letters in zip(operands, (left, right), strict=True))
    if "..." in text:
        if any(x.dim() - len(s) + 3 != more for x, s in zip(operands, (left, right), strict=True) if "..." in s):
            return None
        left, right, out = (letters.replace("...", "".join(spare[:more])) for letters in (left, right, out))
    repeated = any(len(set(letters)) != len(letters) for letters in (left, right, out))
    summed_alone = any(letter not in out for letter in set(left) ^ set(right))
    nothing_inner = not any(letter in right and letter not in out for letter in left)
    return None if repeated or summed_alone or nothing_inner or not left or not right else (left, right, out)


def _laid_out(x: Tensor, letters: str, outer: list[str], first: list[str], second: list[str]) -> Tensor:
    """x as [*outer, first, second]: axes that it does not have get length 1, the last two groups are one axis each."""
    kept = [letter for letter in outer if letter in letters]
    x = x.permute([letters.index(letter) for letter in (*kept, *first, *second)])
    sizes = list(x.shape)
    batch = iter(sizes[: len(kept)])
    shape = [next(batch) if letter in letters else 1 for letter in outer]
    for start, group in ((len(kept), first), (len(kept) + len(first), second)):
        length = 1
        for size in sizes[start : start + len(group)]:
            length = length * size
        shape.append(length)
    return x.reshape(shape)


def _add_product(input: Tensor, first: Tensor, second: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """torch.addmm and torch.baddbmm."""
    out = first @ second
    out = out if alpha == 1 else out * alpha
    return out + (input if beta == 1 else input * beta)


FUSED: dict[Any, Callable[..., Any]] = {
    F.scaled_dot_product_attention: attention,
    F.multi_head_attention_forward: multi_head_attention,
    torch.einsum: einsum,
    torch.addmm: _add_product,
    Tensor.addmm: _add_product,
    torch.baddbmm: _add_product,
    Tensor.baddbmm: _add_product,
    Tensor.__rmatmul__: lambda right, left: left @ right,
}
