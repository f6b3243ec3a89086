"""One product as its plan computes it: the one definition for search, simulator and bias correction."""

from __future__ import annotations

from torch import Tensor

from ptq4vit_onnx.plan.outlier_split import COLUMNS, ROWS, only_channels, without_channels
from ptq4vit_onnx.plan.saturation_safe_weights import shipped
from ptq4vit_onnx.plan.scale_plan import SitePlan


def quantized_product(lhs: Tensor, rhs: Tensor, plan: SitePlan) -> Tensor:
    """lhs @ rhs as the plan computes it, before bias: the one definition for search, simulator and bias correction.

    linear and conv: lhs [.., inputs], rhs [inputs, outputs]. matmul: [.., heads, rows, inner] each.
    """
    if plan.kind == "matmul":
        return plan.lhs.fake_quantize(lhs) @ plan.rhs.fake_quantize(rhs)
    return with_weight(lhs, plan, *shipped_sides(rhs, plan))


def shipped_sides(weight: Tensor, plan: SitePlan) -> tuple[Tensor, Tensor | None]:
    """The weights of the main product and of the outliers' product, as they ship, decoded."""
    if plan.outliers is None:
        return shipped(weight.contiguous(), plan.lhs, plan.rhs), None
    channels = plan.outliers.channels
    main = shipped(without_channels(weight, channels, ROWS).contiguous(), plan.lhs, plan.rhs)
    return main, shipped(only_channels(weight, channels, ROWS), plan.outliers.lhs, plan.outliers.rhs)


def with_weight(lhs: Tensor, plan: SitePlan, main: Tensor, narrow: Tensor | None) -> Tensor:
    out = plan.lhs.fake_quantize(lhs) @ main
    if plan.outliers is None or narrow is None:
        return out
    picked = only_channels(lhs, plan.outliers.channels, COLUMNS)
    return out + plan.outliers.lhs.fake_quantize(picked) @ narrow
