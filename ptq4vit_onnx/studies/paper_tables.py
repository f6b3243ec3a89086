"""The paper's result tables: which rows they have, with which options, and the numbers printed there.

Tables are numbered as in the paper: 1 is methods by models, 3 the ablation, 4 (appendix) the number of calibration
images. Table 2 compares with other authors' methods; its PTQ4ViT rows at 8 and 6 bits are those of Table 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from ptq4vit_onnx.errors import UserError
from ptq4vit_onnx.plan.options import Options

TableName = Literal["table1", "table3", "table4"]
TABLES: tuple[TableName, ...] = get_args(TableName)
BITS = (8, 6)
PAPER_IMAGES = 32  # "We randomly select 32 images from the training dataset as calibration images."
DEFAULT_IMAGES: dict[TableName, tuple[int, ...]] = {"table1": (32,), "table3": (32,), "table4": (32, 128)}


@dataclass(frozen=True)
class Printed:
    """What the paper prints for a row. drop: the number in brackets, points; minutes: on a Tesla V100, both widths."""

    top1: float | None = None
    drop: float | None = None
    minutes: float | None = None


@dataclass(frozen=True)
class TableRow:
    """One number of a table: a model, quantised with `options`. paper: empty where the paper has no such row."""

    model: str
    method: str
    options: Options
    paper: Printed

    @property
    def bits(self) -> str:
        return f"W{self.options.weight_bits}A{self.options.activation_bits}"

    def __str__(self) -> str:
        return f"{self.model}, {self.method}, {self.bits}, {self.options.images} images"


# Base PTQ W8A8, Base PTQ W6A6, PTQ4ViT W8A8, PTQ4ViT W6A6; each top-1 and, in brackets there, the drop.
_TABLE1 = {
    "vit_s_32": ((73.61, 2.38), (60.14, 15.8), (75.58, 0.41), (71.90, 4.08)),
    "vit_s": ((80.46, 0.91), (70.24, 11.1), (81.00, 0.38), (78.63, 2.75)),
    "vit_b": ((83.89, 0.64), (75.66, 8.87), (84.25, 0.29), (81.65, 2.89)),
    "vit_b_384": ((85.35, 0.64), (46.88, 39.1), (85.82, 0.17), (83.34, 2.65)),
    "deit_s": ((77.65, 2.14), (72.26, 7.53), (79.47, 0.32), (76.28, 3.51)),
    "deit_b": ((80.94, 0.85), (78.78, 3.01), (81.48, 0.31), (80.25, 1.55)),
    "deit_b_384": ((82.33, 0.77), (68.44, 14.6), (82.97, 0.13), (81.55, 1.55)),
    "swin_t": ((80.96, 0.42), (78.45, 2.92), (81.24, 0.14), (80.47, 0.91)),
    "swin_s": ((82.75, 0.46), (81.74, 1.48), (83.10, 0.12), (82.38, 0.84)),
    "swin_b": ((84.79, 0.47), (83.35, 1.91), (85.14, 0.12), (84.01, 1.25)),
    "swin_b_384": ((86.16, 0.26), (85.22, 1.21), (86.39, 0.04), (85.38, 1.04)),
}
# The six combinations in the order of ABLATION; each W8A8, W6A6.
_TABLE3 = {
    "vit_s": ((80.47, 70.24), (80.93, 77.20), (81.11, 78.57), (80.84, 76.93), (79.25, 74.07), (81.00, 78.63)),
    "vit_b": ((83.90, 75.67), (83.97, 79.90), (84.07, 80.76), (84.10, 80.82), (83.40, 78.86), (84.25, 81.65)),
    "vit_b_384": ((85.35, 46.89), (85.42, 79.99), (85.67, 82.01), (85.60, 82.21), (84.35, 80.86), (85.89, 83.19)),
}
# By number of calibration images: W8A8, W6A6, minutes.
_TABLE4 = {
    "vit_s_32": {32: (75.58, 71.91, 2), 128: (75.54, 72.29, 5)},
    "vit_s": {32: (81.00, 78.63, 3), 128: (80.99, 78.44, 7)},
    "vit_b": {32: (84.25, 81.65, 4), 128: (84.27, 81.84, 13)},
    "vit_b_384": {32: (85.83, 83.35, 12), 128: (85.81, 83.84, 43)},
    "deit_s": {32: (79.47, 76.28, 3), 128: (79.41, 76.51, 7)},
    "deit_b": {32: (81.48, 80.25, 4), 128: (81.54, 80.30, 16)},
    "deit_b_384": {32: (82.97, 81.55, 14), 128: (83.01, 81.67, 52)},
    "swin_t": {32: (81.25, 80.47, 3), 128: (81.27, 80.30, 9)},
    "swin_s": {32: (83.11, 82.38, 8), 128: (83.15, 82.38, 17)},
    "swin_b": {32: (85.15, 84.01, 10), 128: (85.17, 84.15, 23)},
    "swin_b_384": {32: (86.39, 85.39, 25), 128: (86.36, 85.45, 69)},
}
MODELS: dict[TableName, tuple[str, ...]] = {
    "table1": tuple(_TABLE1),
    "table3": tuple(_TABLE3),
    "table4": tuple(_TABLE4),
}
BASE, OURS = "Base PTQ", "PTQ4ViT"
# Without the Hessian the metric is Base PTQ's; twins come with PTQ4ViT's search space and rounds in any case.
ABLATION: dict[str, dict[str, Any]] = {
    "none of the three": {},
    "Hessian": {"metric": "hessian", "twin": "none"},
    "Hessian + softmax twin": {"metric": "hessian", "twin": "softmax"},
    "Hessian + GELU twin": {"metric": "hessian", "twin": "gelu"},
    "softmax twin + GELU twin": {"metric": "cosine", "twin": "both"},
    "Hessian + softmax twin + GELU twin": {"metric": "hessian", "twin": "both"},
}


def rows_of(table: TableName, models: Sequence[str] = (), images: Sequence[int] = (), seed: int = 0) -> list[TableRow]:
    """The rows of a table, model by model; of its own models and numbers of calibration images where none are given."""
    if table not in TABLES:
        raise UserError(f"no table named {table!r}; there are {', '.join(TABLES)}")
    make = {"table1": _methods, "table3": _ablation, "table4": _image_numbers}[table]
    return [
        row
        for model in dict.fromkeys(models or MODELS[table])
        for count in images or DEFAULT_IMAGES[table]
        for row in make(model, count, seed)
    ]


def _methods(model: str, images: int, seed: int) -> list[TableRow]:
    printed = [Printed(*pair) for pair in _TABLE1.get(model, ())]
    methods = [(name, make, bits) for name, make in ((BASE, Options.base), (OURS, Options.paper)) for bits in BITS]
    return [
        TableRow(model, name, make(**_width(bits), images=images, seed=seed), _printed(printed, number, images))
        for number, (name, make, bits) in enumerate(methods)
    ]


def _ablation(model: str, images: int, seed: int) -> list[TableRow]:
    printed = [Printed(top1) for pair in _TABLE3.get(model, ()) for top1 in pair]
    cases = [(name, changes, bits) for name, changes in ABLATION.items() for bits in BITS]
    rows = []
    for number, (name, changes, bits) in enumerate(cases):
        settings: dict[str, Any] = {**_width(bits), **changes, "images": images, "seed": seed}
        options = Options.paper(**settings) if changes else Options.base(**settings)
        rows.append(TableRow(model, name, options, _printed(printed, number, images)))
    return rows


def _image_numbers(model: str, images: int, seed: int) -> list[TableRow]:
    found = _TABLE4.get(model, {}).get(images)
    rows = []
    for number, bits in enumerate(BITS):
        printed = Printed() if found is None else Printed(found[number], minutes=found[2])
        rows.append(TableRow(model, OURS, Options.paper(**_width(bits), images=images, seed=seed), printed))
    return rows


def _printed(numbers: Sequence[Printed], index: int, images: int) -> Printed:
    """Tables 1 and 3 hold for 32 images; a result of another number has nothing beside it."""
    return numbers[index] if numbers and images == PAPER_IMAGES else Printed()


def _width(bits: int) -> dict[str, int]:
    return {"weight_bits": bits, "activation_bits": bits}
