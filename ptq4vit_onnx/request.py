"""A request for an export, and how it is resolved from what the user gave: on the command line or in Python."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from ptq4vit_onnx.errors import UserError
from ptq4vit_onnx.limits import MAX_BATCH, require_whole
from ptq4vit_onnx.models.specs import DEFAULT
from ptq4vit_onnx.plan.options import Options, Preset

AnyPath: TypeAlias = str | Path
_NEXT_TO_PLAN = ("images", "seed")  # options that a plan does not decide


@dataclass(frozen=True)
class ExportRequest:
    """What the user asked for. output None: ./MODEL_wKaK. batch None: dynamic. plan: skip calibration."""

    model: str = DEFAULT
    options: Options = field(default_factory=Options)
    output: Path | None = None
    checkpoint: Path | None = None
    random_weights: bool = False
    data: Path | None = None
    plan: Path | None = None
    batch: int | None = None
    force: bool = False

    def __post_init__(self) -> None:
        if self.batch is not None:
            require_whole("batch", self.batch, 1, MAX_BATCH)

    @property
    def folder(self) -> Path:
        safe = "".join(c if c.isalnum() or c in "._-" else "_" for c in self.model)
        mark = "_random" if self.random_weights else ""
        return self.output or Path(f"{safe}{mark}_{self.options.label}")


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
    method: Preset | None = None,
    **options: Any,
) -> ExportRequest:
    """The request of `ptq4vit_onnx.export` and of `ptq4vit-onnx export`; None stands for what was not given."""
    widths = {"bits": bits, "weight_bits": weight_bits, "activation_bits": activation_bits}
    if plan is not None:
        _refuse_next_to_plan({**widths, "method": method, **options})
    resolved = Options.resolve("ptq4vit" if method is None else method, **widths, **options)
    return ExportRequest(
        model, resolved, _path(output), _path(checkpoint), random_weights, _path(data), _path(plan), batch, force
    )  # fmt: skip


def _refuse_next_to_plan(options: dict[str, Any]) -> None:
    """A plan holds what these options decide; an option that would change nothing is a misunderstanding."""
    given = [name for name, value in options.items() if value is not None and name not in _NEXT_TO_PLAN]
    if given:
        name = "paper" if given[0] == "method" and options["method"] == "paper" else given[0].replace("_", "-")
        raise UserError(f"--plan decides the quantisation, --{name} has no effect next to it; leave one of them out")


def _path(path: AnyPath | None) -> Path | None:
    return None if path is None else Path(path)
