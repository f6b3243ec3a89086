"""The scale plan: everything calibration decided, as a value to save, read, diff and apply again.

Left of it there is torch and no ONNX, right of it ONNX and no torch.
"""

from __future__ import annotations

import json
import math
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any

from ptq4vit_onnx.errors import UserError
from ptq4vit_onnx.plan.channel_fold import Channels
from ptq4vit_onnx.plan.quantizers import QUANTIZERS, Affine, Diffused, Quantizer, Uniform
from ptq4vit_onnx.plan.sites import Kind, Source

FORMAT = 4


@dataclass(frozen=True)
class Outliers:
    """Input channels with scales of their own: a second, narrow product `lhs[..., channels] @ rhs[channels]`.

    In the main product the weights of these channels are zero, so the two products add up.
    """

    channels: tuple[int, ...]
    lhs: Uniform | Affine
    rhs: Uniform


@dataclass(frozen=True)
class SitePlan:
    """How one product is quantised. For a linear, rhs is the weight as [inputs, outputs].

    bias_correction: added to the output, one value per output channel (minus the mean error on the calibration
    images, or 0). losses: what the search measured for this choice, by metric name. forms: where several forms of the
    left side were compared: the expected damage of each, in nats per image (Hessian metric), or its loss.
    channels: how the input is moved and scaled before anything else, folded into the layers around; lhs, rhs, outliers
    are of the product after that.
    """

    kind: Kind
    lhs_source: Source
    lhs: Quantizer
    rhs: Uniform | Diffused  # one is a kind of the other; both are named because the file says which
    outliers: Outliers | None = None
    bias_correction: tuple[float, ...] | None = None
    losses: Mapping[str, float] = field(default_factory=dict)
    forms: Mapping[str, float] = field(default_factory=dict)
    channels: Channels | None = None


@dataclass(frozen=True)
class ScalePlan:
    """A whole model's plan. `weights` and `images` are SHA-256 fingerprints of what it was calibrated on."""

    model: str
    weights: str
    images: str
    options: Mapping[str, Any]
    versions: Mapping[str, str]
    sites: Mapping[str, SitePlan]
    format: int = FORMAT

    def save(self, path: Path) -> None:
        path.write_text(self.to_json() + "\n", encoding="utf-8")

    def to_json(self) -> str:
        return json.dumps(plain(self), indent=1)

    @classmethod
    def load(cls, path: Path) -> ScalePlan:
        """Read and validate; a mistake is a UserError that names the file and the field."""
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise UserError(f"cannot read plan {path}: {error.strerror}; give the plan.json of an export") from error
        except (ValueError, RecursionError) as error:
            raise UserError(f"plan {path} is not JSON: {error}; calibrate again without --plan") from error
        try:
            return cls.from_data(data)
        except PlanFieldError as error:
            raise UserError(f"plan {path}: {error}") from error

    @classmethod
    def from_data(cls, data: object) -> ScalePlan:
        if isinstance(data, dict) and data.get("format") != FORMAT:
            older = "; it was made by another version, calibrate again without --plan"
            raise PlanFieldError("format", f"expected {FORMAT}, got {data.get('format')!r}{older}")
        return typing.cast(ScalePlan, _parse(cls, data, ""))


class PlanFieldError(ValueError):
    """A plan's field does not hold what it must: `where` is its path, e.g. sites.head.lhs.bits."""

    def __init__(self, where: str, problem: str) -> None:
        super().__init__(f"{where or 'top level'}: {problem}")


def plain(value: Any) -> Any:
    """A plan, or any part of one, as what JSON holds."""
    if is_dataclass(value):
        name = value.kind if isinstance(value, Quantizer) else None
        entries = {item.name: plain(getattr(value, item.name)) for item in fields(value)}
        return entries if name is None else {"type": name, **entries}
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


def parse_site(data: object) -> SitePlan:
    return typing.cast(SitePlan, _parse(SitePlan, data, ""))


def _parse(kind: Any, data: object, where: str) -> Any:
    """`data` as a value of the annotated type `kind`; a PlanFieldError has the path of what does not fit."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return data
    if kind is Quantizer:
        return _parse_union(tuple(form for form in QUANTIZERS.values() if form.only_kind is None), data, where)
    if origin in (types.UnionType, typing.Union):
        return _parse_union(arguments, data, where)
    if origin is typing.Literal:
        return _one_of(arguments, data, where)
    if origin is tuple:
        items = _expect(list, data, where)
        return tuple(_parse(arguments[0], item, f"{where}[{index}]") for index, item in enumerate(items))
    if origin is not None and issubclass(origin, Mapping):
        entries = _expect(dict, data, where)
        return {key: _parse(arguments[1], item, _join(where, key)) for key, item in entries.items()}
    if is_dataclass(kind):
        return _parse_dataclass(kind, data, where)
    if kind is float and isinstance(data, int) and not isinstance(data, bool):
        return _as_fraction(data, where)
    value = _expect(kind, data, where)
    if kind is float and not math.isfinite(value):
        raise PlanFieldError(where, f"expected a finite number, got {value}")
    return value


def _as_fraction(data: int, where: str) -> float:
    try:
        return float(data)
    except OverflowError as error:
        raise PlanFieldError(where, "expected float, got a whole number beyond its range") from error


def _parse_union(choices: tuple[Any, ...], data: object, where: str) -> Any:
    if data is None:
        if type(None) in choices:
            return None
        raise PlanFieldError(where, "expected a value, got null")
    present = [choice for choice in choices if choice is not type(None)]
    if len(present) == 1:
        return _parse(present[0], data, where)
    entries = _expect(dict, data, where)
    names = {name: kind for name, kind in QUANTIZERS.items() if kind in present}
    return _parse(names[_one_of(tuple(names), entries.get("type"), _join(where, "type"))], data, where)


def _parse_dataclass(kind: Any, data: object, where: str) -> Any:
    entries = dict(_expect(dict, data, where))
    if issubclass(kind, Quantizer):
        _one_of((kind.kind,), entries.pop("type", None), _join(where, "type"))
    hints = typing.get_type_hints(kind)
    unknown = sorted(set(entries) - {item.name for item in fields(kind)})
    if unknown:
        raise PlanFieldError(_join(where, unknown[0]), "unknown field")
    missing = [item.name for item in fields(kind) if item.name not in entries]
    if missing:
        raise PlanFieldError(_join(where, missing[0]), "missing")
    values = {name: _parse(hints[name], item, _join(where, name)) for name, item in entries.items()}
    try:
        value = kind(**values)
    except ValueError as error:
        raise PlanFieldError(where, str(error)) from error
    if isinstance(value, SitePlan):
        _require_consistent(value, where)
    return value


def _require_consistent(site: SitePlan, where: str) -> None:
    """What the types alone do not say, for a plan edited by hand."""
    axis = -3 if site.kind == "matmul" else -1
    for side in ("lhs", "rhs"):
        quantizer = getattr(site, side)
        if quantizer.groups_axis not in (None, axis):
            raise PlanFieldError(
                _join(where, f"{side}.axis"),
                f"expected {axis} for the scales of a {site.kind}, got {quantizer.groups_axis}",
            )
    for name in ("outliers", "bias_correction"):
        if site.kind == "matmul" and getattr(site, name) is not None:
            raise PlanFieldError(_join(where, name), "expected null: a matmul has neither outliers nor a bias")
    if site.rhs.only_kind not in (None, site.kind):
        raise PlanFieldError(_join(where, "rhs.type"), f"expected uniform: a {site.kind} has no pixels side by side")
    if site.kind != "linear" and site.channels is not None:
        raise PlanFieldError(_join(where, "channels"), f"expected null: a {site.kind} has no LayerNorm to fold into")
    unknown = sorted(set(site.forms) - {form.__name__ for form in QUANTIZERS.values()})
    if unknown:
        raise PlanFieldError(_join(where, f"forms.{unknown[0]}"), "no such quantizer")
    if site.outliers is not None and not site.outliers.channels:
        raise PlanFieldError(_join(where, "outliers.channels"), "expected at least one channel")


def _one_of(allowed: tuple[Any, ...], data: object, where: str) -> Any:
    if data not in allowed:
        raise PlanFieldError(where, f"expected one of {', '.join(map(str, allowed))}, got {data!r}")
    return data


def _expect(kind: Any, data: object, where: str) -> Any:
    if not isinstance(data, kind) or (isinstance(data, bool) and kind is not bool):
        raise PlanFieldError(where, f"expected {kind.__name__}, got {data!r:.60}")
    return data


def _join(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name
