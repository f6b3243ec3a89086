"""Which convolutions pay in integers: float Conv against ONNX Runtime's integer kernels, and whether these saturate.

    python -m benchmarks.convolutions [--seconds 0.4]
    python benchmarks/avx2_runtime.py DIR && PYTHONPATH=DIR:. python -m benchmarks.convolutions     (without VNNI)

One thread, one image, milliseconds.
float           Conv in blocks of channels, with its two reorderings
qlinear floats  QuantizeLinear, QLinearConv, DequantizeLinear: rounds the output to bytes on the way
qlinear bytes   QLinearConv between two others
integer         QuantizeLinear, ConvInteger, Cast, Mul
product         what the passes make of a convolution without groups, from its QuantizeLinear to the Transpose back
saturates       whether sums of ConvInteger or QLinearConv differ from 64-bit arithmetic, with weights of -127 and 127
                next to codes of 255
safe            the same with weights of -64 and 64, no pair of which overflows 16 bits
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from benchmarks.avx2_runtime import is_limited
from ptq4vit_onnx.passes import quantize
from ptq4vit_onnx.plan.quantizers import Affine, Uniform, as_float32
from ptq4vit_onnx.plan.scale_plan import ScalePlan, SitePlan
from ptq4vit_onnx.runtime.session import session

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Shape:
    title: str
    channels: int
    outputs: int
    size: int
    kernel: int
    stride: int = 1
    groups: int = 1

    @property
    def pads(self) -> list[int]:
        return [0 if self.kernel == self.stride else self.kernel // 2] * 4

    @property
    def attributes(self) -> dict[str, Any]:
        square = {"strides": [self.stride] * 2, "kernel_shape": [self.kernel] * 2}
        return {**square, "pads": self.pads, "group": self.groups}


SHAPES = (
    Shape("1x1 64 to 256, 56 px", 64, 256, 56, 1),
    Shape("1x1 256 to 64, 56 px", 256, 64, 56, 1),
    Shape("1x1 64 to 256, 64 px", 64, 256, 64, 1),
    Shape("1x1 192 to 768, 14 px", 192, 768, 14, 1),
    Shape("1x1 16 to 64, 128 px", 16, 64, 128, 1),
    Shape("1x1 24 to 96, 56 px", 24, 96, 56, 1),
    Shape("3x3 16, 64 px", 16, 16, 64, 3),
    Shape("3x3 24, 64 px", 24, 24, 64, 3),
    Shape("3x3 64, 56 px", 64, 64, 56, 3),
    Shape("3x3 s2 64 to 128, 56 px", 64, 128, 56, 3, 2),
    Shape("3x3 256, 14 px", 256, 256, 14, 3),
    Shape("3x3 depthwise 256, 56 px", 256, 256, 56, 3, 1, 256),
    Shape("7x7 depthwise 96, 56 px", 96, 96, 56, 7, 1, 96),
    Shape("3x3 s2 stem 3 to 32, 224 px", 3, 32, 224, 3, 2),
    Shape("7x7 s4 patches 3 to 64, 224 px", 3, 64, 224, 7, 4),
    Shape("2x2 s2 96 to 192, 56 px", 96, 192, 56, 2, 2),
)


def build(nodes: list[Any], shape: Shape, constants: dict[str, Array], bytes_in: bool = False) -> Any:
    kind = TensorProto.UINT8 if bytes_in else TensorProto.FLOAT
    x = helper.make_tensor_value_info("x", kind, ["n", shape.channels, shape.size, shape.size])
    y = helper.make_empty_tensor_value_info("y")
    held = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(helper.make_graph(nodes, "g", [x], [y], held), opset_imports=opsets, ir_version=10)
    return session(onnx.shape_inference.infer_shapes(model))


def weights(shape: Shape, largest: int, seed: int = 0) -> Array:
    rng = np.random.default_rng(seed)
    form = (shape.outputs, shape.channels // shape.groups, shape.kernel, shape.kernel)
    return rng.integers(-largest, largest + 1, form).astype(np.int8)


def constants(shape: Shape, codes: Array) -> dict[str, Any]:
    one, zero = np.float32(0.02), np.uint8(0)
    scales = np.full(shape.outputs, 0.01, np.float32)
    return {"s": one, "z": zero, "w": codes, "ws": scales, "wz": np.zeros(shape.outputs, np.int8),
            "os": np.float32(1.0), "oz": np.uint8(128), "f": codes.astype(np.float32) * np.float32(0.01),
            "factor": (one * scales).reshape(-1, 1, 1)}  # fmt: skip


def pick(held: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: held[name] for name in names}


def float_conv(shape: Shape, held: dict[str, Any]) -> Any:
    return build([helper.make_node("Conv", ["x", "f"], ["y"], **shape.attributes)], shape, pick(held, "f"))


def qlinear(shape: Shape, held: dict[str, Any], bytes_in: bool, bytes_out: bool) -> Any:
    inputs = ["q", "s", "z", "w", "ws", "wz", "os", "oz"]
    first = [] if bytes_in else [helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"])]
    source, target = "x" if bytes_in else "q", "y" if bytes_out else "codes"
    conv = helper.make_node("QLinearConv", [source, *inputs[1:]], [target], **shape.attributes)
    last = [] if bytes_out else [helper.make_node("DequantizeLinear", ["codes", "os", "oz"], ["y"])]
    return build([*first, conv, *last], shape, pick(held, *inputs[1:]), bytes_in)


def conv_integer(shape: Shape, held: dict[str, Any], bare: bool = False) -> Any:
    conv = helper.make_node("ConvInteger", ["x" if bare else "q", "w"], ["y" if bare else "sums"], **shape.attributes)
    if bare:
        return build([conv], shape, pick(held, "w"), True)
    first = helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"])
    behind = [helper.make_node("Cast", ["sums"], ["floats"], to=TensorProto.FLOAT),
              helper.make_node("Mul", ["floats", "factor"], ["y"])]  # fmt: skip
    return build([first, conv, *behind], shape, pick(held, "s", "z", "w", "factor"))


def product(shape: Shape, held: dict[str, Any]) -> Any:
    """The convolution as EmbedPatches and the passes behind it write it, its weights as they are here."""
    name, weight = "conv", held["f"]
    attributes = {**shape.attributes, "dilations": [1, 1]}
    node = helper.make_node("Conv", ["x", name], ["y"], name=f"{name}/Conv", **attributes)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", shape.channels, shape.size, shape.size])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([node], "g", [x], [y], [numpy_helper.from_array(weight, name)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    site = SitePlan(
        "conv", "other", Affine(8, (as_float32(0.02),), (0,)), Uniform(8, (as_float32(0.01),) * shape.outputs)
    )
    plan = ScalePlan("convolution", "", "", {}, {}, {name: site})
    return session(quantize(onnx.shape_inference.infer_shapes(model), plan)[0])


def milliseconds(run: Callable[[], Any], seconds: float) -> float:
    run()
    spent: list[float] = []
    while sum(spent) < seconds or len(spent) < 5:
        started = time.perf_counter()
        run()
        spent.append(time.perf_counter() - started)
    return 1e3 * float(np.median(spent))


def sums_of(shape: Shape, codes: Array, image: Array) -> Array:
    """The convolution in 64-bit integers, window by window."""
    pad, step = shape.pads[0], shape.stride
    padded = np.pad(image.astype(np.int64), [(0, 0), (0, 0), (pad, pad), (pad, pad)])
    windows = np.lib.stride_tricks.sliding_window_view(padded, (shape.kernel,) * 2, (2, 3))[:, :, ::step, ::step]
    n, channels, down, across = windows.shape[:4]
    grouped = windows.reshape(n, shape.groups, channels // shape.groups, down, across, *windows.shape[4:])
    own = codes.astype(np.int64).reshape(shape.groups, -1, *codes.shape[1:])
    sums: Array = np.einsum("ngcijkl,gockl->ngoij", grouped, own, optimize=True)
    return sums.reshape(n, -1, down, across)


def saturates(shape: Shape, codes: Array) -> bool:
    """Does ConvInteger or QLinearConv differ from 64-bit integers where every code of the image is 255?"""
    small = Shape(shape.title, shape.channels, shape.outputs, max(2 * shape.stride, 8) * 2, shape.kernel, shape.stride,
                  shape.groups)  # fmt: skip
    image = np.full((1, small.channels, small.size, small.size), 255, np.uint8)
    wanted = sums_of(small, codes, image)
    held = constants(small, codes)
    if not np.array_equal(conv_integer(small, held, bare=True).run(None, {"x": image})[0], wanted):
        return True
    reach = max(1.0, float(np.abs(wanted).max()) / 120)  # one code of the output is worth so many sums
    held["os"] = np.float32(reach * 0.02 * 0.01)
    got = qlinear(small, held, True, True).run(None, {"x": image})[0].astype(np.int64) - 128
    return bool(np.abs(got - wanted / reach).max() > 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=0.4, help="for each figure (0.4)")
    seconds = parser.parse_args().seconds
    print("AVX2 alone" if is_limited() else "all instructions of this CPU", flush=True)
    titles = ("float", "qlinear floats", "qlinear bytes", "integer", "product", "saturates", "safe")
    print(f"{'convolution':32s}" + "".join(f"{title:>16s}" for title in titles))
    for shape in SHAPES:
        print(f"{shape.title:32s}" + "".join(f"{text:>16s}" for text in line(shape, seconds)), flush=True)


def line(shape: Shape, seconds: float) -> list[str]:
    held = constants(shape, weights(shape, 127))
    rng = np.random.default_rng(1)
    codes = rng.integers(0, 256, (1, shape.channels, shape.size, shape.size)).astype(np.uint8)
    floats = codes.astype(np.float32) * np.float32(0.02)
    runs = [(float_conv(shape, held), floats), (qlinear(shape, held, False, False), floats),
            (qlinear(shape, held, True, True), codes), (conv_integer(shape, held), floats)]  # fmt: skip
    if shape.groups == 1:
        runs.append((product(shape, held), floats))
    times = [milliseconds(partial(runner.run, None, {"x": x}), seconds) for runner, x in runs]
    extreme = np.where(weights(shape, 127) < 0, -127, 127).astype(np.int8)
    said = ["yes" if saturates(shape, codes) else "no" for codes in (extreme, np.sign(extreme) * np.int8(64))]
    return [f"{value:.2f}" for value in times] + (["-"] if shape.groups > 1 else []) + said


if __name__ == "__main__":
    main()
