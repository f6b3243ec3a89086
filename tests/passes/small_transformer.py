"""A transformer of one block and a plan that gives every pass something to do."""

from __future__ import annotations

import numpy as np
import onnx

from ptq4vit_onnx.plan.channel_fold import Channels
from ptq4vit_onnx.plan.quantizers import Pixels, TwinGelu, TwinSoftmax, Uniform
from ptq4vit_onnx.plan.scale_plan import Outliers, ScalePlan, SitePlan
from tests.passes.small_models import DEPTH, HEADS, WIDTH, FloatGraph, scale_plan

IMAGE = (2, 2, 8, 12)
TOKENS, HIDDEN, CLASSES = 6, 24, 7


def transformer_model() -> onnx.ModelProto:
    """Patches of 4 x 4, attention, an MLP, a linear without a bias that a linear and a residual read, and a head
    that reads the first token; with a Pad that does nothing."""
    graph = FloatGraph()
    weights = [graph.draw("patch_embed.proj.weight", WIDTH, 2, 4, 4), graph.draw("patch_embed.proj.bias", WIDTH)]
    y = graph.add("patch_embed.proj/Conv", ["x", *weights], strides=[4, 4], kernel_shape=[4, 4])
    y = graph.add("patch_embed/Reshape", [y, graph.integers(-1, WIDTH, TOKENS)])
    tokens = graph.add("patch_embed/Transpose", [y], perm=[0, 2, 1])
    padded = graph.add("norm1/Pad", [_norm(graph, "norm1", tokens), graph.integers(*[0] * 6)])
    tokens = graph.add("block/Add", [tokens, _attention(graph, padded)])
    hidden = graph.linear("mlp.fc1", _norm(graph, "norm2", tokens), WIDTH, HIDDEN)
    out = graph.linear("mlp.fc2", graph.add("mlp.act/Gelu", [hidden]), HIDDEN, WIDTH)
    reduced = graph.linear("reduction", graph.add("block/Add_1", [tokens, out]), WIDTH, WIDTH, bias=False)
    tokens = graph.add("mix/Add", [reduced, graph.linear("mix.fc", reduced, WIDTH, WIDTH)])
    rows = _norm(graph, "norm", tokens)
    token = graph.add("model/Gather", [rows, graph.constant("first", np.int64(0))], axis=1)
    inputs = [token, graph.draw("head.weight", CLASSES, WIDTH), graph.draw("head.bias", CLASSES)]
    return graph.model(graph.add("head/Gemm", inputs, transB=1), ("batch", *IMAGE[1:]))


def _norm(graph: FloatGraph, name: str, x: str) -> str:
    parameters = [graph.draw(f"{name}.weight", WIDTH), graph.draw(f"{name}.bias", WIDTH)]
    return graph.add(f"{name}/LayerNormalization", [x, *parameters], axis=-1)


def _attention(graph: FloatGraph, x: str) -> str:
    y = graph.linear("attn.qkv", x, WIDTH, 3 * WIDTH)
    y = graph.add("attn/Reshape", [y, graph.integers(-1, TOKENS, 3, HEADS, DEPTH)])
    y = graph.add("attn/Transpose", [y], perm=[2, 0, 3, 1, 4])
    q, k, v = (graph.add(f"attn/Gather_{n}", [y, graph.constant(f"part{n}", np.int64(n))], axis=0) for n in range(3))
    q = graph.add("attn/Mul", [q, graph.constant("half", np.float32(0.5))])
    scores = graph.add("attn.qk/MatMul", [q, graph.add("attn/Transpose_1", [k], perm=[0, 1, 3, 2])])
    y = graph.add("attn.pv/MatMul", [graph.add("attn/Softmax", [scores], axis=-1), v])
    y = graph.add("attn/Transpose_2", [y], perm=[0, 2, 1, 3])
    y = graph.add("attn/Reshape_1", [y, graph.integers(-1, TOKENS, WIDTH)])
    return graph.linear("attn.proj", y, WIDTH, WIDTH)


def transformer_plan() -> ScalePlan:
    """Pixels, channels, outliers, both twins, a bias correction, scales per head, and weights of 4, 6 and 8 bits."""
    eight, six, heads = Uniform(8, (0.03125,)), Uniform(6, (0.0625,)), Uniform(8, (0.03125, 0.0625, 0.046875), -3)
    channels = Channels("norm1", tuple(1 + n / 8 for n in range(WIDTH)), tuple(n / 4 - 1 for n in range(WIDTH)))
    outliers = Outliers((3, 7), eight, eight)
    pixels = Pixels(8, (0.015625, 0.03125), (123.675, 127.5))
    correction = tuple(n / 8 for n in range(WIDTH))
    return scale_plan({
        "patch_embed.proj": SitePlan("conv", "other", pixels, eight),
        "attn.qkv": SitePlan("linear", "other", eight, Uniform(8, (0.015625, 0.03125, 0.0234375)), channels=channels),
        "attn.qk": SitePlan("matmul", "other", heads, heads),
        "attn.pv": SitePlan("matmul", "softmax", TwinSoftmax(8, 5), heads),
        "attn.proj": SitePlan("linear", "other", eight, six, bias_correction=correction),
        "mlp.fc1": SitePlan("linear", "other", eight, six, outliers),
        "mlp.fc2": SitePlan("linear", "gelu", TwinGelu(8, 0.0625, 5), Uniform(4, (0.25,))),
        "reduction": SitePlan("linear", "other", eight, eight),
        "mix.fc": SitePlan("linear", "other", eight, eight),
        "head": SitePlan("linear", "other", eight, eight),
    })  # fmt: skip
