"""What quantised files must hold and compute, by arithmetic that shares no code with the product.

    python tests/golden/derive.py     writes CASE.expected.json for every CASE.plan.json of this folder

Codes are rounded and made pair-safe in fractions, products are added up in int64. Values that a float32 might round
another way than a fraction, because they lie next to a tie and not on it, are refused: the cases avoid them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import onnx

FOLDER = Path(__file__).resolve().parent
SAFE = Fraction(1, 10000)  # of a code: codes are below 256, and a few roundings of float32 move them by 5e-5 at most
Array = np.ndarray[Any, Any]
Json = dict[str, Any]


def cases() -> list[str]:
    return sorted(file.name.removesuffix(".plan.json") for file in FOLDER.glob("*.plan.json"))


def model_of(case: str) -> Any:
    """The float model: the text file whose name is the case's without its last words."""
    stems = [file.stem for file in FOLDER.glob("*.onnxtxt") if case.startswith(f"{file.stem}_")]
    return onnx.parser.parse_model((FOLDER / f"{max(stems, key=len)}.onnxtxt").read_text(encoding="utf-8"))


def input_of(model: Any) -> Array:
    return np.asarray(json.loads((FOLDER / "inputs.json").read_text(encoding="utf-8"))[model.graph.name], np.float32)


def plan_of(case: str) -> Json:
    sites: Json = json.loads((FOLDER / f"{case}.plan.json").read_text(encoding="utf-8"))["sites"]
    return sites


# Rounding.


def rounded(quotient: Fraction, low: int, high: int) -> int:
    """The nearest integer from low to high, ties to the even one."""
    if not low - 1 < quotient < high + 1:
        return low if quotient < low else high
    from_tie = abs(quotient - math.floor(quotient) - Fraction(1, 2))
    assert from_tie == 0 or from_tie > SAFE, f"{float(quotient)} lies next to a tie"
    return min(max(round(quotient), low), high)


def range_of(quantizer: Json) -> tuple[int, int]:
    """Lowest and highest code around zero."""
    steps = 2 ** quantizer["bits"]
    if quantizer["type"] == "affine":
        return -quantizer["zero_point"][0], steps - 1 - quantizer["zero_point"][0]
    return -steps // 2, steps // 2 - 1


def column_scales(quantizer: Json, columns: int) -> list[Fraction]:
    """One scale per column: n scales serve n groups of neighbouring columns."""
    scales = quantizer["scale"]
    return [Fraction(scales[column * len(scales) // columns]) for column in range(columns)]


def weight_codes(weight: Array, lhs: Json, rhs: Json) -> tuple[Array, int]:
    """Codes [inputs, outputs] as they ship next to `lhs`, and how many of them pair-safety moved."""
    columns = []
    for column, scale in zip(weight.T, column_scales(rhs, weight.shape[1]), strict=True):
        quotients = [Fraction(float(value)) / scale for value in column]
        columns.append(diffuse(quotients, rhs) if rhs["type"] == "diffused" else nearest(quotients, rhs))
    safe = [pair_safe(column, 32767 // largest_code(lhs)) for column in columns]
    return np.asarray(safe, np.int64).T, int((np.asarray(safe) != np.asarray(columns)).sum())


def nearest(quotients: Sequence[Fraction], rhs: Json) -> list[int]:
    return [rounded(quotient, *range_of(rhs)) for quotient in quotients]


def diffuse(quotients: Sequence[Fraction], rhs: Json) -> list[int]:
    """Each rounding error is taken off the next weight of its lane: every second one, or all where they are odd."""
    lanes = 2 - len(quotients) % 2
    codes = [0] * len(quotients)
    for lane in range(lanes):
        error = Fraction(0)
        for place in range(lane, len(quotients), lanes):
            wanted = quotients[place] - error
            codes[place] = rounded(wanted, *range_of(rhs))
            error = min(max(codes[place] - wanted, Fraction(-1, 2)), Fraction(1, 2))
    return codes


def largest_code(lhs: Json) -> int:
    """The largest byte the left side sends: 2^k - 1, or 2^(k-1) - 1 where it has two ranges."""
    twin = lhs["type"].startswith("twin_")
    return int(2 ** (lhs["bits"] - twin) - 1)


def pair_safe(codes: Sequence[int], limit: int) -> list[int]:
    """No two neighbours (2n, 2n + 1) add up to more than the limit; the first gives the larger half of an excess."""
    safe = list(codes)
    for place in range(0, len(codes) - 1, 2):
        total = codes[place] + codes[place + 1]
        excess = max(abs(total) - limit, 0)
        sign = 1 if total > 0 else -1
        safe[place] -= sign * ((excess + 1) // 2)
        safe[place + 1] -= sign * (excess // 2)
    return safe


def activation_codes(x: Array, scale: float, low: int, high: int) -> Array:
    """Codes around zero of float64 values, or of float32 ones."""
    codes = [rounded(Fraction(float(value)) / Fraction(scale), low, high) for value in x.reshape(-1)]
    return np.asarray(codes, np.int64).reshape(x.shape)


def branches(x: Array, lhs: Json) -> list[tuple[Array, float]]:
    """(codes, step) of each range of the left side: `x` is about the sum of codes * step."""
    kind, high = lhs["type"], 2 ** (lhs["bits"] - 1) - 1
    if kind in ("uniform", "affine"):
        return [(activation_codes(x, lhs["scale"][0], *range_of(lhs)), lhs["scale"][0])]
    coarse = lhs["scale"] if kind == "twin_gelu" else 2.0 ** (1 - lhs["bits"])
    fine = coarse / 2 ** lhs["shift"]
    if kind == "twin_gelu":
        return [(activation_codes(x, fine, -high, 0), fine), (activation_codes(x, coarse, 0, high), coarse)]
    small = x < 2 ** (lhs["bits"] - 1) * fine
    assert (np.abs(x - 2 ** (lhs["bits"] - 1) * fine) > 1e-6).all(), "a probability lies next to the split"
    both = ((fine, small), (coarse, ~small))
    return [(np.where(own, activation_codes(x, step, 0, high), 0), step) for step, own in both]


# What a case expects.


@dataclass
class Expected:
    """weights: codes and scale by the product's node. parameters: float constants by the node that reads them.
    moved: codes moved by pair-safety, by site. output, size: what the model computes, and the size of what is added
    up to get it, which float32 rounding is measured by."""

    weights: Json = field(default_factory=dict)
    parameters: Json = field(default_factory=dict)
    moved: dict[str, int] = field(default_factory=dict)
    output: Array = field(default_factory=lambda: np.zeros(0))
    size: Array = field(default_factory=lambda: np.zeros(0))

    def ship(self, node: str, weight: Array, lhs: Json, rhs: Json) -> Array:
        """Codes of a weight; they and their scale are expected at the product `node`."""
        codes, moved = weight_codes(weight, lhs, rhs)
        scale = rhs["scale"][0] if len(rhs["scale"]) == 1 else floats(column_scales(rhs, weight.shape[1]))
        self.weights[node] = {"bits": rhs["bits"], "codes": codes.tolist(), "scale": scale}
        site = node.partition("/")[0]
        self.moved[site] = self.moved.get(site, 0) + moved
        return codes

    def add(self, product: Array) -> Array:
        """Add a product to the output, and its size to the size."""
        self.output = product if not self.output.size else self.output + product
        self.size = np.abs(product) if not self.size.size else self.size + np.abs(product)
        return self.output

    def to_data(self) -> Json:
        output = {"output": self.output.tolist(), "size": self.size.tolist()}
        return {"weights": self.weights, "parameters": self.parameters, "moved": self.moved, **output}


def floats(values: Sequence[Fraction]) -> list[float]:
    """The nearest float32 values."""
    return [float(np.float32(float(value))) for value in values]


def times(codes: Array, step: float, weight: Array, scale: Any) -> Array:
    """The product of integer codes, then its scales, in float64."""
    return np.asarray((codes @ weight) * (step * np.asarray(scale, np.float64)))


def multiply(expected: Expected, node: str, x: Array, weight: Array, lhs: Json, rhs: Json) -> None:
    codes = expected.ship(node, weight, lhs, rhs)
    for left, step in branches(x, lhs):
        expected.add(times(left, step, codes, expected.weights[node]["scale"]))


def bias(expected: Expected, site: str, values: Sequence[Fraction]) -> None:
    expected.parameters[f"{site}/Add"] = floats(values)
    expected.add(np.broadcast_to(np.asarray(floats(values)), expected.output.shape))


def exact(values: Any) -> list[Fraction]:
    return [Fraction(float(value)) for value in values]


def linear(case: str, x: Array, tensors: Json) -> Expected:
    expected, site = Expected(), plan_of(case)["fc"]
    multiply(expected, "fc/MatMul", x, tensors["weight"], site["lhs"], site["rhs"])
    correction = site["bias_correction"] or [0.0] * len(tensors["bias"])
    bias(expected, "fc", [a + b for a, b in zip(exact(tensors["bias"]), exact(correction), strict=True)])
    return expected


def outliers(case: str, x: Array, tensors: Json) -> Expected:
    expected, site = Expected(), plan_of(case)["fc"]
    channels, weight = site["outliers"]["channels"], tensors["weight"].copy()
    own = weight[channels]
    weight[channels] = 0
    multiply(expected, "fc/MatMul", x, weight, site["lhs"], site["rhs"])
    multiply(expected, "fc/MatMul.outliers", x[..., channels], own, site["outliers"]["lhs"], site["outliers"]["rhs"])
    bias(expected, "fc", exact(tensors["bias"]))
    return expected


def folded(case: str, x: Array, tensors: Json) -> Expected:
    """(x - shift) / scale goes into the LayerNorm, its inverse into the linear behind."""
    expected, site = Expected(), plan_of(case)["fc"]
    scale, shift = exact(site["channels"]["scale"]), exact(site["channels"]["shift"])
    gain = floats([g / s for g, s in zip(exact(tensors["gain"]), scale, strict=True)])
    offset = floats([(o - m) / s for o, m, s in zip(exact(tensors["offset"]), shift, scale, strict=True)])
    expected.parameters["norm/LayerNormalization"] = [gain, offset]
    weight = [exact(row) for row in tensors["weight"]]
    wider = np.asarray([floats([s * value for value in row]) for s, row in zip(scale, weight, strict=True)])
    mean, variance = x.astype(np.float64).mean(-1, keepdims=True), x.astype(np.float64).var(-1, keepdims=True)
    normed = (x - mean) / np.sqrt(variance + 1e-5) * gain + offset
    multiply(expected, "fc/MatMul", normed, wider, site["lhs"], site["rhs"])
    taken = [sum((m * row[place] for m, row in zip(shift, weight, strict=True)), Fraction(0)) for place in range(3)]
    bias(expected, "fc", [a + b for a, b in zip(exact(tensors["bias"]), taken, strict=True)])
    return expected


def attention(case: str, x: Array, tensors: Json) -> Expected:
    """qkv leaves its product in units of the heads' scales; the products behind are multiplied by them."""
    expected, sites = Expected(), plan_of(case)
    heads, depth, (batch, tokens, width) = 2, 2, x.shape
    qkv, qk, pv, proj = (sites[f"attn.{name}"] for name in ("qkv", "qk", "pv", "proj"))
    units = [(Fraction(1, 2), qk["lhs"]), (Fraction(1), qk["rhs"]), (Fraction(1), pv["rhs"])]
    factors = [by / Fraction(side["scale"][head]) for by, side in units for head in range(heads) for _ in range(depth)]
    codes = expected.ship("attn.qkv/MatMul", tensors["weight_qkv"], qkv["lhs"], qkv["rhs"])
    scales = [scale * by for scale, by in zip(column_scales(qkv["rhs"], 3 * width), factors, strict=True)]
    expected.weights["attn.qkv/MatMul"]["scale"] = floats(scales)
    offsets = floats([value * by for value, by in zip(exact(tensors["bias_qkv"]), factors, strict=True)])
    expected.parameters["attn.qkv/Add"] = offsets
    ((left, step),) = branches(x, qkv["lhs"])
    made = activation_codes(times(left, step, codes, floats(scales)) + offsets, 1.0, *range_of(qk["lhs"]))
    query, key, value = made.reshape(batch, tokens, 3, heads, depth).transpose(2, 0, 3, 1, 4)
    score_scales = [a * b for a, b in zip(exact(qk["lhs"]["scale"]), exact(qk["rhs"]["scale"]), strict=True)]
    expected.parameters["attn.qk/Mul"] = floats(score_scales)
    expected.parameters["attn.pv/Mul"] = pv["rhs"]["scale"]
    scores = times(query, 1.0, key.swapaxes(-1, -2), np.reshape(floats(score_scales), (heads, 1, 1)))
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    parts = branches(powers / powers.sum(-1, keepdims=True), pv["lhs"])
    mixed = sum(times(left, step, value, np.reshape(pv["rhs"]["scale"], (heads, 1, 1))) for left, step in parts)
    joined = np.asarray(mixed).transpose(0, 2, 1, 3).reshape(batch, tokens, width)
    multiply(expected, "attn.proj/MatMul", joined, tensors["weight_proj"], proj["lhs"], proj["rhs"])
    bias(expected, "attn.proj", exact(tensors["bias_proj"]))
    return expected


def gelu(case: str, x: Array, tensors: Json) -> Expected:
    expected, site = Expected(), plan_of(case)["fc2"]
    hidden = [float(value) * (1 + math.erf(float(value) / math.sqrt(2))) / 2 for value in x.reshape(-1)]
    multiply(expected, "fc2/MatMul", np.asarray(hidden).reshape(x.shape), tensors["weight"], site["lhs"], site["rhs"])
    bias(expected, "fc2", exact(tensors["bias"]))
    return expected


def patches(case: str, x: Array, tensors: Json) -> Expected:
    """Inputs n and n + half stand side by side where their number is even."""
    expected, site = Expected(), plan_of(case)["patch_embed.proj"]
    kernels = tensors["weight"]
    outputs, depth, high, wide = kernels.shape
    inputs = depth * high * wide
    far = [place + half for place in range(inputs // 2) for half in (0, inputs // 2)]
    flat = [
        x[:, :, row : row + high, column : column + wide].reshape(len(x), inputs)
        for row in range(0, x.shape[2], high)
        for column in range(0, x.shape[3], wide)
    ]
    chosen = list(range(inputs)) if inputs % 2 else far
    weight = kernels.reshape(outputs, inputs)[:, chosen].T
    pixels = np.stack(flat, 1)[..., chosen]
    multiply(expected, "patch_embed.proj/MatMul", pixels, weight, site["lhs"], site["rhs"])
    bias(expected, "patch_embed.proj", exact(tensors["bias"]))
    return expected


MODELS: dict[str, Callable[[str, Array, Json], Expected]] = {
    "linear": linear,
    "outliers": outliers,
    "folded": folded,
    "attention": attention,
    "gelu": gelu,
    "patches": patches,
    "patches_odd": patches,
}


def derive(case: str) -> Json:
    model = model_of(case)
    tensors = {item.name: onnx.numpy_helper.to_array(item) for item in model.graph.initializer}
    return MODELS[model.graph.name](case, input_of(model), tensors).to_data()


def main() -> None:
    for case in cases():
        lines = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in derive(case).items()]
        text = "{\n" + ",\n".join(lines) + "\n}\n"
        (FOLDER / f"{case}.expected.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
