"""Second moments of a weight's quantised inputs, added up image by image: all that compensated rounding needs of them.

Keeping the inputs themselves would take as much memory as there are images.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ptq4vit_onnx.plan.scale_plan import SitePlan


@dataclass(frozen=True)
class Moments:
    """Sums over all rows x of a weight's inputs, each row weighed by d, the root mean square of its output's gradient.

    quantised: sum d q q^T [inputs, inputs] of the quantised rows q. crossed: sum d q x^T, the rows x being what the
    float model multiplies; where it was not asked for, the same as `quantised`.
    The root of the Fisher diagonal, not the diagonal itself: with the diagonal a few tokens would make all of the sum,
    with no weight at all a few huge inputs (DeiT-T at W4A8, KL: 0.060 with the root, 0.070 and 0.081 with the others).
    """

    quantised: Tensor
    crossed: Tensor


class MomentSums:
    """A listener (see network.gradients) that adds up the moments of one site, as its plan quantises the inputs."""

    def __init__(self, plan: SitePlan, crossed: bool) -> None:
        self.plan, self.asks_crossed = plan, crossed
        self.quantised: Tensor | None = None
        self.crossed: Tensor | None = None

    def __call__(self, rows: Tensor) -> Callable[[Tensor], None]:
        quantised, plain = product_inputs(rows, self.plan)

        def weigh(grad: Tensor) -> None:
            d = torch.linalg.vector_norm(grad, dim=-1, keepdim=True) / grad.shape[-1] ** 0.5
            weighed = (quantised * d).T
            self.quantised = _added(self.quantised, weighed @ quantised)
            if self.asks_crossed:
                self.crossed = _added(self.crossed, weighed @ plain)

        return weigh

    @property
    def hears(self) -> bool:
        """Whether there are sums that nobody has taken."""
        return self.quantised is not None

    def take(self) -> Moments:
        """The sums; they are forgotten."""
        assert self.quantised is not None, "no gradient was heard"
        found = Moments(self.quantised, self.quantised if self.crossed is None else self.crossed)
        self.quantised = self.crossed = None
        return found


@torch.no_grad()
def product_inputs(rows: Tensor, plan: SitePlan) -> tuple[Tensor, Tensor]:
    """Rows [n, inputs] of the float model as the plan's product multiplies them: (quantised, as they were).

    Channels are folded in, and where the left quantizer has row steps, rows are counted in these.
    """
    if plan.channels is not None:
        rows = (rows - rows.new_tensor(plan.channels.shift)).div_(rows.new_tensor(plan.channels.scale))
    steps = plan.lhs.row_steps(rows.shape[1])
    if steps is not None:
        rows = rows / rows.new_tensor(steps)
    elif plan.channels is None:
        rows = rows.clone()  # the model may change them in place
    return plan.lhs.in_steps.fake_quantize(rows), rows


def _added(total: Tensor | None, more: Tensor) -> Tensor:
    return more if total is None else total.add_(more)
