"""Every product a torch model computes, seen by one hook: what it multiplies, and under which site's name.

`watching(model, handler)` calls `handler(call)` in place of each linear, patch convolution and matrix product
of the forward passes inside it, whichever module or function computed them. Recording, simulation and
discovery are three handlers; none of them replaces a module or needs to know an architecture.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ptq4vit_onnx.errors import UserError
from ptq4vit_onnx.sites import Kind, Site, Source
from ptq4vit_onnx.weight_codes import pair_far_inputs

_LINEAR = {F.linear}
_CONV = {F.conv2d, torch.conv2d}
_MATMUL = {torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.bmm, Tensor.bmm}
_SOFTMAX = {F.softmax, torch.softmax, Tensor.softmax}
_GELU = {F.gelu}
_TRANSPARENT = {F.dropout, torch.dropout, Tensor.contiguous, Tensor.float, Tensor.to, Tensor.type_as}
# What moves values about and leaves each in its channel, the last axis; folding.py tries whether that is so.
_MOVING = _TRANSPARENT | {
    torch.roll, Tensor.roll, F.pad, Tensor.view, Tensor.reshape, torch.reshape, Tensor.flatten, torch.flatten,
    Tensor.permute, torch.permute, Tensor.transpose, torch.transpose, Tensor.__getitem__,
}  # fmt: skip
_OPAQUE = {
    F.scaled_dot_product_attention,
    F.multi_head_attention_forward,
    torch.einsum,
    F.conv1d,
    F.conv3d,
    F.bilinear,
    torch.addmm,
    torch.baddbmm,
    Tensor.__rmatmul__,
}


@dataclass(frozen=True)
class Call:
    """One product as it happens: out = arrange(lhs @ rhs + bias).

    linear   lhs [.., inputs], rhs [inputs, outputs]
    conv     lhs [batch, patches, inputs], rhs [inputs, outputs]; arrange folds patches back into an image
    matmul   lhs [.., heads, rows, inner], rhs [.., heads, inner, columns]; no bias
    """

    site: Site
    lhs: Tensor
    rhs: Tensor
    bias: Tensor | None
    arrange: Callable[[Tensor], Tensor]
    unfinish: Callable[[Tensor], Tensor]  # a finished output's gradient, in the shape of lhs @ rhs
    plain: Callable[[], Tensor]  # what the model would have computed

    def finish(self, out: Tensor) -> Tensor:
        """From lhs @ rhs to the output."""
        return self.arrange(out if self.bias is None else out + self.bias)


Handler = Callable[[Call], Tensor]


def unfuse_attention(model: nn.Module) -> None:
    """Have timm's attention modules compute Q@K^T, softmax and P@V as separate, visible operations."""
    for module in model.modules():
        if hasattr(module, "fused_attn"):
            setattr(module, "fused_attn", False)  # noqa: B010 - nn.Module annotates its attributes as tensors


@contextmanager
def watching(model: nn.Module, handler: Handler) -> Iterator[None]:
    """Send every product of the model's forward passes to `handler` while the context is open."""
    scopes: list[str] = []
    hooks = []
    for name, module in model.named_modules():
        hooks.append(module.register_forward_pre_hook(lambda _m, _i, name=name: scopes.append(name)))
        hooks.append(module.register_forward_hook(lambda _m, _i, _o: _pop(scopes), always_call=True))
    owners = {id(parameter): name.rpartition(".")[0] for name, parameter in model.named_parameters()}
    try:
        with _ProductMode(scopes, owners, handler):
            yield
    finally:
        for hook in hooks:
            hook.remove()


def _pop(scopes: list[str]) -> None:
    scopes.pop()


class _ProductMode(TorchFunctionMode):
    def __init__(self, scopes: list[str], owners: dict[int, str], handler: Handler) -> None:
        super().__init__()
        self.scopes, self.owners, self.handler = scopes, owners, handler

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        scope = self.scopes[-1] if self.scopes else ""
        if func in _LINEAR:
            return self.handler(self._linear(scope, func, *args, **kwargs))
        if func in _MATMUL:
            return self.handler(_matmul(scope, func, *args, **kwargs))
        if func in _CONV:
            return self.handler(self._conv(scope, func, *args, **kwargs))
        if func in _OPAQUE:
            name = getattr(func, "__name__", str(func))
            raise UserError(
                f"cannot quantise this model: {scope or 'its forward'} computes {name}, which is not a "
                "product this tool understands; use a ViT, DeiT or Swin with plain attention"
            )
        out = func(*args, **kwargs)
        _mark_source(func, args, out)
        self._mark_norm(func, args, kwargs, out)
        return out

    def _mark_norm(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        """Remember on the tensor itself which LayerNorm made it, if it has a weight and a bias to fold into."""
        if func is F.layer_norm:
            given = dict(zip(("input", "normalized_shape", "weight", "bias"), args, strict=False)) | kwargs
            owners = {self.owners.get(id(given.get(name))) for name in ("weight", "bias")}
            if len(owners) == 1 and None not in owners:
                out._ptq4vit_norm = owners.pop()
        elif func in _MOVING and args and _norm(args[0]) and not _pads(func, args, kwargs):
            out._ptq4vit_norm = _norm(args[0])

    def _linear(self, scope: str, func: Any, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Call:
        name = self._owner(weight, scope)
        groups = 3 if name.rpartition(".")[2] == "qkv" and weight.shape[0] % 3 == 0 else 1
        return Call(
            Site(name, "linear", scope, _source(x), groups, norm=_norm(x), has_bias=self.owners.get(id(bias)) == name),
            x,
            weight.t(),
            bias,
            lambda out: out,
            lambda grad: grad,
            lambda: func(x, weight, bias),
        )

    def _conv(
        self,
        scope: str,
        func: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        *rest: Any,
        **options: Any,
    ) -> Call:
        name = self._owner(weight, scope)
        require_patch_convolution(name, weight, *rest, **options)
        rows, columns = x.shape[-2] // weight.shape[-2], x.shape[-1] // weight.shape[-1]

        def arrange(out: Tensor) -> Tensor:
            return out.transpose(1, 2).reshape(len(out), -1, rows, columns)

        return Call(
            Site(name, "conv", scope),
            patches(x, weight.shape[-2], weight.shape[-1]),
            pair_far_inputs(weight.flatten(1)).t(),
            bias,
            arrange,
            lambda grad: grad.flatten(2).transpose(1, 2),
            lambda: func(x, weight, bias, *rest, **options),
        )

    def _owner(self, weight: Tensor, scope: str) -> str:
        try:
            return self.owners[id(weight)]
        except KeyError:
            raise UserError(
                f"cannot quantise this model: the weight of a product in {scope or 'its forward'} is "
                "computed, not a parameter; use a ViT, DeiT or Swin with plain attention"
            ) from None


def _matmul(scope: str, func: Any, lhs: Tensor, rhs: Tensor) -> Call:
    """Attention's two products, told apart by what feeds them: P comes out of softmax."""
    source = _source(lhs)
    name = f"{scope}.{'pv' if source == 'softmax' else 'qk'}".lstrip(".")
    kind: Kind = "matmul"
    if lhs.dim() != 4 or lhs.shape[:-2] != rhs.shape[:-2]:
        raise UserError(
            f"cannot quantise this model: {scope or 'its forward'} multiplies {tuple(lhs.shape)} by "
            f"{tuple(rhs.shape)}, which is neither a linear nor an attention product"
        )
    return Call(
        Site(name, kind, scope, source, heads=lhs.shape[-3]),
        lhs, rhs, None, lambda out: out, lambda grad: grad, lambda: func(lhs, rhs),
    )  # fmt: skip


def require_patch_convolution(
    name: str, weight: Tensor, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1
) -> None:
    """Only a convolution whose patches tile the image is a product over flattened patches."""
    kernel = tuple(weight.shape[-2:])
    if _pair(stride) != kernel or _pair(padding) != (0, 0) or _pair(dilation) != (1, 1) or groups != 1:
        raise UserError(
            f"cannot quantise this model: {name} is a convolution with kernel {kernel}, stride "
            f"{_pair(stride)}, padding {padding}, {groups} groups; only patch embeddings (kernel = stride, "
            "no padding) are products"
        )


def _pair(value: Any) -> tuple[Any, Any]:
    return (value, value) if isinstance(value, (int, str)) else (value[0], value[-1])


def patches(x: Tensor, height: int, width: int) -> Tensor:
    """[batch, C, H, W] -> [batch, patches, C*height*width], inputs ordered by `pair_far_inputs`."""
    rows, columns = x.shape[-2] // height, x.shape[-1] // width
    tiles = x[..., : rows * height, : columns * width].reshape(*x.shape[:2], rows, height, columns, width)
    return pair_far_inputs(tiles.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2))


def _mark_source(func: Any, args: tuple[Any, ...], out: Any) -> None:
    """Remember on the tensor itself that softmax or GELU made it; dropout and the like hand the mark on."""
    if func in _SOFTMAX:
        out._ptq4vit_source = "softmax"
    elif func in _GELU:
        out._ptq4vit_source = "gelu"
    elif func in _TRANSPARENT and args and _source(args[0]) != "other":
        out._ptq4vit_source = _source(args[0])


def _source(x: Tensor) -> Source:
    source: Source = getattr(x, "_ptq4vit_source", "other")
    return source


def _pads(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether values are added that no LayerNorm made: windows that do not tile an image are filled with zeros."""
    return func is F.pad and any(args[1] if len(args) > 1 else kwargs["pad"])


def _norm(x: Any) -> str:
    norm: str = getattr(x, "_ptq4vit_norm", "")
    return norm


def discover(model: nn.Module, image: Tensor) -> list[Site]:
    """All sites in the order the forward pass computes them; a UserError says what was not understood."""
    sites: dict[str, Site] = {}

    def note(call: Call) -> Tensor:
        if call.site.name in sites:
            raise UserError(
                f"cannot quantise this model: the product {call.site.name} is computed more than once; "
                "shared weights are not supported"
            )
        sites[call.site.name] = call.site
        return call.plain()

    with torch.no_grad(), watching(model, note):
        model(image)
    if not any(site.kind == "matmul" for site in sites.values()):
        raise UserError(
            "cannot quantise this model: no attention products (Q@K^T, P@V) were found in it; use a ViT, DeiT or Swin"
        )
    return list(sites.values())
