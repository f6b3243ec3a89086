"""Small quantised graphs, built by hand, for whatever looks at graphs that ONNX Runtime executes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import ArrayLike, DTypeLike
from onnx import TensorProto, helper, numpy_helper

from ptq4vit_onnx.plan.quantizers import Affine, Quantizer, TwinSoftmax, Uniform, as_float32
from ptq4vit_onnx.plan.saturation_safe_weights import ship_weight
from ptq4vit_onnx.plan.scale_plan import ScalePlan, SitePlan
from ptq4vit_onnx.proof.float_sites import FloatSites

Array = np.ndarray[Any, Any]
BATCH, TOKENS, INPUTS, OUTPUTS = 2, 5, 16, 8


@dataclass
class SmallGraph:
    """A graph being written down: `add` appends a node, `constant` a tensor; both return a name."""

    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[onnx.TensorProto] = field(default_factory=list)

    def add(self, op: str, name: str, *inputs: str, **attributes: Any) -> str:
        number = len(self.nodes)
        unique = f"{name}_{number}" if any(node.name == name for node in self.nodes) else name
        self.nodes.append(helper.make_node(op, list(inputs), [f"tensor{number}"], name=unique, **attributes))
        return f"tensor{number}"

    def constant(self, value: ArrayLike, kind: DTypeLike = np.float32) -> str:
        name = f"constant{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value, kind), name))
        return name

    def quantised(self, site: str, x: str, scale: float, zero: int, high: int = 255) -> str:
        """x -> QuantizeLinear [-> Clip] -> DequantizeLinear, unsigned."""
        step, point = self.constant(scale), self.constant(zero, np.uint8)
        codes = self.add("QuantizeLinear", f"{site}/QuantizeLinear", x, step, point)
        if high < 255:
            codes = self.add("Clip", f"{site}/Clip", codes, "", self.constant(high, np.uint8))
        return self.add("DequantizeLinear", f"{site}/DequantizeLinear", codes, step, point)

    def weight(self, site: str, codes: Array, scale: tuple[float, ...]) -> str:
        if len(scale) == 1:
            inputs = (self.constant(codes, np.int8), self.constant(scale[0]), self.constant(0, np.int8))
            return self.add("DequantizeLinear", f"{site}/DequantizeLinear.weight", *inputs)
        inputs = (
            self.constant(codes, np.int8),
            self.constant(scale),
            self.constant(np.zeros(len(scale)), np.int8),
        )
        return self.add("DequantizeLinear", f"{site}/DequantizeLinear.weight", *inputs, axis=1)

    def model(self, output: str, entry: tuple[int, ...], rank: int, batch: int | str = "batch") -> onnx.ModelProto:
        free = [batch, *(f"length{axis}" for axis in range(1, rank))]
        graph = helper.make_graph(
            self.nodes,
            "small",
            [helper.make_tensor_value_info("image", TensorProto.FLOAT, [batch, *entry])],
            [helper.make_tensor_value_info(output, TensorProto.FLOAT, free)],
            self.constants,
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
        onnx.checker.check_model(model, full_check=True)
        return model


def plan_of(**sites: SitePlan) -> ScalePlan:
    return ScalePlan("small", "", "", {}, {}, sites)


@dataclass(frozen=True)
class Linear:
    """A quantised linear named `fc`: what it was made from and the model."""

    weight: Array
    plan: ScalePlan
    model: onnx.ModelProto
    bias: Array | None = None

    @property
    def float_sites(self) -> FloatSites | None:
        """The float model it would have been made from; None where no weight is involved."""
        if not self.weight.size:
            return None
        graph = SmallGraph()
        out = graph.add("MatMul", "fc/MatMul", "image", graph.constant(self.weight))
        if self.bias is not None:
            out = graph.add("Add", "fc/Add", out, graph.constant(self.bias))
        return FloatSites(graph.model(out, (TOKENS, INPUTS), 3), None)


def build_linear(
    bias_shape: tuple[int, ...] | None = (1, OUTPUTS),
    batch: int | str = "batch",
    requantised: bool = False,
    lhs: Uniform | Affine | None = None,
    per_channel: bool = True,
    weight: Array | None = None,
    codes: Array | None = None,
    scale_factor: float = 1.0,
    bias_error: float = 0.0,
    gelu: bool = False,
) -> Linear:
    """image [batch, tokens, inputs] -> quantised -> @ int8 weight -> + bias -> relu, or -> requantised.

    gelu: before the image is quantised, so that codes have a lowest value above their byte's.
    codes, scale_factor, bias_error: overwrite the weight's codes, multiply its scale, or add to the bias, to
    build a wrong graph.
    """
    random = np.random.default_rng(0)
    floats = random.standard_normal((INPUTS, OUTPUTS)).astype(np.float32) if weight is None else weight
    steps = np.abs(floats).max(0) / 127 if per_channel else np.abs(floats).max(keepdims=True).reshape(1) / 127
    rhs = Uniform(8, tuple(as_float32(step) for step in steps))
    left = lhs or Uniform(8, (as_float32(0.03),))
    zero = left.zero_point[0] if isinstance(left, Affine) else 2 ** (left.bits - 1)
    graph = SmallGraph()
    source = graph.add("Gelu", "act/Gelu", "image") if gelu else "image"
    x = graph.quantised("fc", source, left.scale[0], zero)
    shipped = ship_weight(floats, left, rhs)[0] if codes is None else codes
    w = graph.weight("fc", shipped, tuple(scale_factor * scale for scale in rhs.scale))
    out = graph.add("MatMul", "fc/MatMul", x, w)
    bias = None
    if bias_shape is not None:
        bias = random.standard_normal(OUTPUTS).astype(np.float32)
        out = graph.add("Add", "fc/Add", out, graph.constant((bias + bias_error).reshape(bias_shape)))
    out = graph.quantised("after", out, 0.05, 128) if requantised else graph.add("Relu", "after/Relu", out)
    site = SitePlan("linear", "other", left, rhs)
    return Linear(floats, plan_of(fc=site), graph.model(out, (TOKENS, INPUTS), 3, batch), bias)


def build_attention(lhs: Quantizer | None = None, double_counting: bool = False) -> Linear:
    """image [batch, heads, tokens, depth]: q @ k^T -> softmax -> twin -> p @ v, with q = k = v = image.

    double_counting: the fine branch keeps the values that the coarse one holds already.
    """
    twin = lhs or TwinSoftmax(8, 4)
    assert isinstance(twin, TwinSoftmax)
    side = Uniform(8, (as_float32(0.03),))
    graph = SmallGraph()
    q = graph.quantised("attn.qk", "image", side.scale[0], 128)
    turned = graph.add("Transpose", "attn/Transpose", "image", perm=[0, 1, 3, 2])
    k = graph.quantised("attn.qk", turned, side.scale[0], 128)
    p = graph.add("Softmax", "attn/Softmax", graph.add("MatMul", "attn.qk/MatMul", q, k), axis=-1)
    below_split = float(np.nextafter(np.float32(twin.split), np.float32(0)))
    high = graph.add("ThresholdedRelu", "attn.pv/ThresholdedRelu", p, alpha=below_split)
    low = graph.add("Sub", "attn.pv/Sub", p, graph.constant(0.0) if double_counting else high)
    v = graph.quantised("attn.pv", "image", side.scale[0], 128)
    products = []
    for name, branch, step in (("MatMul", low, twin.fine), ("MatMul.coarse", high, twin.coarse)):
        held = graph.quantised("attn.pv", branch, step, 0, twin.high)
        products.append(graph.add("MatMul", f"attn.pv/{name}", held, v))
    out = graph.add("Add", "attn.pv/Add.branches", *products)
    plan = ScalePlan("small", "", "", {}, {}, {
        "attn.qk": SitePlan("matmul", "other", side, side),
        "attn.pv": SitePlan("matmul", "softmax", twin, side),
    })  # fmt: skip
    return Linear(np.zeros((0, 0)), plan, graph.model(out, (3, TOKENS, INPUTS), 4))


def build_signed(bits: int, lhs_high: int) -> Linear:
    """image [batch, heads, tokens, depth] @ its transpose: bytes up to lhs_high, int8 codes of some bits."""
    scale, zero = as_float32(0.25), 2 ** (bits - 1)
    graph = SmallGraph()
    step, point = graph.constant(scale), graph.constant(zero, np.uint8)
    turned = graph.add("Transpose", "attn/Transpose", "image", perm=[0, 1, 3, 2])
    sides = []
    for name, x, high in (("lhs", "image", lhs_high), ("rhs", turned, 2**bits - 1)):
        codes = graph.add("QuantizeLinear", f"attn.qk/{name}/QuantizeLinear", x, step, point)
        sides.append(graph.add("Clip", f"attn.qk/{name}/Clip", codes, "", graph.constant(high, np.uint8)))
    lhs = graph.add("DequantizeLinear", "attn.qk/lhs/DequantizeLinear", sides[0], step, point)
    signed = graph.add("Cast", "attn.qk/rhs/Cast", sides[1], to=TensorProto.INT8)
    signed_point = graph.constant(zero, np.int8)
    rhs = graph.add("DequantizeLinear", "attn.qk/rhs/DequantizeLinear", signed, step, signed_point)
    out = graph.add("MatMul", "attn.qk/MatMul", lhs, rhs)
    side = Uniform(bits, (scale,))
    plan = ScalePlan("small", "", "", {}, {}, {"attn.qk": SitePlan("matmul", "other", side, side)})
    return Linear(np.zeros((0, 0)), plan, graph.model(out, (3, TOKENS, INPUTS), 4))


@pytest.fixture
def signed() -> Callable[..., Linear]:
    return build_signed


@pytest.fixture
def linear() -> Callable[..., Linear]:
    return build_linear


@pytest.fixture
def attention() -> Callable[..., Linear]:
    return build_attention


@pytest.fixture
def vectors() -> Array:
    """[batch, tokens, inputs], reaching beyond the quantisation range."""
    return np.random.default_rng(1).standard_normal((BATCH, TOKENS, INPUTS)).astype(np.float32) * 2


@pytest.fixture
def heads() -> Array:
    """[batch, heads, tokens, depth]"""
    return np.random.default_rng(1).standard_normal((BATCH, 3, TOKENS, INPUTS)).astype(np.float32)
