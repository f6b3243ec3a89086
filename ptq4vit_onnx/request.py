"""A request for an export, and how it is resolved from what the user gave: on the command line or in Python."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from ptq4vit_onnx.errors import UserError
from ptq4vit_onnx.files.inputs import require_path
from ptq4vit_onnx.images.preprocessing import Preprocessing
from ptq4vit_onnx.limits import MAX_BATCH, MAX_CLASSES, MAX_SIDE, require_whole
from ptq4vit_onnx.models.specs import DEFAULT
from ptq4vit_onnx.output_kinds.kinds import kind_named
from ptq4vit_onnx.plan.budget import Budget
from ptq4vit_onnx.plan.file_layout import InputType, Target
from ptq4vit_onnx.plan.options import Options, Preset
from ptq4vit_onnx.plan.quantizers import MAX_BITS

AnyPath: TypeAlias = str | Path
ImageSize: TypeAlias = tuple[int, int]  # height and width, in pixels
AnySize: TypeAlias = int | str | ImageSize
AskedKind = Literal["auto", "logits", "embedding", "features"]
IMG_SIZE = "img_size"  # a plan's options have it where the images are not of the model's own size
NUM_CLASSES = "num_classes"  # and this, where the head is not the model's own
OUTPUT_KIND = "output_kind"  # and this always
_NEXT_TO_PLAN = ("images", "seed")  # options that a plan does not decide


@dataclass(frozen=True)
class GivenModule:
    """A module of the user's, with its weights; only Python can give one."""

    module: Any  # an nn.Module; this room imports no torch
    preprocessing: Preprocessing


@dataclass(frozen=True)
class ExportRequest:
    """What the user asked for. output None: ./MODEL_wKaK. batch None: dynamic. plan: skip calibration.

    img_size None: the model's own. force_data: calibrate also on images that are all equal or of one colour. input: of
    model.onnx; float.onnx stays as torch exports it. num_classes None: the model's own head, 0: none. given: the model
    itself, `model` is its name then. allow_float: products that cannot be integer stay float. target: the engine that
    model.onnx is to be fastest in. budget: decides the bits of each weight, in the place of the options' width.
    """

    model: str = DEFAULT
    options: Options = field(default_factory=Options)
    output: Path | None = None
    checkpoint: Path | None = None
    random_weights: bool = False
    data: Path | None = None
    plan: Path | None = None
    batch: int | None = None
    force: bool = False
    img_size: ImageSize | None = None
    force_data: bool = False
    input: InputType = "float"
    output_kind: AskedKind = "auto"
    num_classes: int | None = None
    given: GivenModule | None = None
    allow_float: bool = False
    target: Target = "onnxruntime"
    budget: Budget | None = None

    def __post_init__(self) -> None:
        if self.output_kind != "auto":
            kind_named(self.output_kind)
        if self.num_classes is not None:
            require_whole("num-classes", self.num_classes, 0, MAX_CLASSES)
        if self.given is not None:
            self._refuse_next_to_module()
        if self.input not in get_args(InputType):
            raise UserError(f"input is {self.input!r}; expected one of {', '.join(get_args(InputType))}")
        if self.target not in get_args(Target):
            raise UserError(f"target is {self.target!r}; expected one of {', '.join(get_args(Target))}")
        if self.input == "uint8" and self.plan is None and self.options.pixels != "bytes":
            raise UserError("--input uint8 needs --pixels bytes, which --paper and --method base do not have")
        if self.batch is not None:
            require_whole("batch", self.batch, 1, MAX_BATCH)

    def _refuse_next_to_module(self) -> None:
        """A module is built and has its weights; an option that would change nothing is a misunderstanding."""
        asked = {"checkpoint": self.checkpoint, "random_weights": self.random_weights or None,
                 "img_size": self.img_size, "num_classes": self.num_classes}  # fmt: skip
        for name in (name for name, value in asked.items() if value is not None):
            raise UserError(f"{name} has no effect on a module, which has its weights and size; leave {name} out")

    @property
    def folder(self) -> Path:
        safe = "".join(c if c.isalnum() or c in "._-" else "_" for c in self.model)
        size = "" if self.img_size is None else f"_{size_text(self.img_size)}px"
        head = {None: "", 0: "_no_head"}.get(self.num_classes, f"_{self.num_classes}_classes")
        mark = "_random" if self.random_weights else ""
        return self.output or Path(f"{safe}{size}{head}{mark}_{self._label}")

    @property
    def advice(self) -> str:
        """A sentence where activations below eight bits were asked for; empty for the paper's settings, which are
        compared at such widths, and for a given plan."""
        bits, options = self.options.activation_bits, self.options
        if bits == MAX_BITS or options.as_published or self.plan is not None:
            return ""
        instead = f"--weight-bits {options.weight_bits} alone makes"
        if self.budget is not None:
            instead = "the same budget without --activation-bits makes"
        return (
            f"activations of {bits} bits save neither bytes nor time in ONNX Runtime, which stores and multiplies "
            f"their codes as bytes; {instead} a file no larger and no slower, with eight-bit activations, at a "
            "fraction of the error"
        )

    @property
    def _label(self) -> str:
        return self.options.label if self.budget is None else f"{self.budget.label}_a{self.options.activation_bits}"


def resolve_request(
    model: str = DEFAULT,
    bits: int | None = None,
    *,
    weight_bits: int | None = None,
    activation_bits: int | None = None,
    data: AnyPath | None = None,
    output: AnyPath | None = None,
    checkpoint: AnyPath | None = None,
    random_weights: bool = False,
    plan: AnyPath | None = None,
    batch: int | None = None,
    force: bool = False,
    img_size: AnySize | None = None,
    force_data: bool = False,
    input: InputType = "float",
    output_kind: AskedKind = "auto",
    num_classes: int | None = None,
    given: GivenModule | None = None,
    allow_float: bool = False,
    target: Target = "onnxruntime",
    method: Preset | None = None,
    max_size: int | str | None = None,
    max_kl: float | None = None,
    max_drop: float | None = None,
    average_weight_bits: float | None = None,
    **options: Any,
) -> ExportRequest:
    """The request of `ptq4vit_onnx.export` and of `ptq4vit-onnx export`; None stands for what was not given."""
    widths = {"bits": bits, "weight_bits": weight_bits, "activation_bits": activation_bits}
    budgets = {"max_size": max_size, "max_kl": max_kl, "max_drop": max_drop, "average_weight_bits": average_weight_bits}
    if plan is not None:
        _refuse_next_to_plan({**widths, "method": method, **options, **budgets})
    budget = Budget.given(max_size, max_kl, max_drop, average_weight_bits)
    if budget is not None:
        options = _next_to_budget(budget, widths, method, options)
        widths = {"activation_bits": activation_bits}
    resolved = Options.resolve("ptq4vit" if method is None else method, **widths, **options)
    return ExportRequest(
        model, resolved, _path(output, "output"), _path(checkpoint, "checkpoint"), random_weights, _path(data, "data"),
        _path(plan, "plan"), batch, force,
        None if img_size is None else parse_size(img_size), force_data, input, output_kind, num_classes, given,
        allow_float, target, budget,
    )  # fmt: skip


def _next_to_budget(
    budget: Budget, widths: dict[str, int | None], method: Preset | None, options: dict[str, Any]
) -> dict[str, Any]:
    """The options with a rounding that suits; refuses what a budget decides."""
    name = f"--{budget.limited.replace('_', '-')}"
    for width in (item for item in ("bits", "weight_bits") if widths[item] is not None):
        raise UserError(
            f"{name} decides the bits of weights, --{width.replace('_', '-')} has no effect next to it; leave one of "
            "them out (--activation-bits goes with both)"
        )
    if method not in (None, "ptq4vit"):
        raise UserError(f"{name} mixes widths, which {method!r} as published does not; leave one of them out")
    return options


def parse_size(size: AnySize) -> ImageSize:
    """384, "384", "256x384" or (256, 384) -> height and width."""
    parts: list[Any] = list(size) if isinstance(size, (tuple, list)) else [size]
    if isinstance(size, str):
        parts = [int(part) if part.isdecimal() and len(part) < 9 else part for part in size.lower().split("x")]
    sides = parts * 2 if len(parts) == 1 else parts
    if len(sides) != 2 or not all(type(side) is int and 1 <= side <= MAX_SIDE for side in sides):
        raise UserError(f"img-size is {size!r}; expected pixels as 384 or, height first, 256x384, at most {MAX_SIDE}")
    return sides[0], sides[1]


def size_text(size: ImageSize) -> str:
    """(384, 384) -> "384", (256, 384) -> "256x384"."""
    return str(size[0]) if size[0] == size[1] else f"{size[0]}x{size[1]}"


def _refuse_next_to_plan(options: dict[str, Any]) -> None:
    """A plan holds what these options decide; an option that would change nothing is a misunderstanding."""
    given = [name for name, value in options.items() if value is not None and name not in _NEXT_TO_PLAN]
    if given:
        name = "paper" if given[0] == "method" and options["method"] == "paper" else given[0].replace("_", "-")
        raise UserError(f"--plan decides the quantisation, --{name} has no effect next to it; leave one of them out")


def _path(path: AnyPath | None, option: str) -> Path | None:
    if path is not None:
        require_path(Path(path), option)
    return None if path is None else Path(path)
