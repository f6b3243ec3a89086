"""A plan's channel scales and shifts folded into the torch model, and which LayerNorms and linears allow that."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager

import numpy as np
import torch
from torch import Tensor, nn

from ptq4vit_onnx.network.answers import answers
from ptq4vit_onnx.network.discovery import as_deployed
from ptq4vit_onnx.plan.channel_fold import Array, Channels
from ptq4vit_onnx.plan.scale_plan import ScalePlan, SitePlan
from ptq4vit_onnx.plan.sites import Site

TOLERANCE = 1e-5  # of the outputs' largest magnitude: rounding errors stay below 1e-6, wrong folds begin at 8e-5


@contextmanager
def folded(model: nn.Module, plan: ScalePlan | Mapping[str, SitePlan] | None) -> Iterator[None]:
    """While it is open, the plan's channels are folded into the model's LayerNorms and linears."""
    sites = plan.sites if isinstance(plan, ScalePlan) else plan or {}
    with _folded(model, {name: item.channels for name, item in sites.items() if item.channels is not None}):
        yield


@contextmanager
def _folded(model: nn.Module, channels: Mapping[str, Channels]) -> Iterator[None]:
    with ExitStack() as stack:
        for site, item in channels.items():
            norm, linear = model.get_submodule(item.norm), model.get_submodule(site)
            weight = _array(linear.weight).T
            of_norm = item.of_norm(_array(norm.weight), _array(norm.bias))
            for parameter, value in zip((norm.weight, norm.bias), of_norm, strict=True):
                stack.enter_context(_holding(parameter, value))
            assert linear.bias is not None or not any(item.shift), f"{site} has no bias to take up a shift"
            if linear.bias is not None:
                stack.enter_context(_holding(linear.bias, item.of_bias(weight, _array(linear.bias))))
            stack.enter_context(_holding(linear.weight, item.of_weight(weight).T))
        yield


def _array(parameter: Tensor | nn.Module) -> Array:
    assert isinstance(parameter, Tensor)
    return parameter.detach().numpy()


@contextmanager
def _holding(parameter: Tensor | nn.Module, value: Array) -> Iterator[None]:
    """While it is open, the parameter holds another value; it stays the same object, and its own memory is kept."""
    assert isinstance(parameter, Tensor)
    own = parameter.data
    parameter.data = torch.from_numpy(np.ascontiguousarray(value))
    try:
        yield
    finally:
        parameter.data = own


def foldable(model: nn.Module, sites: Iterable[Site], image: Tensor) -> set[str]:
    """The sites into which their LayerNorm's channels can be folded; `image` [1, C, H, W].

    The forward pass tells which LayerNorm a product reads. Whether it reads all of the output, and alone, is tried:
    with random channels folded in, the outputs must stay the same. With padded windows, for one, they do not.
    """
    candidates = [site for site in sites if site.norm and _fits(model, site)]
    with torch.no_grad(), as_deployed(model):
        expected, entered = _inputs(model, {site.norm for site in candidates}, image)
        shared = _equal_norms(model, entered)
        probes = {site.name: _probe(model, site) for site in candidates if site.norm not in shared}

        def holds(tried: Mapping[str, Channels]) -> bool:
            with _folded(model, tried):
                pairs = list(zip(answers(model, image), expected, strict=True))
            return all(bool((got - want).abs().max() <= TOLERANCE * want.abs().max()) for got, want in pairs)

        if holds(probes):
            return set(probes)
        return {name for name, probe in probes.items() if holds({name: probe})}


def _inputs(model: nn.Module, norms: Iterable[str], image: Tensor) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
    """The outputs, and what enters each of the LayerNorms."""
    entered: dict[str, Tensor] = {}
    with ExitStack() as stack:
        for norm in norms:
            hook = model.get_submodule(norm).register_forward_pre_hook(
                lambda _module, args, norm=norm: entered.__setitem__(norm, args[0])
            )
            stack.callback(hook.remove)
        return answers(model, image), entered


def _equal_norms(model: nn.Module, entered: Mapping[str, Tensor]) -> set[str]:
    """LayerNorms with equal inputs and equal parameters, as parallel ones before training: the file holds one node."""
    alike: dict[object, list[str]] = {}
    for norm, x in entered.items():
        parameters = tuple(_array(value).tobytes() for value in model.get_submodule(norm).parameters())
        alike.setdefault((id(x), parameters), []).append(norm)
    return {norm for norms in alike.values() if len(norms) > 1 for norm in norms}


def _fits(model: nn.Module, site: Site) -> bool:
    linear, norm = dict(model.named_modules()).get(site.name), model.get_submodule(site.norm)
    return isinstance(linear, nn.Linear) and linear.in_features == getattr(norm, "weight", torch.empty(0)).numel()


def _probe(model: nn.Module, site: Site) -> Channels:
    """Random scales, and random shifts if the linear has a bias, which a shift is folded into."""
    count = _array(model.get_submodule(site.norm).weight).size
    random = np.random.default_rng(count)
    scale = random.uniform(0.5, 2.0, count).astype(np.float32)
    shift = random.uniform(-1.0, 1.0, count).astype(np.float32) * site.has_bias
    return Channels(site.norm, tuple(scale.tolist()), tuple(shift.tolist()))
