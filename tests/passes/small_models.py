"""Small float models by hand, plans for them, and what they should compute: no torch is needed."""

from __future__ import annotations

import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias, cast

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import onnxruntime
from numpy.typing import ArrayLike, DTypeLike
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from ptq4vit_onnx.passes import PASSES
from ptq4vit_onnx.passes.tensors import Array
from ptq4vit_onnx.passes.work import Attribute, Work
from ptq4vit_onnx.plan.quantizers import Quantizer, Uniform, as_float32
from ptq4vit_onnx.plan.saturation_safe_weights import ship_weight
from ptq4vit_onnx.plan.scale_plan import ScalePlan, SitePlan

Batch: TypeAlias = int | str  # a number, or the name of an axis of any length
TOKENS, WIDTH, HEADS, DEPTH = 5, 12, 3, 4


@dataclass
class FloatGraph:
    """A float graph being written down; nodes are named as bind_sites names them."""

    seed: int = 0
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    tensors: dict[str, Array] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(self.seed)

    def add(self, name: str, inputs: list[str], outputs: int = 1, **attributes: Attribute) -> str:
        """`name` is SCOPE/Operation; returns the output's name."""
        operation = name.rpartition("/")[2].partition("_")[0]
        given: dict[str, Any] = dict(attributes)  # make_node has keywords of its own
        node = helper.make_node(operation, inputs, [f"{name}:{n}" for n in range(outputs)], name, **given)
        self.nodes.append(node)
        return f"{name}:0"

    def constant(self, name: str, value: ArrayLike) -> str:
        self.tensors[name] = np.asarray(value)
        return name

    def draw(self, name: str, *shape: int, spread: float = 1.0) -> str:
        return self.constant(name, (self.random.standard_normal(shape) * spread).astype(np.float32))

    def integers(self, *values: int) -> str:
        return self.constant(f"integers{values}", np.asarray(values, np.int64))

    def linear(self, site: str, x: str, inputs: int, outputs: int, bias: bool = True) -> str:
        y = self.add(f"{site}/MatMul", [x, self.draw(f"{site}.weight", inputs, outputs, spread=0.3)])
        return self.add(f"{site}/Add", [y, self.draw(f"{site}.bias", outputs)]) if bias else y

    def model(self, output: str, entry: tuple[Batch, ...], name: str = "x") -> onnx.ModelProto:
        value = helper.make_tensor_value_info
        graph = helper.make_graph(
            self.nodes,
            "small",
            [value(name, TensorProto.FLOAT, entry)],
            [value(output, TensorProto.FLOAT, None)],
            [numpy_helper.from_array(array, key) for key, array in self.tensors.items()],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
        model.metadata_props.add(key="name", value="small")
        return onnx.shape_inference.infer_shapes(model, strict_mode=True)


def linear_model(batch: Batch = "batch", bias: bool = True, inputs: int = WIDTH, outputs: int = 8) -> onnx.ModelProto:
    graph = FloatGraph()
    return graph.model(graph.linear("fc", "x", inputs, outputs, bias), (batch, TOKENS, inputs))


def normed_model(
    batch: Batch = "batch", bias: bool = True, moved: bool = False, changed: bool = False
) -> onnx.ModelProto:
    """LayerNorm -> linear; with `moved`, tokens change places in between, as in a Swin's windows; or are changed."""
    graph = FloatGraph()
    y = graph.add("norm/LayerNormalization", ["x", graph.draw("gain", WIDTH), graph.draw("offset", WIDTH)], axis=-1)
    if moved:
        y = graph.add("windows/Transpose", [graph.add("windows/Transpose_1", [y], perm=[1, 0, 2])], perm=[1, 0, 2])
    if changed:
        y = graph.add("windows/Relu", [y])
    return graph.model(graph.linear("fc", y, WIDTH, 8, bias), (batch, TOKENS, WIDTH))


def gemm_model(batch: Batch = "batch") -> onnx.ModelProto:
    """[batch, inputs] -> Gemm with a transposed weight, as torch writes a classifier's head."""
    graph = FloatGraph()
    inputs = ["x", graph.draw("head.weight", 7, WIDTH), graph.draw("head.bias", 7)]
    return graph.model(graph.add("head/Gemm", inputs, transB=1), (batch, WIDTH))


def gelu_model(batch: Batch = "batch") -> onnx.ModelProto:
    graph = FloatGraph()
    hidden = graph.add("mlp.act/Gelu", ["x"])
    return graph.model(graph.linear("mlp.fc2", hidden, 24, WIDTH), (batch, TOKENS, 24))


def softmax_model(batch: Batch = "batch") -> onnx.ModelProto:
    """Softmax(x) @ V, with a constant-free right side: x is both scores and, after slicing, V."""
    graph = FloatGraph()
    probabilities = graph.add("attn/Softmax", ["x"], axis=-1)
    right = graph.add("attn/Slice", ["x", *(graph.integers(n) for n in (0, DEPTH, 3))])
    return graph.model(graph.add("attn.pv/MatMul", [probabilities, right]), (batch, HEADS, TOKENS * 2, TOKENS * 2))


def patches_model(batch: Batch = "batch", follow: str = "tokens", stride: int = 4) -> onnx.ModelProto:
    """A 4 x 4 patch convolution on 2 x 8 x 12 images; what follows is as in ViT (tokens) or Swin (grid)."""
    graph = FloatGraph()
    weights = [graph.draw("patch_embed.proj.weight", 6, 2, 4, 4), graph.draw("patch_embed.proj.bias", 6)]
    y = graph.add("patch_embed.proj/Conv", ["x", *weights], strides=[stride] * 2, kernel_shape=[4, 4])
    if follow == "tokens":
        y = graph.add("patch_embed/Reshape", [y, graph.integers(-1, 6, 6)])
        y = graph.add("patch_embed/Transpose", [y], perm=[0, 2, 1])
    elif follow == "grid":
        y = graph.add("patch_embed/Transpose", [y], perm=[0, 2, 3, 1])
    return graph.model(y, (batch, 2, 8, 12))


def convolution_model(kernel: int, depth: int = 3, **attributes: Any) -> onnx.ModelProto:
    """A convolution with a bias to 6 channels, on depth x 8 x 12 images; nothing follows."""
    graph = FloatGraph()
    weights = [graph.draw("conv.weight", 6, depth, kernel, kernel), graph.draw("conv.bias", 6)]
    y = graph.add("conv/Conv", ["x", *weights], kernel_shape=[kernel] * 2, **attributes)
    return graph.model(y, ("batch", depth, 8, 12))


def attention_model(batch: Batch = "batch", normalise_query: bool = False, bias: bool = True) -> onnx.ModelProto:
    """timm's attention: qkv, per-head products, proj. With normalise_query Q is more than moved data."""
    graph = FloatGraph()
    y = graph.linear("attn.qkv", "x", WIDTH, 3 * WIDTH, bias)
    y = graph.add("attn/Reshape", [y, graph.integers(-1, TOKENS, 3, HEADS, DEPTH)])
    y = graph.add("attn/Transpose", [y], perm=[2, 0, 3, 1, 4])
    parts = []
    for n in range(3):
        part = graph.add(f"attn/Slice_{n}", [y, *(graph.integers(m) for m in (n, n + 1, 0))])
        parts.append(graph.add(f"attn/Squeeze_{n}", [part, graph.integers(0)]))
    query, key, value = parts
    if normalise_query:
        query = graph.add("attn.q_norm/LayerNormalization", [query, graph.draw("g", DEPTH), graph.draw("b", DEPTH)])
    query = graph.add("attn/Mul", [query, graph.constant("half", np.float32(0.5))])
    key = graph.add("attn/Transpose_1", [key], perm=[0, 1, 3, 2])
    scores = graph.add("attn.qk/MatMul", [query, key])
    probabilities = graph.add("attn/Softmax", [scores], axis=-1)
    y = graph.add("attn.pv/MatMul", [probabilities, value])
    y = graph.add("attn/Transpose_2", [y], perm=[0, 2, 1, 3])
    y = graph.add("attn/Reshape_1", [y, graph.integers(-1, TOKENS, WIDTH)])
    return graph.model(graph.linear("attn.proj", y, WIDTH, WIDTH), (batch, TOKENS, WIDTH))


def scale_plan(sites: dict[str, SitePlan]) -> ScalePlan:
    return ScalePlan("small", "", "", {}, {}, sites)


def covering(x: Array, bits: int, groups: int = 1, axis: int = -1) -> Uniform:
    """A Uniform that clips the outermost tenth of x; `groups` scales along `axis`."""
    parts = np.split(x, groups, axis)
    return Uniform(bits, tuple(as_float32(0.9 * np.abs(p).max() / 2 ** (bits - 1)) for p in parts), axis)


def fake_linear(x: Array, weight: Array, lhs: Quantizer, rhs: Uniform) -> Array:
    """What a planned linear without bias computes."""
    result: Array = lhs.fake_quantize(x) @ rhs.decode(ship_weight(weight, lhs, rhs)[0])
    return result


def weight_of(model: onnx.ModelProto, name: str) -> Array:
    return next(numpy_helper.to_array(item) for item in model.graph.initializer if item.name == name)


def fetch(model: onnx.ModelProto, x: Array, *names: str, kind: DTypeLike = np.float32) -> list[Array]:
    """Tensors of a model, all of one kind, by ONNX Runtime without optimisation."""
    opened = onnx.ModelProto()
    opened.CopyFrom(model)
    present = {item.name for item in opened.graph.output}
    opened.graph.output.extend(
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(kind)), None)
        for name in names
        if name not in present
    )
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    runner = onnxruntime.InferenceSession(opened.SerializeToString(), options, ["CPUExecutionProvider"])
    found: list[Array] = runner.run(list(names) or None, {"x": x})
    return found


def attention_plan(
    model: onnx.ModelProto, x: Array, bits: int = 8, heads: int = HEADS, lhs: Quantizer | None = None
) -> ScalePlan:
    """Every site of attention_model, one scale per head for Q, K and V where `heads` is more than 1."""
    nodes = {node.name: node for node in model.graph.node}

    def sides(site: str) -> list[Array]:
        node = nodes[f"{site}/MatMul"]
        constant = {item.name for item in model.graph.initializer}
        return [
            x if name == "x" else weight_of(model, name) if name in constant else fetch(model, x, name)[0]
            for name in node.input
        ]

    sites = {}
    for site, source in (
        ("attn.qkv", "other"),
        ("attn.qk", "other"),
        ("attn.pv", "softmax"),
        ("attn.proj", "other"),
    ):
        left, right = sides(site)
        if site in ("attn.qkv", "attn.proj"):
            groups = 3 if site == "attn.qkv" else 1
            sites[site] = SitePlan("linear", "other", covering(left, bits), covering(right, bits, groups))
        else:
            own = covering(left, bits, heads, -3) if site == "attn.qk" else (lhs or covering(left, bits))
            sites[site] = SitePlan("matmul", source, own, covering(right, bits, heads, -3))  # type: ignore[arg-type]
    return scale_plan(sites)


def fake_attention(model: onnx.ModelProto, x: Array, plan: ScalePlan) -> Array:
    """What attention_model computes under `plan`, in numpy."""
    sites = plan.sites
    qkv = fake_linear(x, weight_of(model, "attn.qkv.weight"), sites["attn.qkv"].lhs, sites["attn.qkv"].rhs)
    if "attn.qkv.bias" in {item.name for item in model.graph.initializer}:
        qkv = qkv + weight_of(model, "attn.qkv.bias")
    q, k, v = qkv.reshape(-1, TOKENS, 3, HEADS, DEPTH).transpose(2, 0, 3, 1, 4)
    if any(node.op_type == "LayerNormalization" for node in model.graph.node):
        centred = q - q.mean(-1, keepdims=True)
        q = centred / np.sqrt(q.var(-1, keepdims=True) + np.float32(1e-5))
        q = q * weight_of(model, "g") + weight_of(model, "b")
    qk, pv = sites["attn.qk"], sites["attn.pv"]
    scores = qk.lhs.fake_quantize(q * np.float32(0.5)) @ qk.rhs.fake_quantize(k.swapaxes(-1, -2))
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    probabilities = (powers / powers.sum(-1, keepdims=True)).astype(np.float32)
    y = pv.lhs.fake_quantize(probabilities) @ pv.rhs.fake_quantize(v)
    y = y.transpose(0, 2, 1, 3).reshape(-1, TOKENS, WIDTH).astype(np.float32)
    proj = fake_linear(y, weight_of(model, "attn.proj.weight"), sites["attn.proj"].lhs, sites["attn.proj"].rhs)
    return proj + weight_of(model, "attn.proj.bias")


@dataclass(frozen=True)
class Executed:
    """A model as ONNX Runtime executes it: its first output, and the operation of every node by name."""

    output: Array
    by_name: dict[str, str]

    @property
    def operations(self) -> Counter[str]:
        return Counter(self.by_name.values())


def execute(model: onnx.ModelProto, x: Array) -> Executed:
    """Check the model, optimise it, run it; the graph ONNX Runtime made of it is read back."""
    onnx.checker.check_model(model, full_check=True)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "optimised.onnx"
        options.optimized_model_filepath = str(path)
        runner = onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
        optimised = onnx.load(path)
    names = {node.name: node.op_type for node in optimised.graph.node}
    return Executed(runner.run(None, {"x": x})[0], names)


def reference(model: onnx.ModelProto, x: Array) -> Array:
    """The model's first output by onnx's reference evaluator."""
    return cast(list[Array], ReferenceEvaluator(model).run(None, {"x": x}))[0]


def start(model: onnx.ModelProto, plan: ScalePlan) -> Work:
    """What the first pass gets."""
    return Work(gs.import_onnx(onnx.shape_inference.infer_shapes(model)), plan)


def run_until(model: onnx.ModelProto, plan: ScalePlan, last: str) -> Work:
    """The passes from the first to the one named `last`."""
    work = start(model, plan)
    for make in PASSES:
        make()(work)
        if make.__name__ == last:
            break
    return work


def export(work: Work) -> onnx.ModelProto:
    """The graph as it stands between two passes; types of moved tensors are forgotten, as Tidy does."""
    copy = work.graph.copy().cleanup().toposort()
    for tensor in copy.tensors().values():
        if isinstance(tensor, gs.Variable) and tensor not in (*copy.inputs, *copy.outputs):
            tensor.dtype = tensor.shape = None
    model = gs.export_onnx(copy)
    model.ir_version = 10
    return model


class Small:
    """The tests' tools, as one fixture."""

    linear = staticmethod(linear_model)
    normed = staticmethod(normed_model)
    gemm = staticmethod(gemm_model)
    gelu = staticmethod(gelu_model)
    softmax = staticmethod(softmax_model)
    patches = staticmethod(patches_model)
    convolution = staticmethod(convolution_model)
    attention = staticmethod(attention_model)
    attention_plan = staticmethod(attention_plan)
    fake_attention = staticmethod(fake_attention)
    fake_linear = staticmethod(fake_linear)
    plan = staticmethod(scale_plan)
    covering = staticmethod(covering)
    weight = staticmethod(weight_of)
    fetch = staticmethod(fetch)
    execute = staticmethod(execute)
    reference = staticmethod(reference)
    start = staticmethod(start)
    run_until = staticmethod(run_until)
    export = staticmethod(export)
