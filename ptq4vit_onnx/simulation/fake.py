"""The torch model with a plan applied: fake-quantised, for accuracy without ONNX and as one side of parity.

A plan is about the model with its channels folded in: `applying` does that, and lets a handler compute the products.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from ptq4vit_onnx.network.answers import answers
from ptq4vit_onnx.network.calls import Call
from ptq4vit_onnx.network.channel_folding import folded
from ptq4vit_onnx.network.discovery import Handler, as_deployed, compute_plainly, watching
from ptq4vit_onnx.network.planned_product import shipped_sides, with_weight
from ptq4vit_onnx.plan.file_layout import FileLayout
from ptq4vit_onnx.plan.scale_plan import ScalePlan, SitePlan
from ptq4vit_onnx.progress import Progress, silent

Array = np.ndarray[Any, Any]
MOST_PIXELS = 8 * 384 * 384  # of the images that are simulated together: one of 1024 x 1024 takes a gigabyte already
Outputs = tuple[Array, ...]  # all outputs of the model on the same images, each [n, ...]


class Hold(Protocol):
    """Another engine's outputs of the same sites. `show` runs it on images; a call takes the simulated output of a site
    and returns the one to continue with. batch: how many images it takes at a time."""

    @property
    def batch(self) -> int: ...

    def show(self, images: Array) -> None: ...

    def __call__(self, site: str, simulated: Array) -> Array: ...


class Simulator:
    """A handler that computes each planned product as the plan says; weights are prepared once.

    sites: leave None to apply the whole plan; a set of names applies only those and leaves the others in float.
    nudge: change the last bits of every product's outputs at random, by up to four units in the last place: what
    another implementation of the float operations in between (LayerNorm, softmax, GELU) does as well.
    """

    def __init__(
        self, plan: ScalePlan | Mapping[str, SitePlan], sites: set[str] | None = None, nudge: bool = False
    ) -> None:
        self.plans = plan.sites if isinstance(plan, ScalePlan) else plan
        self.only = sites
        self.generator = torch.Generator().manual_seed(0) if nudge else None
        self.weights: dict[str, tuple[Tensor, Tensor | None]] = {}

    def __call__(self, call: Call) -> Tensor:
        out = self._product(call)
        if self.generator is None:
            return out
        steps = torch.randint(-4, 5, out.shape, generator=self.generator, dtype=torch.int8)
        return out * (1 + steps * torch.finfo(torch.float32).eps)

    def _product(self, call: Call) -> Tensor:
        name = call.site.name
        if self.only is not None and name not in self.only:
            return call.plain()
        plan = self.plans[name]
        if plan.kind == "matmul":
            return call.finish(plan.lhs.fake_quantize(call.lhs) @ plan.rhs.fake_quantize(call.rhs))
        if name not in self.weights:
            self.weights[name] = shipped_sides(call.rhs, plan)
        out = call.finish(with_weight(call.lhs, plan, *self.weights[name]))
        if plan.bias_correction is None:
            return out
        shape = (-1, 1, 1) if plan.kind == "conv" else (-1,)
        return out + out.new_tensor(plan.bias_correction).reshape(shape)


@contextmanager
def applying(model: nn.Module, plan: ScalePlan | Mapping[str, SitePlan], handler: Handler) -> Iterator[None]:
    """While it is open, `handler` computes the products of the model that the plan is about.

    Products that the plan does not name are computed in float. These are products of constants: making or reading a
    plan checks that it names all others.
    """
    sites = plan.sites if isinstance(plan, ScalePlan) else plan

    def planned(call: Call) -> Tensor:
        return handler(call) if call.site.name in sites else call.plain()

    with as_deployed(model), folded(model, plan), watching(model, planned, compute_plainly):
        yield


def simulate(
    model: nn.Module,
    plan: ScalePlan | Mapping[str, SitePlan] | None,
    images: Array,
    batch: int = 16,
    sites: set[str] | None = None,
    nudge: bool = False,
    progress: Progress = silent,
    title: str = "simulating",
) -> Array:
    """The first output [n, ...] of the model under the plan, or of the float model where plan is None."""
    return simulate_all(model, plan, images, batch, sites, nudge, progress, title)[0]


def simulate_all(
    model: nn.Module,
    plan: ScalePlan | Mapping[str, SitePlan] | None,
    images: Array,
    batch: int = 16,
    sites: set[str] | None = None,
    nudge: bool = False,
    progress: Progress = silent,
    title: str = "simulating",
) -> Outputs:
    """All outputs of the model under the plan, or of the float model where plan is None."""
    watch = as_deployed(model) if plan is None else applying(model, plan, Simulator(plan, sites, nudge))
    return _outputs(model, images, batch, watch, progress, title)


def simulate_exactly(
    model: nn.Module,
    plan: ScalePlan,
    layout: FileLayout,
    images: Array,
    batch: int = 8,
    progress: Progress = silent,
) -> Array:
    """The first output [n, ...] of the plan in integer arithmetic, rounded as a file of `layout` in ONNX Runtime."""
    return simulate_all_exactly(model, plan, layout, images, batch, progress)[0]


def simulate_all_exactly(
    model: nn.Module,
    plan: ScalePlan,
    layout: FileLayout,
    images: Array,
    batch: int = 8,
    progress: Progress = silent,
) -> Outputs:
    """All outputs of the plan in integer arithmetic, rounded as a file of `layout` rounds in ONNX Runtime."""
    from ptq4vit_onnx.simulation.exact import ExactSimulator
    from ptq4vit_onnx.simulation.ort_kernels import RuntimeFloats

    with RuntimeFloats():  # outside: products are seen before it
        return _outputs(
            model, images, batch, applying(model, plan, ExactSimulator(plan, layout)), progress, "simulating"
        )


def _outputs(model: nn.Module, images: Array, batch: int, watch: Any, progress: Progress, title: str) -> Outputs:
    batch = min(batch, max(1, MOST_PIXELS // images[0, 0].size))
    starts = range(0, len(images), batch)
    with torch.no_grad(), watch:
        chunks = [answers(model, torch.from_numpy(images[start : start + batch])) for start in progress(starts, title)]
    return tuple(torch.cat(parts).numpy() for parts in zip(*chunks, strict=True))


def replay(model: nn.Module, plan: ScalePlan, hold: Hold, images: Array) -> None:
    """Simulate each site from what the ONNX model computed before it; `hold` keeps how far they differ.

    A model of static batch gets whole batches, the last one filled up: inside it, images may lie along any axis.
    """
    simulator = Simulator(plan)

    def compare(call: Call) -> Tensor:
        return torch.from_numpy(hold(call.site.name, simulator(call).numpy()))

    for start in range(0, len(images), hold.batch):
        part = np.take(images, range(start, start + hold.batch), 0, mode="wrap")
        hold.show(part)
        with torch.no_grad(), applying(model, plan, compare):
            model(torch.from_numpy(part))


def predictor(model: nn.Module, plan: Mapping[str, SitePlan], batch: int = 16) -> Callable[[Array], Array]:
    """images [n, C, H, W] -> the first output under the plan; weights are quantised once for all calls."""
    simulator = Simulator(plan)
    return lambda images: _outputs(model, images, batch, applying(model, plan, simulator), silent, "")[0]
