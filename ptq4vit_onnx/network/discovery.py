"""Every product that a torch model computes, and the name of its site, seen through a TorchFunctionMode.

`watching(model, handler)` calls `handler(call)` in place of each linear, convolution and matrix product of the forward
passes inside it, whichever module or function computed them. Recording, simulation and discovery are three handlers;
none of them replaces a module or needs to know an architecture.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import chain, count
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ptq4vit_onnx.errors import UserError
from ptq4vit_onnx.model_loading.trial import require_outputs, run_once
from ptq4vit_onnx.network.calls import Call, NotAProductError, conv_call, linear_call, matmul_call, window_of
from ptq4vit_onnx.network.dependencies import between, cannot_differentiate, graph_alone, own_tensor, require_gradients
from ptq4vit_onnx.network.tensor_tags import (
    hand_pixels_on,
    made_of_pixels,
    mark_norm,
    mark_pixels,
    mark_source,
    source_of,
)
from ptq4vit_onnx.network.unfolding import FUSED, unfold
from ptq4vit_onnx.plan.sites import FloatProduct, Site

_LINEAR = {F.linear}
_CONV = {F.conv2d, torch.conv2d}
_MATMUL = {torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.bmm, Tensor.bmm, torch.mm, Tensor.mm}
_OPAQUE = {
    F.scaled_dot_product_attention, F.multi_head_attention_forward, torch.einsum, F.conv1d, F.conv3d, F.bilinear,
    F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d, torch.addmm, torch.baddbmm, torch.mv, torch.dot,
    torch.inner, torch.tensordot, torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu,
}  # fmt: skip
_CONV_OPTIONS = ("stride", "padding", "dilation", "groups")

Handler = Callable[[Call], Tensor]
# Computes a product that is not understood, from the error that says so and the model's own computation.
Unknown = Callable[[NotAProductError, Callable[[], Tensor]], Tensor]


def refuse(problem: NotAProductError, _: Callable[[], Tensor]) -> Tensor:
    raise problem


def compute_plainly(_: NotAProductError, plain: Callable[[], Tensor]) -> Tensor:
    """For models that `discover` accepted: products that it did not understand there stay as they are."""
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
    fast = torch.backends.mha.get_fastpath_enabled()  # of nn.MultiheadAttention: one kernel for all of it
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    try:
        for module in model.modules():
            module.training = False
        unfuse_attention(model)
        for parameter in trained:
            parameter.requires_grad_(False)
        torch.backends.mha.set_fastpath_enabled(False)
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        for parameter in trained:
            parameter.requires_grad_(True)
        for attributes, known in before:
            attributes.update(known)
            for name in set(flags) - set(known):
                attributes.pop(name, None)  # the flag is the class's own


@contextmanager
def watching(model: nn.Module, handler: Handler, unknown: Unknown = refuse) -> Iterator[None]:
    """While it is open, every product of the model's forward passes is computed by `handler`, or by `unknown`."""
    names = _Names(model)
    with ExitStack() as stack:
        for name, module in model.named_modules():
            enter = module.register_forward_pre_hook(lambda _m, inputs, name=name: names.enter(name, inputs))
            stack.callback(enter.remove)
            leave = module.register_forward_hook(lambda _m, _i, _o: names.leave(), always_call=True)
            stack.callback(leave.remove)
        with _ProductMode(names, handler, unknown):
            yield


class _Names:
    """Where a forward pass is, and how the products there are called.

    A product with a parameter is called after the module that owns it, any other one after the module that computes it
    and what it is: qk, pv, einsum. Of several alike in one call of a module the later ones are numbered.
    """

    def __init__(self, model: nn.Module) -> None:
        self.owners = {id(item): _owner(name) for name, item in model.named_parameters(remove_duplicate=False)}
        self.paths = {name for name, _ in model.named_modules()}
        self.scopes: list[str] = []
        self.taken: dict[str, set[str]] = {}

    def enter(self, name: str, inputs: Any) -> None:
        if not self.scopes:  # the model, or a block that is run by itself
            mark_pixels(inputs[:1])
        self.scopes.append(name)
        self.taken[name] = set()

    def leave(self) -> None:
        self.scopes.pop()

    @property
    def scope(self) -> str:
        return self.scopes[-1] if self.scopes else ""

    def free(self, *wanted: str) -> str:
        """The first of these names, in the scope, that no product of this call has; the last one is numbered."""
        taken = self.taken.setdefault(self.scope, set())
        numbered = (f"{wanted[-1]}_{number}" for number in count(2))
        for what in chain(wanted, numbered):  # one at a time: every product of every forward pass asks
            path = f"{self.scope}.{what}".lstrip(".")
            path = f"{path}_product" if path in self.paths else path
            if path not in taken:
                taken.add(path)
                return path
        raise AssertionError("there is always another number")


def _owner(parameter: str) -> str:
    """blocks.0.fc.weight -> blocks.0.fc, attn.in_proj_weight -> attn.in_proj, visual.proj -> visual.proj"""
    path, _, last = parameter.rpartition(".")
    own = last if last not in ("weight", "bias") else ""
    for ending in ("_weight", "_bias"):
        own = own.removesuffix(ending)
    return f"{path}.{own}".strip(".")


class _ProductMode(TorchFunctionMode):
    def __init__(self, names: _Names, handler: Handler, unknown: Unknown) -> None:
        super().__init__()
        self.names, self.handler, self.unknown = names, handler, unknown

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in FUSED:
            with self:  # its plain functions are products, or lead to them
                out = unfold(func, args, kwargs)
            if out is not NotImplemented:
                return out
        out = self._compute(func, args, kwargs)
        hand_pixels_on(func, args, kwargs, out)
        return out

    def _compute(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        try:
            call = self._call(func, args, kwargs)
        except NotAProductError as problem:
            return self.unknown(problem, lambda: func(*args, **kwargs))
        if call is not None:
            return self.handler(call)
        out = func(*args, **kwargs)
        mark_source(func, args, out)
        mark_norm(func, args, kwargs, out, self.names.owners)
        return out

    def _call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
        """The call as a product, None if it is none; NotAProductError says what was not understood."""
        if func in _LINEAR:
            return self._linear(func, *args, **kwargs)
        if func in _MATMUL:
            return self._matmul(func, *args, **kwargs)
        if func in _CONV:
            return self._conv(func, *args, **kwargs)
        if func in _OPAQUE:
            name = getattr(func, "__name__", str(func))
            reason = (
                f"{self.names.scope or 'its forward'} computes {name}, which is not a product this tool understands"
            )
            raise NotAProductError(self.names.free(name), self.names.scope, reason)
        return None

    def _linear(self, func: Any, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Call:
        names, plain = self.names, lambda: func(input, weight, bias)
        if made_of_pixels(weight):
            if bias is None:
                return matmul_call(names.free("matmul"), names.scope, input, weight.mT, plain)
            raise NotAProductError(
                names.free("linear"), names.scope, "a linear whose weight and bias depend on the image"
            )
        name = names.owners.get(id(weight)) or names.free("linear")
        has_bias = bias is not None and names.owners.get(id(bias)) == name
        return linear_call(name, names.scope, input, weight.t(), bias, has_bias, plain)

    def _matmul(self, func: Any, lhs: Tensor, rhs: Tensor) -> Call:
        names, plain = self.names, lambda: func(lhs, rhs)
        if lhs.dim() < 2 or rhs.dim() < 2:
            raise NotAProductError(names.free("matmul"), names.scope, "a product of a vector")
        if rhs.dim() == 2 and lhs.dim() > 1 and not made_of_pixels(rhs):
            name = names.owners.get(id(rhs)) or names.free("linear")
            return linear_call(name, names.scope, lhs, rhs, None, False, plain)
        if not made_of_pixels((lhs, rhs)):  # a constant, which takes no site's name
            return matmul_call(f"{names.scope}.constant", names.scope, lhs, rhs, plain)
        softmax = source_of(lhs) == "softmax" or source_of(rhs) == "softmax"
        name = names.free("pv") if softmax else names.free("qk", "pv", "matmul")
        return matmul_call(name, names.scope, lhs, rhs, plain)

    def _conv(
        self, func: Any, input: Tensor, weight: Tensor, bias: Tensor | None = None, *rest: Any, **options: Any
    ) -> Call:
        names, given = self.names, {**dict(zip(_CONV_OPTIONS, rest, strict=False)), **options}
        name = names.owners.get(id(weight)) or names.free("conv")
        if made_of_pixels(weight):
            raise NotAProductError(name, names.scope, "a convolution whose weight depends on the image")
        window = window_of(name, names.scope, input, weight, given)
        return conv_call(
            name, names.scope, input, weight, bias, window, lambda: func(input, weight, bias, **given)
        )  # fmt: skip


@dataclass(frozen=True)
class Products:
    """What a model computes, in the order of its forward pass: sites, and products that stay in float."""

    found: tuple[Site | FloatProduct, ...]

    @property
    def sites(self) -> list[Site]:
        return [item for item in self.found if isinstance(item, Site)]

    @property
    def floats(self) -> list[FloatProduct]:
        return [item for item in self.found if isinstance(item, FloatProduct)]


def discover(model: nn.Module, image: Tensor | np.ndarray[Any, Any]) -> list[Site]:
    """All sites in the order the forward pass computes them; a UserError where a product is none."""
    products = discover_products(model, image)
    require_all_integer(products)
    return products.sites


def require_all_integer(products: Products) -> None:
    """Refuse a model with products that would stay in float, naming the first few."""
    if products.floats:
        raise UserError(
            f"{len(products.floats)} of {len(products.found)} products of this model cannot be computed in integers "
            f"({_first_few(products.floats)}); give --allow-float to leave them in float, or replace them in the model"
        )


def _first_few(floats: list[FloatProduct]) -> str:
    few = "; ".join(f"{item.name}: {item.reason}" for item in floats[:3])
    return few + (f"; and {len(floats) - 3} more" if len(floats) > 3 else "")


def discover_products(model: nn.Module, image: Tensor | np.ndarray[Any, Any]) -> Products:
    """All products that lie on a path of the autograd graph from the pixels to an output.

    A product that depends on no pixel (a table of positions, a learnt query) is a constant; a product that no output
    depends on is not in the file. image: [1, C, H, W].
    """
    single = torch.as_tensor(image)[:1].detach()
    found = _products_on(model, single)
    lengths = {item.name: item.heads for item, _ in _products_on(model, single.repeat(2, 1, 1, 1))}
    reason = "the length of its third axis from behind depends on the number of images"
    steady = [
        item if lengths.get(item.name) == item.heads else FloatProduct(item.name, item.scope, reason)
        for item, _ in found
    ]
    return Products(tuple(_distinct(steady)))


Found = list[tuple["Site | FloatProduct", Any]]


def _products_on(model: nn.Module, images: Tensor) -> Found:
    """The products between pixels and outputs, each with its operation; refuses outputs that are not [images, ..]."""
    seen: Found = []

    def note(call: Call) -> Tensor:
        return keep(call.site, call.plain)

    def keep_float(problem: NotAProductError, plain: Callable[[], Tensor]) -> Tensor:
        return keep(FloatProduct(problem.name, problem.scope, problem.reason), plain)

    def keep(what: Site | FloatProduct, plain: Callable[[], Tensor]) -> Tensor:
        out = plain()
        if not isinstance(out, Tensor):  # an LSTM returns several
            reason = what.reason if isinstance(what, FloatProduct) else what
            raise UserError(f"cannot quantise this model: {reason}; export it with torch.onnx.export instead")
        out = own_tensor(out)
        seen.append((what, out.grad_fn))
        return out

    pixels = images.clone().requires_grad_(True)
    try:
        with graph_alone(), as_deployed(model), watching(model, note, keep_float):
            returned = model(pixels)
    except UserError:
        raise
    except Exception as error:
        run_once(model, images)  # says so in one line where the model fails by itself, too
        raise (cannot_differentiate(error) or error) from error
    outputs = require_outputs(returned, len(images))
    require_gradients(outputs)
    inside = set().union(*(between(pixels, output) for output in outputs))
    return [(what, node) for what, node in seen if node in inside]


def _distinct(found: list[Site | FloatProduct]) -> list[Site | FloatProduct]:
    """The products, if there are sites. A weight that several products share stays in float: a site has one product."""
    names = [item.name for item in found]
    reason = "its weight is used by more than one product"
    alone = [item if names.count(item.name) == 1 else FloatProduct(item.name, item.scope, reason) for item in found]
    if not any(isinstance(item, Site) for item in alone):
        floats = [item for item in alone if isinstance(item, FloatProduct)]
        raise UserError(
            "cannot quantise this model: no linear, convolution or attention product was found that leads from its "
            f"pixels to its output and could be computed in integers{f' ({_first_few(floats)})' if floats else ''}; "
            "export it with torch.onnx.export instead"
        )
    return alone
