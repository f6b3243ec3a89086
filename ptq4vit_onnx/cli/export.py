"""`ptq4vit-onnx export`: arguments, and the request they stand for."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, get_args

from ptq4vit_onnx.cli.arguments import add_workers, batch_size, not_negative, number, positive
from ptq4vit_onnx.errors import UserError
from ptq4vit_onnx.models.specs import DEFAULT
from ptq4vit_onnx.plan.file_layout import InputType, Target
from ptq4vit_onnx.plan.options import (
    Activations,
    BiasCorrection,
    ChannelMode,
    Labels,
    Method,
    Metric,
    OutlierMode,
    PixelGrid,
    Rounding,
    Search,
    Twin,
    Weights,
)
from ptq4vit_onnx.plan.quantizers import MAX_BITS, MIN_BITS
from ptq4vit_onnx.request import AskedKind, ExportRequest, resolve_request

# Arguments that are fields of Options by the same name.
_FIELDS = ("metric", "twin", "weights", "activations", "outliers", "channels", "pixels", "rounding", "search", "labels",
           "rounds", "candidates", "bias_correction", "images", "rounding_images", "seed")  # fmt: skip
_REQUEST = ("model", "bits", "weight_bits", "activation_bits", "data", "output", "checkpoint", "random_weights",
            "plan", "batch", "force", "img_size", "force_data", "input", "output_kind", "num_classes",
            "allow_float", "target", "max_size", "max_kl", "max_drop", "average_weight_bits")  # fmt: skip


def add_export(commands: Any) -> argparse.ArgumentParser:
    export: argparse.ArgumentParser = commands.add_parser(
        "export", help="quantise a model to integer ONNX",
        description="Export, calibrate, quantise and prove a model; writes model.onnx, float.onnx, "
                    "plan.json, report.json, report.html, and plan.safetensors where the plan stores codes of weights.",
    )  # fmt: skip
    add_model(export, "output folder; of several models, where their folders go (./MODEL_wKaK)")
    add_method(export)
    add_workers(export)
    return export


def add_model(export: argparse.ArgumentParser, output: str) -> None:
    """The model, its weights and its images. output: the help of --output."""
    export.add_argument(
        "--model", action="append", help=f"a name of `ptq4vit-onnx models`, a timm name, transformers:NAME, "
                                         f"torchvision:NAME, or a folder with config.json; may be repeated ({DEFAULT})"
    )  # fmt: skip
    export.add_argument("--output", "--out", type=Path, metavar="DIR", help=output)
    export.add_argument("--force", action="store_true", help="replace an earlier export")
    export.add_argument("--batch", type=batch_size, metavar="N", help="fix the batch size (dynamic)")
    export.add_argument("--img-size", metavar="N", help="height and width of images, 384 or 256x384 (the model's own)")
    export.add_argument(
        "--num-classes", type=not_negative, metavar="N", help="0 takes the classifier off (the model's own)"
    )
    export.add_argument("--output-kind", choices=get_args(AskedKind), default="auto",
                        help="what the model returns: class logits, an embedding, or features as tokens and maps "
                             "(auto: as the model tells)")  # fmt: skip
    export.add_argument("--input", choices=get_args(InputType), default="float",
                        help="input of model.onnx: normalised floats [N, C, H, W] or bytes [N, H, W, C] "
                             "(float)")  # fmt: skip
    export.add_argument("--target", choices=get_args(Target), default="onnxruntime",
                        help="the engine that model.onnx is to be fastest in; both compute either file "
                             "(onnxruntime)")  # fmt: skip
    export.add_argument("--allow-float", action="store_true",
                        help="leave products that cannot be integer in float, and name them (refused)")  # fmt: skip
    export.add_argument("--json", action="store_true", help="print the result as JSON on standard output")
    weights = export.add_argument_group("weights").add_mutually_exclusive_group()
    weights.add_argument("--checkpoint", action="append", metavar="FILE",
                         help=".safetensors, .pth, .pt or .bin; of several models NAME=FILE, repeated")  # fmt: skip
    weights.add_argument("--random-weights", action="store_true", help="a dry run without any weights")
    images = export.add_argument_group("images")
    images.add_argument("--data", type=Path, metavar="PATH", help="folder, ImageFolder tree, .npy or .npz; images that "
                        "calibration leaves are measured on (built-in photos)")  # fmt: skip
    images.add_argument("--images", type=positive, metavar="N", help="calibration images (32)")
    images.add_argument("--rounding-images", type=positive, metavar="N",
                        help="images that compensated rounding looks at (32 to 128, by the model's size)")  # fmt: skip
    images.add_argument(
        "--force-data", action="store_true", help="calibrate also on images that are all equal or of one colour"
    )
    images.add_argument("--seed", type=int, help="picks images, signs and sampled labels (0)")


def add_method(export: argparse.ArgumentParser, widths: bool = True) -> None:
    """widths: whether the bits of weights, or a plan, can be given."""
    group = export.add_argument_group("quantisation")
    if widths:
        group.add_argument("--bits", type=_bits, metavar="K", help="bits of weights and activations, 2..8 (8)")
        group.add_argument("--weight-bits", type=_bits, metavar="K", help="bits of weights alone")
        _add_budget(group.add_mutually_exclusive_group())
        group.add_argument("--plan", type=Path, metavar="FILE", help="apply this plan.json instead of calibrating")
    group.add_argument("--activation-bits", type=_bits, metavar="K", help="bits of activations alone")
    group.add_argument("--method", choices=get_args(Method), help="ptq4vit, or the paper's Base PTQ (ptq4vit)")
    group.add_argument("--paper", action="store_true",
                       help="PTQ4ViT exactly as published: layer-wise symmetric scales, both twins, no "
                            "outlier split, no scaled channels, no pixel bytes, plain rounding")  # fmt: skip
    for name, choices, text in (
        ("metric", Metric, "what the search minimises (hessian)"),
        ("twin", Twin, "which inputs get two ranges (auto)"),
        ("weights", Weights, "scales of weights (per-channel)"),
        ("activations", Activations, "offer a zero point, or stay symmetric (affine)"),
        ("outliers", OutlierMode, "own scales for single huge channels (auto)"),
        ("channels", ChannelMode, "own scale and centre for every channel behind a LayerNorm, folded into it (auto)"),
        ("pixels", PixelGrid, "the image as its own bytes, or with a searched scale (bytes; with --paper searched)"),
        (
            "rounding",
            Rounding,
            "rounding of weights: below eight bits each takes up the errors of others, patch weights alone do, or "
            "none (compensated; with --paper nearest)",
        ),
        ("search", Search, "drop bad scales early, or price every scale on every image (fast)"),
        (
            "labels",
            Labels,
            "labels of the calibration loss: one drawn by its probability, the likeliest, or all with random signs; "
            "outputs that are not logits have signs always (signs; with --paper sampled)",
        ),
    ):
        group.add_argument(f"--{name}", choices=get_args(choices), help=text)
    group.add_argument("--rounds", type=not_negative, metavar="N",
                       help="how often the search alternates between the two sides of a product; 0: each by itself "
                            "(0; with --paper 3)")  # fmt: skip
    group.add_argument("--candidates", type=positive, metavar="N", help="scales tried per search (100)")
    group.add_argument("--bias-correction", choices=get_args(BiasCorrection), nargs="?", const="always",
                       help="take mean errors off the outputs; auto: next to per-tensor weights; without a "
                            "value: always (auto; with --paper none)")  # fmt: skip


def _add_budget(group: Any) -> None:
    """Instead of a width of weights."""
    group.add_argument("--max-size", metavar="SIZE", help="the best file of at most so many bytes: 4MB, 3.5MiB")
    group.add_argument("--max-kl", type=number, metavar="X", help="the smallest file with at most this KL from float")
    group.add_argument("--max-drop", type=number, metavar="X",
                       help="the smallest file that loses at most so many points of top-1; needs labels")  # fmt: skip
    group.add_argument("--average-weight-bits", type=number, metavar="X", help="the best file of so many bits a weight")


def request_from(parsed: argparse.Namespace) -> ExportRequest:
    """What was asked for of one model, with the options that were given explicitly. See `exports` for several."""
    if parsed.paper and parsed.method == "base":
        raise UserError("--paper and --method base exclude each other; give one of them")
    given = {name: getattr(parsed, name) for name in _FIELDS if getattr(parsed, name) is not None}
    asked: dict[str, Any] = {name: getattr(parsed, name, None) for name in _REQUEST}
    return resolve_request(**asked, method="paper" if parsed.paper else parsed.method, **given)


def _bits(text: str) -> int:
    if not text.isdecimal() or not MIN_BITS <= int(text) <= MAX_BITS:
        raise argparse.ArgumentTypeError(f"expected {MIN_BITS}..{MAX_BITS} bits, got {text}")
    return int(text)
