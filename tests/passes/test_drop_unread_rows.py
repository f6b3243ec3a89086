"""DropUnreadRows: behind the last attention only the class token is computed, and it does not change by a bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import ArrayLike
from onnx import helper, numpy_helper

from ptq4vit_onnx import passes
from ptq4vit_onnx.passes import quantize
from ptq4vit_onnx.passes.drop_unread_rows import DropUnreadRows
from ptq4vit_onnx.passes.tensors import Array
from ptq4vit_onnx.passes.work import Work
from ptq4vit_onnx.plan.quantizers import Quantizer, TwinGelu, TwinSoftmax, Uniform
from ptq4vit_onnx.plan.scale_plan import ScalePlan, SitePlan
from tests.passes.small_models import Batch, Small

TOKENS, WIDTH = 5, 12
LINEAR = SitePlan("linear", "other", Uniform(8, (0.03125,)), Uniform(8, (0.0078125,)))
WHOLE = {"attn.qkv/MatMul", "attn/Transpose_1", "attn/Squeeze_2"}  # what every row of attention reads
CUT = {"attn.qk/MatMul", "attn.pv/MatMul", "attn.proj/MatMul", "mlp.fc1/MatMul", "mlp.fc2/MatMul"}


class Block:
    """The last block behind the small attention: residuals, LayerNorms, an MLP, and what the head reads."""

    def __init__(self, small: Small, batch: Batch = "batch") -> None:
        self.model = small.attention(batch)
        self.graph = self.model.graph
        y = self.add("block/Add", "x", self.graph.output[0].name)
        hidden = self.add("mlp.act/Gelu", self.linear("mlp.fc1", self.norm("norm2", y), 24))
        self.rows = self.norm("norm", self.add("block/Add_1", y, self.linear("mlp.fc2", hidden, WIDTH)))

    def add(self, name: str, *inputs: str, **attributes: Any) -> str:
        operation = name.rpartition("/")[2].partition("_")[0]
        self.graph.node.append(helper.make_node(operation, inputs, [f"{name}:0"], name, **attributes))
        return f"{name}:0"

    def constant(self, name: str, value: ArrayLike) -> str:
        self.graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def draw(self, name: str, *shape: int) -> str:
        return self.constant(name, np.random.default_rng(len(name)).standard_normal(shape).astype(np.float32) * 0.2)

    def norm(self, name: str, x: str) -> str:
        return self.add(f"{name}/LayerNormalization", x, self.draw(f"{name}.g", WIDTH), self.draw(f"{name}.b", WIDTH))

    def linear(self, site: str, x: str, outputs: int) -> str:
        inputs = 24 if site == "mlp.fc2" else WIDTH
        y = self.add(f"{site}/MatMul", x, self.draw(f"{site}.weight", inputs, outputs))
        return self.add(f"{site}/Add", y, self.draw(f"{site}.bias", outputs))

    def token(self, index: int = 0, x: str | None = None) -> str:
        return self.add("model/Gather", x or self.rows, self.constant("index", np.int64(index)), axis=1)

    def finished(self, *outputs: str) -> onnx.ModelProto:
        del self.graph.output[:]
        values = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in outputs]
        self.graph.output.extend(values)
        return onnx.shape_inference.infer_shapes(self.model, strict_mode=True)


def plan_of(small: Small, x: Array, bits: int = 8, lhs: Quantizer | None = None) -> ScalePlan:
    fc2 = SitePlan("linear", "gelu", TwinGelu(bits, 0.0625, 3), LINEAR.rhs) if lhs else LINEAR
    sites = dict(small.attention_plan(small.attention(), x, bits, lhs=lhs).sites)
    return small.plan({**sites, "mlp.fc1": LINEAR, "mlp.fc2": fc2})


@pytest.fixture
def x(random: np.random.Generator) -> Array:
    return random.standard_normal((2, TOKENS, WIDTH)).astype(np.float32)


def lengths(work: Work) -> dict[str, int | str]:
    """Tokens in the output of each node of rank three or more."""
    shapes = {node.name: node.outputs[0].shape for node in work.graph.nodes}
    return {name: shape[-2] for name, shape in shapes.items() if shape is not None and len(shape) >= 3}


@pytest.mark.parametrize("batch", ["batch", 2])
def test_what_only_the_class_token_reads_has_one_row_and_keys_and_values_have_all(
    batch: Batch, small: Small, x: Array
) -> None:
    block = Block(small, batch)
    work = small.run_until(block.finished(block.token()), plan_of(small, x), "DropUnreadRows")
    found = lengths(work)
    assert {found[name] for name in CUT} == {1}
    assert TOKENS in {found[name] for name in WHOLE} and found["attn.qkv/MatMul"] == TOKENS
    slices = {node.inputs[0].name for node in work.graph.nodes if "/first_row_" in node.name}
    assert slices == {"attn/Squeeze_0:0", "x"}
    shapes = {item.name: item for item in onnx.shape_inference.infer_shapes(small.export(work)).graph.value_info}
    assert [size.dim_value for size in shapes["attn/Reshape_1:0"].type.tensor_type.shape.dim[1:]] == [1, WIDTH]


@pytest.mark.parametrize("batch", ["batch", 2])
@pytest.mark.parametrize(("bits", "lhs"), [(8, None), (8, TwinSoftmax(8, 5)), (6, TwinSoftmax(6, 5)), (4, None)])
def test_the_class_token_is_the_same_to_the_last_bit(
    bits: int, lhs: Quantizer | None, batch: Batch, small: Small, x: Array, monkeypatch: pytest.MonkeyPatch
) -> None:
    block = Block(small, batch)
    model, plan = block.finished(block.token()), plan_of(small, x, bits, lhs)
    quantized, report = quantize(model, plan)
    assert report.places["DropUnreadRows"] == 17
    idle = type("DropUnreadRows", (DropUnreadRows,), {"apply": lambda _self, _work: 0, "ensures": ()})
    line = tuple(idle if item is DropUnreadRows else item for item in passes.PASSES)
    monkeypatch.setattr(passes, "PASSES", line)
    whole, report = quantize(model, plan)
    assert report.places["DropUnreadRows"] == 0
    short, long = small.execute(quantized, x), small.execute(whole, x)
    assert short.output.shape == (2, WIDTH) and np.array_equal(short.output, long.output)
    integer = "MatMulIntegerToFloat"
    assert short.operations[integer] == long.operations[integer] == sum(report.products.values())


def mean_of_tokens(block: Block) -> tuple[str, ...]:
    return (block.add("model/ReduceMean", block.rows, block.constant("axes", np.asarray([1], np.int64)), keepdims=0),)


def rows_are_shown(block: Block) -> tuple[str, ...]:
    return block.token(), block.rows


def second_token(block: Block) -> tuple[str, ...]:
    return (block.token(1),)


def tokens_are_mixed(block: Block) -> tuple[str, ...]:
    mixed = block.add("model/Softmax", block.rows, axis=1)
    return (block.token(x=mixed),)


def tokens_have_constants_of_their_own(block: Block) -> tuple[str, ...]:
    return (block.token(x=block.add("model/Add", block.rows, block.draw("positions", TOKENS, WIDTH))),)


def tokens_are_laid_out_anew(block: Block) -> tuple[str, ...]:
    shape = block.constant("shape", np.asarray([-1, WIDTH, TOKENS], np.int64))
    return (block.token(x=block.add("model/Reshape", block.rows, shape)),)


@pytest.mark.parametrize(
    "finish",
    [
        mean_of_tokens,
        rows_are_shown,
        second_token,
        tokens_are_mixed,
        tokens_have_constants_of_their_own,
        tokens_are_laid_out_anew,
    ],
)
def test_nothing_is_cut_where_more_than_the_first_row_is_read(
    finish: Callable[[Block], tuple[str, ...]], small: Small, x: Array
) -> None:
    block = Block(small)
    quantized, report = quantize(block.finished(*finish(block)), plan_of(small, x))
    assert report.places["DropUnreadRows"] == 0
    assert not [node.name for node in quantized.graph.node if "first_row" in node.name]


def test_rows_that_something_else_reads_stay_whole_and_those_behind_are_cut(small: Small, x: Array) -> None:
    block = Block(small)
    work = small.run_until(block.finished(block.token(), "block/Add:0"), plan_of(small, x), "DropUnreadRows")
    found = lengths(work)
    assert found["attn.proj/MatMul"] == found["attn.qk/MatMul"] == TOKENS
    assert found["mlp.fc1/MatMul"] == found["mlp.fc2/MatMul"] == 1
