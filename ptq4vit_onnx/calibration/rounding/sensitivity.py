"""What each width of a weight is expected to cost, from images that took no part in calibration.

A weight's errors are the same for all tokens of an image, so they add up before they are squared: with the gradient
g of the loss in the weight's output and e the change of that output, the quadratic term of the loss is half of

    E (sum over tokens and outputs of g e)^2  =  E <X^T g, W' - W>^2

whose expectation is over images and over the random signs that g was drawn with. Adding up squares g^2 e^2 instead, as
the search does to compare scales, is four times too low here (W4A8 of DeiT-T).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from ptq4vit_onnx.network.planned_product import shipped_sides
from ptq4vit_onnx.plan.scale_plan import SitePlan


class Sensitivity:
    """A listener (see network.gradients) of one weight: it hears one image at a time.

    weight: [inputs, outputs], of the float model. plans: by width.
    """

    def __init__(self, weight: Tensor, plans: Mapping[int, SitePlan]) -> None:
        self.weight, self.plans = weight, plans
        self.squares = dict.fromkeys(plans, 0.0)
        self.images = 0
        self._errors: dict[int, tuple[Tensor, Tensor]] | None = None

    def __call__(self, rows: Tensor) -> Callable[[Tensor], None]:
        if self._errors is None:
            self._errors = {bits: weight_error(self.weight, plan) for bits, plan in self.plans.items()}
        errors, inputs = self._errors, rows.detach().clone()

        def add(grad: Tensor) -> None:
            of_weight, of_bias = inputs.T @ grad, grad.sum(0)
            self.images += 1
            for bits, (weight, bias) in errors.items():
                change = torch.dot(of_weight.flatten(), weight.flatten()) + torch.dot(of_bias, bias)
                self.squares[bits] += float(change) ** 2

        return add

    def forget_errors(self) -> None:
        """They are as large as the weight, once for each width."""
        self._errors = None

    @property
    def damage(self) -> dict[int, float]:
        """By width: half the mean square, in the unit of the output's kind, per image."""
        return {bits: 0.5 * total / max(1, self.images) for bits, total in self.squares.items()}


def weight_error(weight: Tensor, plan: SitePlan) -> tuple[Tensor, Tensor]:
    """How the plan changes what a linear [inputs, outputs] does to the float model's inputs: (the change of its weight,
    of its bias)."""
    channels = plan.channels
    scale = weight.new_ones(len(weight)) if channels is None else weight.new_tensor(channels.scale)
    main, narrow = shipped_sides(weight * scale[:, None], plan)
    if plan.outliers is not None and narrow is not None:
        main = main.clone()
        main[list(plan.outliers.channels)] += narrow
    change = main / scale[:, None] - weight
    if channels is None:
        return change, weight.new_zeros(weight.shape[1])
    return change, -(weight.new_tensor(channels.shift) @ change)
