"""A scale plan as JSON: written field by field, read and checked by pydantic.

The file has every field of every dataclass, also those with a default; only a plan's `floats` are left out where there
are none. A quantizer has one more field, "type": its name in QUANTIZERS. Codes of weights lie in a file beside
(`code_file`); plan.json has their digest. docs/plan.schema.json describes the file; tools/plan_schema.py writes that
description.

Importing pydantic takes 0.2 s. Commands that need no plan therefore do not import this module.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import lru_cache, reduce
from operator import or_
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, get_type_hints

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, create_model
from pydantic_core import ErrorDetails

from ptq4vit_onnx.errors import UserError
from ptq4vit_onnx.files.inputs import parse_json, read_bytes
from ptq4vit_onnx.plan.channel_fold import Channels
from ptq4vit_onnx.plan.code_file import codes_path, read_codes, write_codes
from ptq4vit_onnx.plan.quantizers import QUANTIZERS, Quantizer, Uniform, WeightCodes
from ptq4vit_onnx.plan.scale_plan import FORMAT, Outliers, ScalePlan, SitePlan
from ptq4vit_onnx.plan.sites import Kind

MOST_CHANNELS = 2**31  # more than any layer has; numbers beyond int64 have no place in an array
MOST_CORRECTION = 1e30  # of an output; what is added to it stays a float32 value
_LEFT_OUT_WHERE_EMPTY = ("floats",)
_DIGEST = Annotated[
    str,
    Field(pattern="^[0-9a-f]{64}$", description="SHA-256 of the codes, which lie in the .safetensors file beside"),
    AfterValidator(WeightCodes),
]
Value = TypeVar("Value")


class PlanFieldError(ValueError):
    """A plan's field does not hold what it must: `where` is its path, e.g. sites.head.lhs.bits."""

    def __init__(self, where: str, problem: str) -> None:
        super().__init__(f"{where or 'top level'}: {problem}")
        self.where, self.problem = where, problem


def write_plan(plan: ScalePlan, path: Path) -> None:
    """plan.json, and beside it the codes that the plan carries, if any."""
    write_codes(plan, codes_path(path))
    path.write_text(plan_text(plan) + "\n", encoding="utf-8")


def plan_text(plan: ScalePlan) -> str:
    return json.dumps(plain(plan), indent=1)


def fingerprint(plan: ScalePlan) -> str:
    """SHA-256 of all that a plan says, however its file is spaced and its fields are ordered."""
    return hashlib.sha256(json.dumps(plain(plan), sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def read_plan(path: Path) -> ScalePlan:
    """Read and check a file, and the codes beside it; a mistake is a UserError that names the file and the field."""
    try:
        plan = parse_plan(read_bytes(path, "plan", "give the plan.json of an export"))
    except PlanFieldError as error:
        raise UserError(f"plan {path}: {error}") from error
    except ValueError as error:
        raise UserError(f"plan {path} is not JSON: {error}; calibrate again without --plan") from error
    return read_codes(plan, codes_path(path))


def parse_plan(text: str | bytes) -> ScalePlan:
    """The plan that a JSON text holds, its codes by their digests alone.

    A field that does not fit is a PlanFieldError, other text a ValueError.
    """
    return _parse(_forms().plan, text)


def parse_named_site(text: str) -> tuple[str, SitePlan]:
    """A site's name and plan from the JSON text `["head", {"kind": "linear", ...}]`; errors as for a plan.

    Refuses a site whose codes would lie in a file beside: such a line has none.
    """
    name, site = _parse(_forms().named_site, text)
    if site.rhs.carried is not None:
        raise PlanFieldError(f"{name}.rhs.type", f"expected a quantizer without stored codes, got {site.rhs.kind}")
    return name, site


def plan_schema() -> dict[str, Any]:
    """The JSON schema of a plan's file."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **_forms().plan.json_schema()}


def plain(value: Any) -> Any:
    """A plan, or any part of one, as what JSON holds."""
    if isinstance(value, WeightCodes):
        return value.digest
    if is_dataclass(value):
        held = ((item.name, getattr(value, item.name)) for item in fields(value))
        entries = {name: plain(item) for name, item in held if item or name not in _LEFT_OUT_WHERE_EMPTY}
        return {"type": value.kind, **entries} if isinstance(value, Quantizer) else entries
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


class _Forms(NamedTuple):
    plan: TypeAdapter[ScalePlan]
    named_site: TypeAdapter[tuple[str, SitePlan]]


def _forms() -> _Forms:
    return _build_forms(tuple(QUANTIZERS.items()))


@lru_cache(maxsize=1)
def _build_forms(quantizers: tuple[tuple[str, type[Quantizer]], ...]) -> _Forms:
    """The types of a plan and of a named site. Here stands which quantizers each side may have."""
    known = {name: _form(kind, type=Literal[name]) for name, kind in quantizers}
    of_weights = [name for name, kind in quantizers if issubclass(kind, Uniform)]
    of_values = [name for name, kind in quantizers if not kind.only_weights]
    outliers = _form(Outliers, lhs=_one_of(known, "uniform", "affine"), rhs=known["uniform"])
    site = _form(
        SitePlan, require_consistent, lhs=_one_of(known, *of_values), rhs=_one_of(known, *of_weights),
        outliers=outliers | None, channels=_form(Channels) | None,
    )  # fmt: skip
    plan = _form(ScalePlan, require_as_optioned, sites=Mapping[str, site], format=Literal[FORMAT])  # type: ignore[valid-type]
    return _Forms(TypeAdapter(plan), TypeAdapter(tuple[str, site]))  # type: ignore[valid-type]


def _form(kind: type[Any], check: Callable[[Any], None] = lambda value: None, **changed: Any) -> Any:
    """The type by which pydantic reads a dataclass. Fields are required; an unknown one is a mistake.

    check: called with the finished value; a ValueError becomes a line. changed: a field's type in the file where it
    differs from the dataclass's annotation, and fields that only the file has.
    """
    hints = get_type_hints(kind)
    own = {item.name: _DIGEST if hints[item.name] is WeightCodes else hints[item.name] for item in fields(kind)}
    types = own | changed
    empty: Any = Field(default_factory=dict)
    required: dict[str, Any] = {
        name: (hint, empty if name in _LEFT_OUT_WHERE_EMPTY else ...) for name, hint in types.items()
    }
    config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)
    model = create_model(kind.__name__, __doc__=kind.__doc__, __config__=config, **required)

    def build(found: BaseModel) -> Any:
        value = kind(**{item.name: getattr(found, item.name) for item in fields(kind)})
        check(value)
        return value

    return Annotated[model, AfterValidator(build)]


def _one_of(known: Mapping[str, Any], *names: str) -> Any:
    """A tagged union: the field "type" says which quantizer it is."""
    return Annotated[reduce(or_, (known[name] for name in names)), Field(discriminator="type")]


def require_consistent(site: SitePlan) -> None:
    """Refuse what the types of the fields allow and no product can have, for a plan edited by hand."""
    axis = -3 if site.kind == "matmul" else -1
    sides: dict[str, Quantizer] = {"lhs": site.lhs, "rhs": site.rhs}
    if site.outliers is not None:
        _require_sound_outliers(site.kind, site.outliers)
        sides["outliers.rhs"] = site.outliers.rhs
    for side, quantizer in sides.items():
        if quantizer.groups_axis not in (None, axis):
            raise PlanFieldError(
                f"{side}.axis", f"expected {axis} for the scales of a {site.kind}, got {quantizer.groups_axis}"
            )
    if site.kind == "matmul" and site.bias_correction is not None:
        raise PlanFieldError("bias_correction", "expected null: a matmul has no bias")
    if any(abs(value) > MOST_CORRECTION for value in site.bias_correction or ()):
        raise PlanFieldError("bias_correction", f"expected values of at most {MOST_CORRECTION:g}")
    if site.rhs.only_kind not in (None, site.kind):
        raise PlanFieldError("rhs.type", f"expected uniform: a {site.kind} has no pixels side by side")
    if site.kind == "matmul" and site.rhs.only_weights:
        raise PlanFieldError("rhs.type", "expected uniform: a matmul has no weight")
    if site.lhs.only_kind not in (None, site.kind):
        raise PlanFieldError("lhs.type", f"expected uniform, affine or a twin: a {site.kind} reads no image")
    if site.kind != "linear" and site.channels is not None:
        raise PlanFieldError("channels", f"expected null: a {site.kind} has no LayerNorm to fold into")
    unknown = sorted(set(site.forms) - {form.__name__ for form in QUANTIZERS.values()})
    if unknown:
        raise PlanFieldError(f"forms.{unknown[0]}", "no such quantizer")


def require_as_optioned(plan: ScalePlan) -> None:
    """Refuse options that the sites contradict: folders and reports are named after options."""
    for name, site in plan.sites.items():
        for option, held in _contradicted(site, plan.options):
            said = f"{plan.options[option]!r:.40} contradicts {name}, which has {held}"
            raise PlanFieldError(f"options.{option}", f"{said}; leave {option} out where sites differ")


def _contradicted(site: SitePlan, options: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(option, what the site has instead)"""
    widths = [("activation_bits" if site.kind == "matmul" else "weight_bits", site.rhs.bits)]
    if not site.lhs.colours:  # an image has 8 bits, whatever activations have
        widths.append(("activation_bits", site.lhs.bits))
    yield from ((option, f"{bits} bits") for option, bits in widths if options.get(option, bits) != bits)
    for option, value, held, what in (
        ("twin", "none", site.lhs.source is not None, "a twin"),
        ("activations", "symmetric", site.lhs.kind == "affine", "a zero point"),
        ("pixels", "searched", bool(site.lhs.colours), "pixel bytes"),
        ("rounding", "nearest", site.rhs.kind == "diffused", "errors handed on"),
        ("rounding", "nearest", site.rhs.kind == "compensated", "errors compensated"),
        ("rounding", "diffused", site.rhs.kind == "compensated", "errors compensated"),
        ("outliers", "none", site.outliers is not None, "outliers"),
        ("channels", "none", site.channels is not None, "scaled channels"),
        ("bias_correction", "none", site.bias_correction is not None, "a bias correction"),
    ):
        if held and options.get(option) == value:
            yield option, what


def _require_sound_outliers(kind: Kind, outliers: Outliers) -> None:
    channels, scales = outliers.channels, outliers.lhs.groups
    if kind != "linear":
        raise PlanFieldError("outliers", f"expected null: a {kind} has no outliers")
    if not channels:
        raise PlanFieldError("outliers.channels", "expected at least one channel")
    if len(set(channels)) < len(channels) or not all(channel in range(MOST_CHANNELS) for channel in channels):
        raise PlanFieldError("outliers.channels", f"expected different channels, 0 or more, got {list(channels)!r:.60}")
    if scales > 1:
        raise PlanFieldError("outliers.lhs.scale", f"expected one scale for all channels, got {scales}")


def _parse(form: TypeAdapter[Value], text: str | bytes) -> Value:
    parse_json(text)  # pydantic takes the last of two equal keys
    try:
        return form.validate_json(text)
    except ValidationError as error:
        raise _first_mistake(error.errors(include_url=False)) from error


def _first_mistake(errors: list[ErrorDetails]) -> ValueError:
    """The mistake to report: a wrong format explains all others, a wrong type unknown fields, these missing ones."""

    def rank(item: ErrorDetails) -> tuple[bool, bool, bool]:
        is_of_type = item["loc"][-1:] == ("type",) and item["type"] == "literal_error"
        return item["loc"] != ("format",), not is_of_type, item["type"] != "extra_forbidden"

    error = min(errors, key=rank)
    where, problem = _path(error["loc"]), error["msg"].replace("Input should be", "expected")
    problem = problem.replace("String should match pattern", "expected text that matches")
    match error:
        case {"type": "json_invalid", "ctx": {"error": reason}}:
            return ValueError(reason)
        case {"type": "value_error", "ctx": {"error": PlanFieldError() as cause}}:
            where, problem = f"{where}.{cause.where}".removeprefix("."), cause.problem
        case {"type": "value_error", "ctx": {"error": cause}}:
            problem = str(cause)
        case {"type": "missing"}:
            problem = "missing"
        case {"type": "extra_forbidden"}:
            problem = "unknown field"
        case {"type": "union_tag_not_found"}:
            where, problem = f"{where}.type", "missing"
        case {"type": "union_tag_invalid", "ctx": {"expected_tags": names}, "input": {"type": got}}:
            where, problem = f"{where}.type", f"expected one of {names}, got {got!r:.60}"
        case {"input": got}:
            problem = f"{problem}, got {got!r:.60}"
    older = "; it was made by another version, calibrate again without --plan" if where == "format" else ""
    return PlanFieldError(where, problem + older)


def _path(keys: tuple[str | int, ...]) -> str:
    """sites.head.rhs.scale[1]. Behind lhs and rhs pydantic puts the quantizer's type, which the file does not have."""
    path = ""
    for before, key in zip(("", *keys), keys, strict=False):
        if isinstance(key, int):
            path += f"[{key}]"
        elif before not in ("lhs", "rhs") or key not in QUANTIZERS:
            path += f".{key}"
    return path.removeprefix(".")
