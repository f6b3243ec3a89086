"""Does the graph hold what the plan prescribes: the weights' codes, the scales, the codes of the activations?

Every check returns a sentence that says what is wrong, or None.
"""

from __future__ import annotations

import numpy as np

from ptq4vit_onnx.graph.code_paths import CodePath
from ptq4vit_onnx.graph.integer_products import Array, GraphIndex, IntegerProduct, ProductName
from ptq4vit_onnx.plan.file_layout import HEAD_UNIT
from ptq4vit_onnx.plan.outlier_split import ROWS, only_channels, without_channels
from ptq4vit_onnx.plan.quantizers import Branch, Quantizer, Uniform
from ptq4vit_onnx.plan.saturation_safe_weights import ship_weight, unit_bias
from ptq4vit_onnx.plan.scale_plan import ScalePlan, SitePlan
from ptq4vit_onnx.plan.sites import Attention


def sides_of(name: ProductName, site: SitePlan) -> tuple[Quantizer, Uniform]:
    """The quantizers of the left and right side of one product of a site."""
    if name.branch == "outliers" and site.outliers is not None:
        return site.outliers.lhs, site.outliers.rhs
    return site.lhs, site.rhs


def check_weight(name: ProductName, product: IntegerProduct, codes: Array, site: SitePlan, weight: Array) -> str | None:
    """The kernel's integer weights are those that ship. weight: the float model's [inputs, outputs]."""
    lhs, rhs = sides_of(name, site)
    expected, _ = ship_weight(_rows_of(name, site, weight), lhs, rhs)
    held = (codes.T if product.transpose_rhs else codes).astype(np.int16) - product.rhs_zero.astype(np.int16)
    if held.shape != expected.shape:
        return f"weight is {held.shape}, the plan's is {expected.shape}"
    wrong = int((held != expected).sum())
    return f"{wrong} of {expected.size} weight codes are not the plan's" if wrong else None


def check_weight_scale(name: ProductName, product: IntegerProduct, plan: ScalePlan, outputs: int) -> str | None:
    """The kernel's weight scales are the plan's, times the heads' factors where a fused qkv carries them."""
    _, rhs = sides_of(name, plan.sites[name.site])
    factor = column_factors(product.rhs_scale, rhs, outputs)
    if (factor == 1).all() or are_head_factors(name.site, plan, factor):
        return None
    worst = int(np.argmax(np.abs(factor - 1)))
    return f"weight scale of output {worst} is {factor[worst]:.9g} times the plan's"


def column_factors(held: Array, rhs: Uniform, outputs: int) -> Array:
    """For each output column, the scale in the graph over the scale in the plan, in float64."""
    wanted = np.repeat(np.asarray(rhs.scale, np.float64), outputs // len(rhs.scale))
    return np.asarray(np.broadcast_to(held.astype(np.float64).reshape(-1), wanted.shape) / wanted)


def check_lhs_scale(name: ProductName, product: IntegerProduct, site: SitePlan) -> str | None:
    """The scale and zero point of the left codes are the plan's. Per-head scales are folded elsewhere."""
    lhs, _ = sides_of(name, site)
    wanted = lhs.branch(name.branch).steps
    held = float(product.lhs_scale.reshape(-1)[0])
    if len(wanted) > 1 or held == float(np.float32(wanted[0])):
        return None
    return f"left scale is {held:.9g}, the plan's is {wanted[0]:.9g}"


def planned_scale(name: ProductName, site: SitePlan, outputs: int) -> Array:
    """What one step of the product's accumulators [.., rows, outputs] is worth in the plan."""
    lhs, rhs = sides_of(name, site)
    left = np.asarray(lhs.branch(name.branch).steps, np.float64).reshape(-1, 1, 1)
    if site.kind == "matmul":
        return left * np.asarray(rhs.scale, np.float64).reshape(-1, 1, 1)
    right = np.repeat(np.asarray(rhs.scale, np.float64), outputs // len(rhs.scale))
    return np.asarray(left).reshape(()) * right


def check_step(branch: Branch, path: CodePath) -> str | None:
    """Codes are made in the plan's steps, or in a unit from floats divided by their heads' scales."""
    scale = float(path.scale.reshape(-1)[0])
    if branch.steps == (scale,) or scale in HEAD_UNIT.values():
        return None
    return f"codes are in steps of {scale:.9g}, the plan's are {branch.steps[0]:.9g}"


def check_codes(branch: Branch, path: CodePath, floats: Array, codes: Array, zero: Array) -> str | None:
    """The codes that arrive are those the branch gives for the floats that entered QuantizeLinear.

    zero: the product's zero point.
    """
    held = path.arriving(codes).astype(np.int32) - zero.astype(np.int32)
    expected = (floats / path.scale).round().clip(branch.low, branch.high)
    wrong = int((held != expected).sum())
    return f"{wrong} of {held.size} codes fed are not the quantizer's" if wrong else None


def check_colours(index: GraphIndex, quantizer: Quantizer, path: CodePath) -> str | None:
    """An image becomes bytes by the plan's scale, zero point and offset of each colour."""
    add = index.producer.get(path.floats)
    offset = index.constant(add.input[1]) if add is not None and add.op_type == "Add" else None
    held = (path.scale, path.zeros, np.zeros(1, np.float32) if offset is None else offset)
    for what, values, name in zip(
        ("scales", "zero points", "offsets"), held, ("step", "zero_point", "offset"), strict=True
    ):
        wanted = np.asarray([getattr(colour, name) for colour in quantizer.colours], values.dtype)
        if not np.array_equal(np.broadcast_to(values.reshape(-1), wanted.shape), wanted):
            return f"the colours' {what} are {values.reshape(-1).tolist()}, the plan's are {wanted.tolist()}"
    return None


def check_bytes(quantizer: Quantizer, path: CodePath, floats: Array, codes: Array) -> str | None:
    """The bytes of an image [batch, colours, height, width] are the plan's for its floats, offset included."""
    scale, zero = (
        np.asarray([getattr(colour, name) for colour in quantizer.colours], np.float32).reshape(-1, 1, 1)
        for name in ("step", "zero_point")
    )
    expected = ((floats / scale).round() + zero).clip(0, 255)
    wrong = int((path.arriving(codes) != expected).sum())
    return f"{wrong} of {codes.size} bytes fed are not the pixels" if wrong else None


def planned_constant(site: SitePlan, weight: Array) -> Array | float:
    """What the plan adds to a site's bias besides the correction. weight: the float model's [inputs, outputs]."""
    if not site.lhs.colours:
        return 0.0
    codes, _ = ship_weight(weight, site.lhs, site.rhs)
    constant = unit_bias(codes, site.lhs, site.rhs)
    return 0.0 if constant is None else constant


def check_product_scale(product: IntegerProduct, planned: Array) -> str | None:
    """For kernels that return codes: one step of the accumulators is worth what the plan says."""
    held = float(product.lhs_scale.reshape(-1)[0]) * float(product.rhs_scale.reshape(-1)[0])
    if (np.abs(planned - held) <= 4 * 2.0**-24 * held).all():
        return None
    return f"a step of the product is worth {held:.9g}, in the plan {planned.reshape(-1)[0]:.9g}"


def check_range(branch: Branch, path: CodePath, zero: Array) -> str | None:
    """Whatever the image, the codes of a side can reach the quantizer's highest value and stay in its range.

    All bytes that QuantizeLinear can return are sent down the path. Softmax is never negative: it need not reach the
    lowest value; and it ends at 1, which may be below the highest.
    """
    low, high = branch.low, branch.high
    if path.lowest > path.highest:
        return f"no code can arrive: limited to {path.lowest}..{path.highest}, the plan's are {low}..{high}"
    every = np.arange(path.lowest, path.highest + 1).astype(path.kind)
    units = path.arriving(every).astype(np.int32) - int(zero.reshape(-1)[0])
    # Where the byte itself ends the codes, the plan alone says how far that is from zero: counted from the file's own
    # zero point, a wrong one would prove itself right. Only floats that end before the byte does may fall short.
    source_ends = path.highest < np.iinfo(path.kind).max
    reach = min(high, path.highest - path.zero) if source_ends else high
    if low <= units.min() and units.max() == reach:
        return None
    return f"codes can be {units.min()}..{units.max()} from zero, the plan's are {low}..{high}"


def check_channels(index: GraphIndex, lhs: str, channels: tuple[int, ...]) -> str | None:
    """An outlier product's left side was picked from the plan's channels."""
    node = index.producer.get(lhs)
    while node is not None and node.op_type != "Gather":
        node = index.producer.get(node.input[0])
    picked = index.constant(node.input[1]) if node is not None else None
    if picked is not None and tuple(picked.reshape(-1)) == channels:
        return None
    return f"outlier channels are {None if picked is None else picked.tolist()}, the plan's are {list(channels)}"


def check_twin(quantizer: Quantizer, x: Array, branches: list[tuple[IntegerProduct, Array]]) -> str | None:
    """The branches' codes together are the twin quantizer's value of x, counted in steps of the fine range.

    branches: each kernel with the left codes it was fed, in x's order.
    """
    fine = quantizer.branches[0].steps[0]
    allowed = [branch.steps[0] / fine for branch in quantizer.branches]
    held = np.zeros(x.size, np.int64)
    for product, codes in branches:
        steps = float(product.lhs_scale.reshape(-1)[0]) / fine
        if steps not in allowed:
            return (
                f"a branch has steps of {steps:.6g} fine steps, expected {' or '.join(f'{item:g}' for item in allowed)}"
            )
        held += (codes.astype(np.int64).reshape(-1) - int(product.lhs_zero.reshape(-1)[0])) * int(steps)
    parts = zip(quantizer.units(x.reshape(-1)), allowed, strict=True)
    expected = np.sum([part.astype(np.int64) * int(steps) for part, steps in parts], axis=0)
    wrong = int((held != expected).sum())
    return f"{wrong} of {held.size} twin codes fed are not the quantizer's" if wrong else None


def _rows_of(name: ProductName, site: SitePlan, weight: Array) -> Array:
    """The weight one product multiplies by: the outlier channels alone, or all with those set to zero."""
    if site.outliers is None:
        return weight
    channels = site.outliers.channels
    return (only_channels if name.branch == "outliers" else without_channels)(weight, channels, ROWS)


def are_head_factors(site: str, plan: ScalePlan, factor: Array) -> bool:
    """Whether the factors on a fused qkv's columns turn its output into units of its heads' scales."""
    return head_unit(site, plan, factor) is not None


def head_unit(site: str, plan: ScalePlan, factor: Array) -> float | None:
    """The unit that a fused qkv counts its heads' scales in; None where the factors on its columns are no such ones.

    They are unit / D_head for k and v, and for q that times the attention scale.
    """
    fitting = (unit for unit in HEAD_UNIT.values() if _are_in_heads(site, plan, factor / unit))
    return next(fitting, None)


def _are_in_heads(site: str, plan: ScalePlan, factor: Array) -> bool:
    names = Attention.around(site)
    scores, values = plan.sites.get(names.qk), plan.sites.get(names.pv)
    if scores is None or values is None or not isinstance(scores.lhs, Uniform) or len(factor) % 3:
        return False
    q, k, v = np.split(factor, 3)
    units = [_times_heads(k, scores.rhs.scale), _times_heads(v, values.rhs.scale)]
    attention = _times_heads(q, scores.lhs.scale)
    return all(_is_near(unit, 1.0) for unit in units) and _is_near(attention, attention_scale(attention))


def _times_heads(part: Array, scale: tuple[float, ...]) -> Array:
    """Columns of equal, consecutive heads, each times its head's scale; NaN where heads do not fit."""
    if len(part) % len(scale):
        return np.full(1, np.nan)
    return part * np.repeat(np.asarray(scale, np.float64), len(part) // len(scale))


def attention_scale(factor: Array) -> float:
    """The nearest 1 / sqrt(depth), depth a whole number."""
    first = float(factor[0])
    return 1.0 / float(np.sqrt(max(1.0, np.rint(first**-2)))) if first > 0 else 1.0


def _is_near(values: Array, wanted: float) -> bool:
    """Equal up to the rounding of a few float32 operations."""
    return bool((np.abs(values - wanted) <= 8 * 2.0**-24 * wanted).all())
