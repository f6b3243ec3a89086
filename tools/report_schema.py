"""Writes docs/report.schema.json, the JSON schema of report.json: `python tools/report_schema.py`.

The shapes are those of the dataclasses that a Report holds, as `Report.to_data` writes them: every field, and no other.
With --check it writes nothing and ends with 1 if the file is out of date.
"""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal, get_type_hints

from pydantic import BaseModel, create_model

from ptq4vit_onnx.images.choice import MeasuredOn
from ptq4vit_onnx.model_loading.wanted import Origin
from ptq4vit_onnx.output_kinds.embedding import EmbeddingAgainstFloat
from ptq4vit_onnx.output_kinds.features import Closeness, FeaturesAgainstFloat
from ptq4vit_onnx.output_kinds.logits import LogitsAgainstFloat
from ptq4vit_onnx.output_kinds.output_kind import KindName
from ptq4vit_onnx.passes import PassReport
from ptq4vit_onnx.plan.budget import Allocation
from ptq4vit_onnx.proof.end_to_end import EndToEnd
from ptq4vit_onnx.proof.float_parity import FloatParity
from ptq4vit_onnx.proof.kernels import ProductKernel
from ptq4vit_onnx.proof.site_parity import SiteParity
from ptq4vit_onnx.report.data import FORMAT, Bits, FileSizes
from ptq4vit_onnx.runtime.bench import BenchResult

FILE = Path(__file__).resolve().parents[1] / "docs" / "report.schema.json"
DIALECT = "https://json-schema.org/draft/2020-12/schema"


def _written(kind: type[Any], /, **changed: Any) -> Any:
    """A dataclass as report.json has it. changed: fields of another type there, and fields that only the file has."""
    hints = get_type_hints(kind)
    types = {item.name: hints[item.name] for item in fields(kind)} | changed
    required: dict[str, Any] = {name: (hint, ...) for name, hint in types.items()}
    return create_model(kind.__name__, __doc__=inspect.getdoc(kind), **required)


_PRODUCT = _written(ProductKernel, operands=str)


class Kernels(BaseModel):
    """On which kernel each product runs in the graph that ONNX Runtime executes."""

    summary: str
    fell_back: list[str]
    products: list[_PRODUCT]  # type: ignore[valid-type]
    op_counts: Mapping[str, int]
    floats: list[_PRODUCT]  # type: ignore[valid-type]


class ModelOutput(BaseModel):
    """What the model returns."""

    kind: KindName
    names: list[str]
    why: str


class Fingerprints(BaseModel):
    """SHA-256 of the weights and of the images that the plan was calibrated on."""

    weights: str
    images: str


class Images(BaseModel):
    """The images that calibration looked at."""

    count: int
    skipped: list[str]
    source: str
    built_in: bool
    sentence: str
    warnings: list[str]


class Replay(BaseModel):
    """Each site's output against the simulator's, from the runtime's own values: relative error by site."""

    largest: float
    limit: float
    sites: Mapping[str, float]


class Twins(BaseModel):
    """What was chosen where a second range was offered, in words."""

    summary: str
    sites: Mapping[str, str]


_CLOSENESS = {name: float for name in get_type_hints(Closeness)}
_AGAINST_FLOAT = (
    _written(LogitsAgainstFloat, kind=Literal["logits"])
    | _written(EmbeddingAgainstFloat, kind=Literal["embedding"])
    | create_model(
        FeaturesAgainstFloat.__name__,
        __doc__=inspect.getdoc(FeaturesAgainstFloat),
        **{"kind": (Literal["features"], ...), "images": (int, ...), "outputs": (Mapping[str, Closeness], ...)},
        **{name: (kind, ...) for name, kind in _CLOSENESS.items()},
    )
)


class Report(BaseModel):
    """Everything that an export measured. The page on files explains each field."""

    format: Literal[FORMAT]  # type: ignore[valid-type]
    version: str
    model: str
    random_weights: bool
    synthetic_images: bool
    weights_from: Origin
    resampled: str | None
    output: ModelOutput
    remarks: list[str]
    advice: str | None
    bits: Bits
    options: Mapping[str, Any]
    versions: Mapping[str, str]
    fingerprints: Fingerprints
    calibration_images: Images
    sites: int
    float_parity: _written(FloatParity, passed=bool)  # type: ignore[valid-type]
    kernels: Kernels
    float_products: Mapping[str, str]
    site_parity: list[SiteParity]
    replay: Replay
    end_to_end: EndToEnd
    against_float: _AGAINST_FLOAT  # type: ignore[valid-type]
    measured_on: str
    measured_images: MeasuredOn
    passes: PassReport
    losses: Mapping[str, Mapping[str, float]]
    twins: Twins
    channels: Mapping[str, str]
    weight_bits: Mapping[str, int]
    budget: _written(Allocation, sentence=str) | None  # type: ignore[valid-type]
    latency: BenchResult
    bytes: FileSizes
    seconds: Mapping[str, float]


def report_schema() -> dict[str, Any]:
    schema: dict[str, Any] = _closed({"$schema": DIALECT, **Report.model_json_schema()})
    return schema


def _closed(schema: Any) -> Any:
    """Every object whose fields are named has all of them, and no others."""
    if isinstance(schema, list):
        return [_closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    inner = {key: _closed(value) for key, value in schema.items() if key != "default"}
    if isinstance(schema.get("properties"), dict) and schema.get("type") == "object":
        inner |= {"required": list(schema["properties"]), "additionalProperties": False}
    return inner


def schema_text() -> str:
    return json.dumps(report_schema(), indent=1) + "\n"


def main(arguments: list[str]) -> int:
    if "--check" not in arguments:
        FILE.write_text(schema_text(), encoding="utf-8")
    elif not FILE.is_file() or FILE.read_text(encoding="utf-8") != schema_text():
        print(f"{FILE} is out of date; run python tools/report_schema.py")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
