"""What the user asked an export for."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from ptq4vit_onnx.limits import MAX_BATCH, require_whole
from ptq4vit_onnx.plan.options import Options


@dataclass(frozen=True)
class ExportRequest:
    """What the user asked for. output None: ./MODEL_wKaK. batch None: dynamic. plan: skip calibration."""

    model: str = "vit_digits"
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
