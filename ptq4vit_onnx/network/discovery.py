"""Every product that a torch model computes, and the name of its site, seen through a TorchFunctionMode.

`watching(model, handler)` calls `handler(call)` in place of each linear, patch convolution and matrix product
of the forward passes inside it, whichever module or function computed them. Recording, simulation and
discovery are three handlers; none of them replaces a module or needs to know an architecture.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ptq4vit_onnx.errors import UserError
from ptq4vit_onnx.network.dependencies import between, graph_alone, own_tensor
from ptq4vit_onnx.network.patches import patches, require_patch_convolution
from ptq4vit_onnx.network.tensor_tags import mark_norm, mark_source, norm_of, source_of
from ptq4vit_onnx.plan.quantizers.patch_order import pair_far_inputs
from ptq4vit_onnx.plan.sites import Attention, Kind, Site

_LINEAR = {F.linear}
_CONV = {F.conv2d, torch.conv2d}
_MATMUL = {torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.bmm, Tensor.bmm}
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
    """One call of a product: out = arrange(lhs @ rhs + bias).

    linear   lhs [.., inputs], rhs [inputs, outputs]
    conv     lhs [batch, patches, inputs], rhs [inputs, outputs]; arrange folds patches back into an image
    matmul   lhs [.., heads, rows, inner], rhs [.., heads, inner, columns]; no bias
    """

    site: Site
    lhs: Tensor
    rhs: Tensor
    bias: Tensor | None
    arrange: Callable[[Tensor], Tensor]
    unfinish: Callable[[Tensor], Tensor]  # the gradient of the output -> that of lhs @ rhs
    plain: Callable[[], Tensor]  # computes the output as the model does

    def finish(self, out: Tensor) -> Tensor:
        """From lhs @ rhs to the output."""
        return self.arrange(out if self.bias is None else out + self.bias)


Handler = Callable[[Call], Tensor]
# Computes a product that is not understood, from the error that says so and the model's own computation.
Unknown = Callable[[UserError, Callable[[], Tensor]], Tensor]


def refuse(problem: UserError, _: Callable[[], Tensor]) -> Tensor:
    raise problem


def compute_plainly(_: UserError, plain: Callable[[], Tensor]) -> Tensor:
    """For models that `discover` accepted: products that it did not understand there depend on no pixel."""
    return plain()


def unfuse_attention(model: nn.Module) -> None:
    """Have timm's attention modules compute Q@K^T, softmax and P@V as separate, visible operations."""
    for module in model.modules():
        if hasattr(module, "fused_attn"):
            setattr(module, "fused_attn", False)  # noqa: B010 - nn.Module annotates its attributes as tensors


@contextmanager
def as_deployed(model: nn.Module) -> Iterator[None]:
    """While it is open, the model is in eval mode, its attention unfused and its parameters without gradients.

    The flags are set one by one, not by `model.eval()`: a subclass may override `train` with more than can be undone.
    """
    flags = ("training", "fused_attn")
    before = [
        (vars(module), {name: vars(module)[name] for name in flags if name in vars(module)})
        for module in model.modules()
    ]
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    try:
        for module in model.modules():
            module.training = False
        unfuse_attention(model)
        for parameter in trained:
            parameter.requires_grad_(False)
        yield
    finally:
        for parameter in trained:
            parameter.requires_grad_(True)
        for attributes, known in before:
            attributes.update(known)
            for name in set(flags) - set(known):
                attributes.pop(name, None)  # the flag is the class's own


@contextmanager
def watching(model: nn.Module, handler: Handler, unknown: Unknown = refuse) -> Iterator[None]:
    """While it is open, every product of the model's forward passes is computed by `handler`, or by `unknown`."""
    scopes: list[str] = []
    owners = {id(parameter): name.rpartition(".")[0] for name, parameter in model.named_parameters()}
    with ExitStack() as stack:
        for name, module in model.named_modules():
            enter = module.register_forward_pre_hook(lambda _m, _i, name=name: scopes.append(name))
            stack.callback(enter.remove)
            leave = module.register_forward_hook(lambda _m, _i, _o: _pop(scopes), always_call=True)
            stack.callback(leave.remove)
        with _ProductMode(scopes, owners, handler, unknown):
            yield


def _pop(scopes: list[str]) -> None:
    scopes.pop()


class _ProductMode(TorchFunctionMode):
    def __init__(self, scopes: list[str], owners: dict[int, str], handler: Handler, unknown: Unknown) -> None:
        super().__init__()
        self.scopes, self.owners, self.handler, self.unknown = scopes, owners, handler, unknown

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        try:
            call = self._call(func, args, kwargs)
        except UserError as problem:
            return self.unknown(problem, lambda: func(*args, **kwargs))
        if call is not None:
            return self.handler(call)
        out = func(*args, **kwargs)
        mark_source(func, args, out)
        mark_norm(func, args, kwargs, out, self.owners)
        return out

    def _call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
        """The call as a product, None if it is none; a UserError says what was not understood."""
        scope = self.scopes[-1] if self.scopes else ""
        if func in _LINEAR:
            return self._linear(scope, func, *args, **kwargs)
        if func in _MATMUL:
            return _matmul(scope, func, *args, **kwargs)
        if func in _CONV:
            return self._conv(scope, func, *args, **kwargs)
        if func in _OPAQUE:
            name = getattr(func, "__name__", str(func))
            raise UserError(
                f"cannot quantise this model: {scope or 'its forward'} computes {name}, which is not a "
                "product this tool understands; use a ViT, DeiT or Swin with plain attention"
            )
        return None

    def _linear(self, scope: str, func: Any, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Call:
        name = self._owner(weight, scope)
        groups = 3 if name == Attention.around(name).qkv and weight.shape[0] % 3 == 0 else 1
        return Call(
            Site(
                name, "linear", scope, source_of(x), groups, norm=norm_of(x), has_bias=self.owners.get(id(bias)) == name
            ),
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
    source = source_of(lhs)
    name = Attention(scope).pv if source == "softmax" else Attention(scope).qk
    kind: Kind = "matmul"
    if lhs.dim() != 4 or lhs.shape[:-2] != rhs.shape[:-2]:
        raise UserError(
            f"cannot quantise this model: {scope or 'its forward'} multiplies {tuple(lhs.shape)} by "
            f"{tuple(rhs.shape)}, which is neither a linear nor an attention product; "
            "use a ViT, DeiT or Swin with plain attention"
        )
    return Call(
        Site(name, kind, scope, source, heads=lhs.shape[-3]),
        lhs, rhs, None, lambda out: out, lambda grad: grad, lambda: func(lhs, rhs),
    )  # fmt: skip


def discover(model: nn.Module, image: Tensor | np.ndarray[Any, Any]) -> list[Site]:
    """All sites in the order the forward pass computes them; a UserError says what was not understood.

    A site lies on a path of the autograd graph from the pixels to the logits. A product that depends on no pixel (a
    table of positions, a learnt query) is a constant; a product that no logit depends on is not in the file.
    """
    found: list[tuple[Any, Site | UserError]] = []

    def note(call: Call) -> Tensor:
        return keep(call.site, call.plain)

    def keep(what: Site | UserError, plain: Callable[[], Tensor]) -> Tensor:
        out = own_tensor(plain())
        found.append((out.grad_fn, what))
        return out

    pixels = torch.as_tensor(image).detach().clone().requires_grad_(True)
    with graph_alone(), as_deployed(model), watching(model, note, keep):
        logits = model(pixels)
    _require_logits(logits)
    inside = between(pixels, logits)
    return _distinct([what for node, what in found if node in inside])


def _require_logits(logits: Any) -> None:
    got = list(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
    if not isinstance(logits, Tensor) or logits.dim() != 2:
        raise UserError(
            f"cannot quantise this model: its forward returns {got}, expected logits [images, classes]; "
            "only image classification models can be quantised"
        )


def _distinct(found: list[Site | UserError]) -> list[Site]:
    """The sites, if their names are distinct; raises the first error among what was found."""
    sites: dict[str, Site] = {}
    for what in found:
        if isinstance(what, UserError):
            raise what
        if what.name in sites:
            raise _repeated(what)
        sites[what.name] = what
    if not any(site.kind == "matmul" for site in sites.values()):
        raise UserError(
            "cannot quantise this model: no attention products (Q@K^T, P@V) were found in it; use a ViT, DeiT or Swin"
        )
    return list(sites.values())


def _repeated(site: Site) -> UserError:
    if site.kind == "matmul":
        what = f"{site.scope or 'its forward'} computes more products of activations than Q@K^T and softmax(..)@V"
        return UserError(f"cannot quantise this model: {what}; use a ViT, DeiT or Swin with plain attention")
    return UserError(
        f"cannot quantise this model: the product {site.name} is computed more than once; "
        "shared weights are not supported; use a ViT, DeiT or Swin"
    )
