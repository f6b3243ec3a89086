"""PTQ4ViT a second time, in one file that shares no code with this package: fake-quantised in torch, searched exactly.

    python benchmarks/independent_reference.py --model vit_t deit_t --bits 8 6 4 --seed 0 1 2 3

What its search finds is what the published form of this tool should find: sampled labels, both twins, layer-wise
symmetric scales, the float model's inputs. It knows nothing of integers (its weights are not made pair-safe), of zero
points, outliers or bias correction; and where it asks whether GELU's negatives are covered, it counts one code more
than there is. Prints one Markdown row per model, width and seed as soon as it is known, then means and standard
deviations over the seeds.

Every product (patch embedding, qkv, Q@K^T, P@V, proj, fc1, fc2, head) is a `Product` of a [.., 1 or G, rows, K] and
b [.., G, K, columns]: G is the number of heads, 3 for qkv (q, k and v rows of the weight) and 1 for all other linears.
Softmax, GELU, LayerNorm, residuals and biases stay float.
"""

from __future__ import annotations

import argparse
import csv
import heapq
import statistics
import sys
import time
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks import real_data
from ptq4vit_onnx.model_loading.timm_compat import import_timm

timm = import_timm()
from timm.data.config import resolve_model_data_config  # noqa: E402
from timm.data.transforms_factory import create_transform  # noqa: E402

TIMM_NAMES = {"vit_t": "vit_tiny_patch16_224.augreg_in21k_ft_in1k", "deit_t": "deit_tiny_patch16_224.fb_in1k"}
GRID = torch.arange(1, 101) * (1.2 / 100)  # candidates in units of max|x| / 2^(k-1)
GELU_RANGE = 0.17  # GELU's minimum is -0.16997
CHUNK = 256  # rows of a linear evaluated at once


def quantise(x: Tensor, scale: Tensor, bits: int, kind: str = "uniform") -> Tensor:
    """Quantise and dequantise; `scale` is the step, D1 of the softmax twin or D2 of the GELU twin."""
    half = 1 << (bits - 1)
    if kind == "uniform":
        return (x / scale).round_().clamp_(-half, half - 1).mul_(scale)
    if kind == "softmax":  # R1 = [0, 2^(k-1) D1) with step D1, above it D2 = 2^-(k-1)
        low = (x / scale).round_().clamp_(max=half - 1).mul_(scale)
        high = (x * half).round_().clamp_(max=half - 1).div_(half)
        return torch.where(x < half * scale, low, high)
    shift = torch.log2(scale * half / GELU_RANGE).floor().clamp(min=0)  # D1 = D2 2^-m, the largest m covering the range
    fine = scale * torch.exp2(-shift)
    negative = (x / fine).round_().clamp_(1 - half, 0).mul_(fine)
    return (x / scale).round_().clamp_(0, half - 1).mul_(scale).add_(negative)


class Product(nn.Module):
    """One quantisable a @ b, which runs in float, records its operands and output gradient, or runs fake-quantised."""

    def __init__(self, kind: str, weight: Tensor | None = None) -> None:
        super().__init__()
        self.kind, self.weight, self.mode, self.bits = kind, weight, "float", 8
        self.chunks: list[tuple[Tensor, Tensor, Tensor]] = []  # a, b, gradient of a @ b; most important first
        self.max_a = self.max_b = self.scale_a = self.scale_b = self.weight_q = torch.empty(0)

    def forward(self, a: Tensor, b: Tensor | None = None) -> Tensor:
        b = self.weight if b is None else b
        assert b is not None
        if self.mode == "quantised":
            b = self.weight_q if self.weight is not None else quantise(b, self.scale_b, self.bits)
            return quantise(a, self.scale_a, self.bits, self.kind) @ b
        out = a @ b
        if self.mode == "record":
            left, right, hooked = a.detach(), b.detach(), cast(Any, out)
            hooked.register_hook(lambda gradient: self.record(left, right, gradient))
        return out

    def record(self, a: Tensor, b: Tensor, gradient: Tensor) -> None:
        """Keep what the metric needs: rows without any gradient add nothing to it (but do count for the maxima)."""
        self.max_a, self.max_b = (x.abs().amax((-1, -2), keepdim=True) for x in (a, b))
        energy = gradient.square().sum((-1, -3))  # per row
        if self.weight is not None:
            order = energy.argsort(descending=True)[: int((energy > 0).sum())]
            self.chunks = [(a[:, rows], b, gradient[:, rows]) for rows in torch.split(order, CHUNK)]
        else:
            self.max_a, self.max_b = self.max_a.amax(0), self.max_b.amax(0)
            images, keep = energy.sum(1).argsort(descending=True).tolist(), energy > 0
            self.chunks = [(a[i][:, keep[i]], b[i], gradient[i][:, keep[i]]) for i in images if keep[i].any()]

    def calibrate(self, bits: int, rounds: int) -> None:
        """Linears: the weight next to the float input, then the input. Products of activations: a next to b, then b."""
        self.bits, half = bits, 1 << (bits - 1)
        targets = [a @ b for a, b, _ in self.chunks]
        candidates_a, candidates_b = self.max_a / half * GRID, self.max_b / half * GRID
        if self.kind == "softmax":  # one split per layer
            candidates_a = torch.exp2(-torch.arange(bits, bits + 11.0)).view(1, 1, -1)
        self.scale_b = self.max_b / half
        for step in range(rounds):
            if self.weight is not None:
                fixed = [a if step == 0 else quantise(a, self.scale_a, bits, self.kind) for a, _, _ in self.chunks]
                self.scale_b = self.search(False, candidates_b, fixed, targets)
            fixed = [quantise(b, self.scale_b, bits) for _, b, _ in self.chunks]
            self.scale_a = self.search(True, candidates_a, fixed, targets)
            if self.weight is None:
                fixed = [quantise(a, self.scale_a, bits, self.kind) for a, _, _ in self.chunks]
                self.scale_b = self.search(False, candidates_b, fixed, targets)
        if self.weight is not None:
            self.weight_q = quantise(self.weight, self.scale_b, bits)

    def search(self, left: bool, candidates: Tensor, fixed: list[Tensor], targets: list[Tensor]) -> Tensor:
        """The scale of one operand, per group or shared, that minimises sum g^2 (out_q - out)^2; candidates [G, 1, n].

        Best first: the candidate with the smallest partial sum gets its next chunk. The first to see all chunks is
        the optimum of the exhaustive search, because the other sums only grow.
        """
        best = []
        for group, steps in enumerate(candidates):
            one = slice(group, group + 1) if len(candidates) > 1 else slice(None)
            problem = []
            for (a, b, gradient), other, target in zip(self.chunks, fixed, targets, strict=True):
                moving, still = (a if left else b)[one], other[one] if len(other) > 1 else other
                problem.append((moving, still, gradient[one], target[one]))
            heap = [(self.cost(left, problem[0], step), index, 1) for index, step in enumerate(steps[0])]
            heapq.heapify(heap)
            while heap[0][2] < len(problem):
                partial, index, seen = heap[0]
                partial += self.cost(left, problem[seen], steps[0, index])
                heapq.heapreplace(heap, (partial, index, seen + 1))
            best.append(steps[0, heap[0][1]])
        return torch.stack(best).view(-1, 1, 1)

    def cost(self, left: bool, chunk: tuple[Tensor, Tensor, Tensor, Tensor], scale: Tensor) -> float:
        """The metric over one chunk for one candidate."""
        moving, still, gradient, target = chunk
        moved = quantise(moving, scale, self.bits, self.kind if left else "uniform")
        a, b = (moved, still) if left else (still, moved)
        error = torch.baddbmm(target, a.expand(len(target), -1, -1), b, beta=-1).mul_(gradient).flatten()
        return float(error @ error)


class Linear(nn.Module):
    def __init__(self, weight: Tensor, bias: Tensor, groups: int = 1, kind: str = "uniform") -> None:
        super().__init__()
        self.bias = bias
        self.product = Product(kind, weight.reshape(groups, -1, weight.shape[-1]).transpose(1, 2).contiguous())

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.product(x.reshape(1, -1, x.shape[-1]))
        return out.transpose(0, 1).reshape(*x.shape[:-1], -1) + self.bias


class PatchEmbedding(nn.Module):
    """The patch convolution as a linear over unfolded patches."""

    def __init__(self, conv: nn.Conv2d) -> None:
        super().__init__()
        assert conv.bias is not None
        self.size = conv.kernel_size[0]
        self.linear = Linear(conv.weight.flatten(1), conv.bias)

    def forward(self, x: Tensor) -> Tensor:
        patches = nn.functional.unfold(x, self.size, stride=self.size).transpose(1, 2)
        out: Tensor = self.linear(patches)
        return out.transpose(1, 2).reshape(len(x), -1, x.shape[2] // self.size, x.shape[3] // self.size)


class Attention(nn.Module):
    def __init__(self, old: Any) -> None:
        super().__init__()
        self.heads, self.scale = old.num_heads, old.scale
        self.qkv = Linear(old.qkv.weight, old.qkv.bias, groups=3)
        self.qk, self.pv = Product("uniform"), Product("softmax")
        self.proj = Linear(old.proj.weight, old.proj.bias)

    def forward(self, x: Tensor, **_: object) -> Tensor:
        q, k, v = self.qkv(x).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        scores = self.qk(q, k.transpose(-2, -1)) * self.scale
        out: Tensor = self.proj(self.pv(scores.softmax(-1), v).transpose(1, 2).flatten(2))
        return out


def load(name: str) -> tuple[Any, Any]:
    """The timm model with every product replaced, and its evaluation transform."""
    model: Any = timm.create_model(TIMM_NAMES[name], pretrained=False)
    model.load_state_dict(load_file(str(real_data.require_folder() / "weights" / real_data.WEIGHTS[name])))
    config = cast(Any, resolve_model_data_config)(model)
    transform = create_transform(**config, is_training=False)
    model.eval().requires_grad_(False)
    model.patch_embed.proj = PatchEmbedding(model.patch_embed.proj)
    for block in model.blocks:
        block.attn = Attention(block.attn)
        block.mlp.fc1 = Linear(block.mlp.fc1.weight, block.mlp.fc1.bias)
        block.mlp.fc2 = Linear(block.mlp.fc2.weight, block.mlp.fc2.bias, kind="gelu")
    model.head = Linear(model.head.weight, model.head.bias)
    return model, transform


def photos(split: str, fold: int | None = None) -> list[dict[str, str]]:
    with (real_data.require_folder() / split / "labels.csv").open() as file:
        return [row for row in csv.DictReader(file) if fold is None or int(row["fold"]) == fold]


def read(split: str, rows: list[dict[str, str]], transform: Any) -> Tensor:
    folder = real_data.require_folder() / split
    return torch.stack([transform(Image.open(folder / row["file"]).convert("RGB")) for row in rows])


def set_mode(products: list[Product], mode: str) -> None:
    for product in products:
        product.mode = mode


def record(model: Any, products: list[Product], images: Tensor, seed: int) -> None:
    """One forward and one backward of the cross-entropy, summed over images, against labels sampled from the model."""
    set_mode(products, "record")
    with torch.enable_grad():
        logits = model(images.clone().requires_grad_())
        labels = logits.detach().softmax(-1).multinomial(1, generator=torch.Generator().manual_seed(seed))
        loss: Any = nn.functional.cross_entropy(logits, labels[:, 0], reduction="sum")
        loss.backward()


def predict(model: Any, images: Tensor, batch: int = 20) -> Tensor:
    """Log-probabilities."""
    parts = [model(images[i : i + batch]) for i in range(0, len(images), batch)]
    return torch.cat(parts).double().log_softmax(-1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="+", choices=TIMM_NAMES, default=list(TIMM_NAMES))
    parser.add_argument("--bits", nargs="+", type=int, default=[8, 6, 4])
    parser.add_argument("--seed", nargs="+", type=int, default=[0])
    parser.add_argument("--images", type=int, default=16, help="calibration images")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--fold", type=int, default=3, help="validation fold")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.set_flush_denormal(True)
    torch.set_grad_enabled(False)
    print("| model | bits | seed | top-1 | agreement | KL | float top-1 | search s | evaluation s |")
    print("|---|---|---|---|---|---|---|---|---|", flush=True)
    results: dict[tuple[str, int], list[tuple[float, float, float]]] = {}
    for name in args.model:
        model, transform = load(name)
        products = [module for module in model.modules() if isinstance(module, Product)]
        rows = photos("validation", args.fold)
        validation = read("validation", rows, transform)
        truth = torch.tensor([int(row["index"]) for row in rows])
        reference = predict(model, validation)
        float_top1 = 100 * float((reference.argmax(-1) == truth).double().mean())
        calibration = photos("calibration")
        for seed in args.seed:
            picked = np.random.default_rng(seed).choice(len(calibration), args.images, replace=False)
            record(model, products, read("calibration", [calibration[i] for i in picked], transform), seed)
            for bits in args.bits:
                start = time.monotonic()
                for product in products:
                    product.calibrate(bits, args.rounds)
                searched = time.monotonic()
                set_mode(products, "quantised")
                got = predict(model, validation)
                top1 = 100 * float((got.argmax(-1) == truth).double().mean())
                agreement = 100 * float((got.argmax(-1) == reference.argmax(-1)).double().mean())
                kl = float((reference.exp() * (reference - got)).sum(-1).mean())
                results.setdefault((name, bits), []).append((top1, agreement, kl))
                print(
                    f"| {name} | {bits} | {seed} | {top1:.1f} | {agreement:.1f} | {kl:.4f} | {float_top1:.1f} "
                    f"| {searched - start:.0f} | {time.monotonic() - searched:.0f} |",
                    flush=True,
                )
    print("\n| model | bits | seeds | top-1 | agreement | KL |\n|---|---|---|---|---|---|")
    for (name, bits), runs in results.items():
        columns = [list(column) for column in zip(*runs, strict=True)]
        spread = [(statistics.mean(c), statistics.stdev(c) if len(c) > 1 else 0.0) for c in columns]
        cells = [f"{mean:.{d}f} ± {sd:.{d}f}" for (mean, sd), d in zip(spread, (2, 2, 4), strict=True)]
        print(f"| {name} | {bits} | {len(runs)} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
