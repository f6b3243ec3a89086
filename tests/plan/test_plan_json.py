"""Plans as JSON: what is written is read again exactly; what does not fit is refused by the field's path."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any, ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ptq4vit_onnx.errors import UserError
from ptq4vit_onnx.plan.channel_fold import Channels
from ptq4vit_onnx.plan.plan_json import (
    PlanFieldError,
    fingerprint,
    parse_named_site,
    parse_plan,
    plain,
    plan_text,
    read_plan,
    write_plan,
)
from ptq4vit_onnx.plan.quantizers import (
    QUANTIZERS,
    Affine,
    Compensated,
    Diffused,
    TwinGelu,
    TwinSoftmax,
    Uniform,
    WeightCodes,
    as_float32,
)
from ptq4vit_onnx.plan.scale_plan import Outliers, ScalePlan, SitePlan

scales = st.floats(min_value=2.0**-100, max_value=2.0**100, width=32)
bits = st.integers(2, 8)
numbers = st.floats(allow_nan=False, allow_infinity=False)
groups = st.lists(scales, min_size=1, max_size=5).map(tuple)
diffused = st.builds(Diffused, bits, groups)
digests = st.text("0123456789abcdef", min_size=64, max_size=64).map(WeightCodes)
compensated = st.builds(Compensated, bits, groups, stored=digests)
uniforms, per_head = (st.builds(Uniform, bits, groups, st.just(axis)) for axis in (-1, -3))


@st.composite
def affines(draw: st.DrawFn, most: int = 4) -> Affine:
    width = draw(bits)
    scale = tuple(draw(st.lists(scales, min_size=1, max_size=most)))
    zeros = st.lists(st.integers(0, 2**width - 1), min_size=len(scale), max_size=len(scale))
    return Affine(width, scale, tuple(draw(zeros)))


twins = st.one_of(
    st.builds(TwinSoftmax, bits, st.integers(0, 15)), st.builds(TwinGelu, bits, scales, st.integers(0, 15))
)
outliers = st.builds(
    Outliers,
    st.lists(st.integers(0, 4095), min_size=1, max_size=3, unique=True).map(tuple),
    st.builds(Uniform, bits, st.tuples(scales)) | affines(most=1),
    uniforms,
)
sources = st.sampled_from(["softmax", "gelu", "other"])
losses = st.dictionaries(st.text(), numbers, max_size=2)
corrections = st.none() | st.lists(st.floats(-1e30, 1e30), max_size=4).map(tuple)
near_one = st.floats(min_value=2.0**-40, max_value=2.0**40, width=32)
pairs = st.lists(st.tuples(near_one, st.floats(-1e18, 1e18)), min_size=1, max_size=3)
channels = st.builds(lambda norm, found: Channels(norm, *map(tuple, zip(*found, strict=True))), st.text(), pairs)
weighted = st.builds(
    SitePlan, st.just("linear"), sources, uniforms | affines() | twins, uniforms | compensated,
    st.none() | outliers, corrections, losses,
) | st.builds(
    SitePlan, st.just("conv"), sources, uniforms | affines() | twins, uniforms, st.none(), corrections, losses,
) | st.builds(
    SitePlan, st.just("linear"), sources, uniforms | affines(), uniforms, channels=st.none() | channels
) | st.builds(SitePlan, st.just("conv"), sources, uniforms | affines(), diffused | compensated)  # fmt: skip
products = st.builds(SitePlan, st.just("matmul"), sources, per_head | twins, per_head, st.none(), st.none(), losses)
sites = weighted | products
plans = st.builds(
    ScalePlan,
    st.text(),
    st.text(),
    st.text(),
    st.dictionaries(st.text(), st.none() | st.booleans() | st.integers() | numbers | st.text(), max_size=3),
    st.dictionaries(st.text(), st.text(), max_size=2),
    st.dictionaries(st.text(min_size=1), sites, max_size=3),
)


@settings(max_examples=150, deadline=None)
@given(plans)
def test_what_is_written_is_read_again_exactly(plan: ScalePlan) -> None:
    assert parse_plan(plan_text(plan)) == plan


def test_a_file_is_read_again_exactly_and_is_plain_json(plan: ScalePlan, tmp_path: Path) -> None:
    write_plan(plan, tmp_path / "plan.json")
    assert read_plan(tmp_path / "plan.json") == plan
    data = json.loads((tmp_path / "plan.json").read_text())
    assert data["format"] == 5
    assert data["sites"]["blocks.0.attn.pv"]["lhs"] == {"type": "twin_softmax", "bits": 8, "shift": 4}


def parse_site(data: object) -> SitePlan:
    name, site = parse_named_site(json.dumps(["head", data]))
    assert name == "head"
    return site


def test_a_scale_written_by_hand_must_be_a_float32(plan: ScalePlan) -> None:
    """0.1 is not; its nearest float32 value is."""
    site: Any = plain(plan.sites["blocks.0.attn.pv"])
    site["rhs"]["scale"] = [0.1]
    with pytest.raises(PlanFieldError, match=r"rhs: scale 0.1 is not a positive float32 value"):
        parse_site(site)
    site["rhs"]["scale"] = [as_float32(0.1)]
    assert parse_site(site).rhs.scale == (as_float32(0.1),)


def test_whole_numbers_serve_where_fractions_are_expected(plan: ScalePlan) -> None:
    site: Any = plain(plan.sites["blocks.0.attn.pv"])
    site["rhs"]["scale"] = [2]
    scale = parse_site(site).rhs.scale
    assert scale == (2.0,) and isinstance(scale[0], float)


def change(*path: Any, to: Any = ...) -> Callable[[Any], None]:
    """A mistake: the entry at `path` set to something, or left out."""

    def apply(data: Any) -> None:
        for key in path[:-1]:
            data = data[key]
        if to is ...:
            del data[path[-1]]
        else:
            data[path[-1]] = to

    return apply


FC2, PV, HEAD = ("sites", "blocks.0.mlp.fc2"), ("sites", "blocks.0.attn.pv"), ("sites", "head")
COMPENSATED = plain(Compensated(8, (0.5,), stored=WeightCodes("0" * 64)))
MISTAKES = [
    (change("format", to=1), "format: expected 5, got 1"),
    (change("format"), "format: missing; it was made by another version"),
    (change("model", to=3), "model: expected a valid string, got 3"),
    (change(*FC2, "losses", to={"x": float("nan")}), "fc2.losses.x: expected a finite number, got nan"),
    (change(*FC2, "forms", to={"Affine": float("inf")}), "forms.Affine: expected a finite number, got inf"),
    (change(*FC2, "forms", to={"Log": 1.0}), "sites.blocks.0.mlp.fc2.forms.Log: no such quantizer"),
    (change(*FC2, "forms"), "sites.blocks.0.mlp.fc2.forms: missing"),
    (change("weights"), "weights: missing"),
    (change("extra", to=1), "extra: unknown field"),
    (change("sites", to=[]), "sites: expected an object, got []"),
    (change("versions", "torch", to=2.13), "versions.torch: expected a valid string, got 2.13"),
    (change(*FC2, to=None), "sites.blocks.0.mlp.fc2: expected an object, got None"),
    (change(*FC2, "rhs"), "sites.blocks.0.mlp.fc2.rhs: missing"),
    (change(*FC2, "rsh", to={}), "sites.blocks.0.mlp.fc2.rsh: unknown field"),
    (change(*FC2, "kind", to="gemm"), "sites.blocks.0.mlp.fc2.kind: expected 'linear', 'conv' or 'matmul', got 'gemm'"),
    (change(*FC2, "kind", to=[]), "sites.blocks.0.mlp.fc2.kind: expected 'linear', 'conv' or 'matmul', got []"),
    (change(*FC2, "lhs", to=None), "sites.blocks.0.mlp.fc2.lhs: expected an object, got None"),
    (change(*FC2, "lhs", "type", to="log2"), "sites.blocks.0.mlp.fc2.lhs.type: expected one of 'uniform', 'affine', "),
    (change(*FC2, "lhs", "type", to="diffused"), "fc2.lhs.type: expected one of 'uniform', 'affine', 'twin_softmax'"),
    (change(*FC2, "lhs", "type", to={}), "sites.blocks.0.mlp.fc2.lhs.type: expected one of"),
    (change(*FC2, "lhs", "type"), "sites.blocks.0.mlp.fc2.lhs.type: missing"),
    (change(*FC2, "lhs", "shift", to=1.5), "sites.blocks.0.mlp.fc2.lhs.shift: expected a valid integer, got 1.5"),
    (change(*FC2, "lhs", "shift", to=99), "sites.blocks.0.mlp.fc2.lhs: shift is 99, expected 0..15"),
    (change(*FC2, "lhs", "bits", to=True), "sites.blocks.0.mlp.fc2.lhs.bits: expected a valid integer, got True"),
    (change(*FC2, "lhs", "bits", to=9), "sites.blocks.0.mlp.fc2.lhs: bits is 9, expected 2..8"),
    (change(*FC2, "rhs", "type", to="affine"), "rhs.type: expected one of 'uniform', 'diffused', 'compensated', got"),
    (change(*FC2, "rhs", "scale", to=0.5), "sites.blocks.0.mlp.fc2.rhs.scale: expected a valid array, got 0.5"),
    (change(*FC2, "rhs", "scale", 1, to="x"), "sites.blocks.0.mlp.fc2.rhs.scale[1]: expected a valid number, got 'x'"),
    (change(*FC2, "rhs", "scale", 1, to=-0.5), "sites.blocks.0.mlp.fc2.rhs: scale -0.5 is not a positive"),
    (change(*FC2, "rhs", "scale", 0, to=float("nan")), "fc2.rhs.scale[0]: expected a finite number"),
    (change(*FC2, "rhs", "scale", 0, to=1e300), "sites.blocks.0.mlp.fc2.rhs: scale 1e+300 is not"),
    (change(*FC2, "rhs", "scale", 0, to=10**400), "fc2.rhs.scale[0]: expected a finite number, got 1000"),
    (change(*FC2, "rhs", "scale", to=[]), "sites.blocks.0.mlp.fc2.rhs: scale is empty"),
    (change(*FC2, "outliers", "channels", 0, to="3"), "fc2.outliers.channels[0]: expected a valid integer, got '3'"),
    (change(*FC2, "outliers", "lhs", "zero_point", 0, to=256), "outliers.lhs: zero_point (256,) is outside 0..255"),
    (change(*FC2, "outliers", "lhs", to={"type": "twin_gelu"}), "outliers.lhs.type: expected one of 'uniform', '"),
    (change(*FC2, "bias_correction", 1, to=None), "fc2.bias_correction[1]: expected a valid number, got None"),
    (change(*FC2, "losses", "hessian", to="low"), "fc2.losses.hessian: expected a valid number, got 'low'"),
    (change(*FC2, "outliers", "channels", to=[]), "fc2.outliers.channels: expected at least one channel"),
    (change(*FC2, "outliers", "channels", to=[3, 3]), "fc2.outliers.channels: expected different channels, 0 or more"),
    (change(*FC2, "outliers", "channels", to=[-1]), "fc2.outliers.channels: expected different channels, 0 or more"),
    (change(*FC2, "outliers", "channels", to=[10**30]), "fc2.outliers.channels: expected different channels, 0 or"),
    (change(*FC2, "outliers", "lhs", to=plain(Uniform(8, (1.0, 2.0)))), "outliers.lhs.scale: expected one scale"),
    (change(*FC2, "outliers", "rhs", to=plain(Uniform(8, (1.0, 2.0), -2))), "fc2.outliers.rhs.axis: expected -1"),
    (change(*FC2, "outliers", "rhs", "type", to="diffused"), "fc2.outliers.rhs.type: expected 'uniform', got"),
    (change(*FC2, "kind", to="conv"), "fc2.outliers: expected null: a conv has no outliers"),
    (change(*FC2, "rhs", "axis", to=-2), "fc2.rhs.axis: expected -1 for the scales of a linear, got -2"),
    (change(*FC2, "rhs", "axis", to=-2), "fc2.rhs.axis: expected -1 for the scales of a linear, got -2"),
    (change(*FC2, "rhs", "axis", to=10**30), "fc2.rhs: axis is 1000000000"),
    (change(*PV, "rhs", to={"type": "uniform", "bits": 8, "scale": [1, 2], "axis": -1}), "pv.rhs.axis: expected -3"),
    (change(*FC2, "channels", "scale", 0, to=0), "fc2.channels: scale 0.0 is not a positive float32"),
    (change(*FC2, "channels", "shift", to=[1.0]), "fc2.channels: shift has 1 values, scale has 2"),
    (change(*FC2, "channels", "norm"), "fc2.channels.norm: missing"),
    (change(*PV, "channels", to={"norm": "n", "scale": [1], "shift": [0]}), "pv.channels: expected null: a matmul"),
    (change(*FC2, "rhs", "type", to="diffused"), "fc2.rhs.type: expected uniform: a linear has no pixels side by side"),
    (change(*PV, "rhs", "type", to="diffused"), "pv.rhs.type: expected uniform: a matmul has no pixels side by side"),
    (change(*FC2, "lhs", to=COMPENSATED), "fc2.lhs.type: expected one of 'uniform', 'affine', 'twin_softmax'"),
    (change(*FC2, "outliers", "rhs", to=COMPENSATED), "fc2.outliers.rhs.type: expected 'uniform', got 'compensated'"),
    (change(*PV, "rhs", to=COMPENSATED), "pv.rhs.type: expected uniform: a matmul has no weight"),
    (change(*HEAD, "rhs", "stored"), "sites.head.rhs.stored: missing"),
    (change(*HEAD, "rhs", "stored", to=None), "sites.head.rhs.stored: expected a valid string, got None"),
    (change(*HEAD, "rhs", "stored", to="0" * 63), "head.rhs.stored: expected text that matches '^[0-9a-f]{64}$', got"),
    (change(*HEAD, "rhs", "stored", to="A" * 64), "head.rhs.stored: expected text that matches '^[0-9a-f]{64}$', got"),
    (change(*HEAD, "rhs", "stored", to="0" * 64 + "\n"), "head.rhs.stored: expected text that matches"),
    (change(*HEAD, "rhs", "values", to=[]), "sites.head.rhs.values: unknown field"),
    (change(*PV, "bias_correction", to=[0.5]), "pv.bias_correction: expected null: a matmul has no bias"),
    (change(*PV, "lhs", to="twin_softmax"), "sites.blocks.0.attn.pv.lhs: expected an object, got 'twin_softmax'"),
]  # fmt: skip


@pytest.mark.parametrize(("mistake", "said"), MISTAKES, ids=[said for _, said in MISTAKES])
def test_a_mistake_is_one_line_with_the_file_and_the_fields_path(
    mistake: Callable[[Any], None], said: str, plan: ScalePlan, tmp_path: Path
) -> None:
    data = plain(plan)
    mistake(data)
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(data))
    with pytest.raises(UserError) as caught:
        read_plan(path)
    assert str(caught.value).startswith(f"plan {path}: ")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def refusal(data: object) -> str:
    with pytest.raises(PlanFieldError) as caught:
        parse_plan(json.dumps(data))
    return str(caught.value)


def test_a_misspelled_field_is_named_rather_than_the_one_it_leaves_missing(plan: ScalePlan) -> None:
    data = plain(plan)
    data["sites"]["blocks.0.attn.pv"]["rsh"] = data["sites"]["blocks.0.attn.pv"].pop("rhs")
    assert refusal(data) == "sites.blocks.0.attn.pv.rsh: unknown field"


def test_the_path_has_no_quantizers_name_unless_a_site_is_called_so(plan: ScalePlan) -> None:
    data = plain(plan)
    data["sites"] = {"uniform": data["sites"]["patch_embed.proj"]}
    data["sites"]["uniform"]["lhs"]["bits"] = "8"
    assert refusal(data) == "sites.uniform.lhs.bits: expected a valid integer, got '8'"


@dataclass(frozen=True)
class Thirds(Affine):
    """A quantizer with two more fields, which nobody but this file knows."""

    kind: ClassVar[str] = "thirds"

    third: float = 1.0
    labels: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.third <= 0:
            raise ValueError(f"third is {self.third}, expected more than 0")


def test_a_registered_quantizer_is_written_read_and_checked(plan: ScalePlan, monkeypatch: pytest.MonkeyPatch) -> None:
    lhs = Thirds(8, (0.5,), (3,), third=0.5, labels=("low", "high"))
    planned = replace(plan, sites={"head": SitePlan("linear", "other", lhs, Uniform(8, (0.5,)), forms={"Thirds": 1.0})})
    monkeypatch.setitem(QUANTIZERS, "thirds", Thirds)
    assert parse_plan(plan_text(planned)) == planned
    data = plain(planned)
    written = {"type": "thirds", "bits": 8, "scale": [0.5], "zero_point": [3], "axis": -1}
    assert data["sites"]["head"]["lhs"] == {**written, "third": 0.5, "labels": ["low", "high"]}
    data["sites"]["head"]["lhs"]["third"] = -1
    assert refusal(data) == "sites.head.lhs: third is -1.0, expected more than 0"
    data["sites"]["head"].update(lhs=plain(Uniform(8, (0.5,))), rhs=plain(lhs))
    known = "'uniform', 'diffused', 'compensated'"
    assert refusal(data) == f"sites.head.rhs.type: expected one of {known}, got 'thirds'"
    text = plan_text(planned)
    monkeypatch.delitem(QUANTIZERS, "thirds")
    assert "sites.head.lhs.type: expected one of 'uniform', 'affine'" in refusal(json.loads(text))


def test_a_plan_changed_at_random_is_read_or_refused_in_one_line(plan: ScalePlan) -> None:
    """Any other exception fails the test; what is read can be written and read again."""
    random, refused = Random(0), 0
    for _ in range(1500):
        data = plain(plan)
        mutate(data, random)
        try:
            text = plan_text(parse_plan(json.dumps(data)))
        except PlanFieldError as error:
            refused += 1
            assert "\n" not in str(error) and "pydantic" not in str(error)
        else:
            assert plan_text(parse_plan(text)) == text
    assert 500 < refused < 1450, "both happen often"


def mutate(data: Any, random: Random) -> None:
    """Replace, leave out or add one entry, anywhere in the file."""
    places = containers(data)
    place = random.choice(places)
    keys = list(place) if isinstance(place, dict) else list(range(len(place)))
    odd = [None, True, -1, 0, 3, 10**30, 1.5, 0.25, float("nan"), float("inf"), "", "uniform", "linear", [], [1, 1], {},
           copy.deepcopy(random.choice(places))]  # fmt: skip
    change = random.choice(["replace", "replace", "drop", "add"])
    if change == "add" or not keys:
        place.update(extra=random.choice(odd)) if isinstance(place, dict) else place.append(random.choice(odd))
    elif change == "drop":
        del place[random.choice(keys)]
    else:
        place[random.choice(keys)] = random.choice(odd)


def containers(data: Any) -> list[Any]:
    """All objects and arrays in the file."""
    if not isinstance(data, (dict, list)):
        return []
    inner = data.values() if isinstance(data, dict) else data
    return [data, *(found for item in inner for found in containers(item))]


@pytest.mark.parametrize("data", [[], None, 3, "plan"], ids=repr)
def test_a_file_that_is_no_plan_at_all_is_refused(data: Any, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(data))
    with pytest.raises(UserError, match="top level: expected an object"):
        read_plan(path)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[" * 100_000], ids=["empty", "cut", "binary", "deep"])
def test_a_file_that_is_not_json_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_bytes(content)
    with pytest.raises(UserError, match="is not JSON"):
        read_plan(path)


@pytest.mark.parametrize("command", ["--help", "models"])
def test_commands_without_a_plan_do_not_wait_for_pydantic(command: str, answer_of: Callable[..., Any]) -> None:
    answer = answer_of(command)
    assert answer.code == 0 and "pydantic" not in answer.modules


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.json", tmp_path):
        with pytest.raises(UserError, match=f"cannot read plan {path}"):
            read_plan(path)


def test_products_in_float_are_written_where_there_are_any_and_a_plan_without_them_is_read() -> None:
    plan = ScalePlan("m", "w", "i", {}, {}, {})
    assert "floats" not in json.loads(plan_text(plan)), "as plans were written before there were any"
    assert parse_plan(plan_text(plan)) == plan
    named = replace(plan, floats={"stem.0": "in 32 groups"})
    assert parse_plan(plan_text(named)) == named
    with pytest.raises(PlanFieldError, match=r"floats\.stem: expected a valid string, got 3"):
        parse_plan(plan_text(replace(plan, floats={"stem": 3})))  # type: ignore[dict-item]


def test_the_fingerprint_is_of_what_a_plan_says_and_not_of_how_it_is_written() -> None:
    plan = ScalePlan("m", "w", "i", {"seed": 1, "bits": 8}, {}, {})
    turned = json.dumps(dict(reversed(json.loads(plan_text(plan)).items())))
    assert fingerprint(parse_plan(turned)) == fingerprint(plan)
    assert fingerprint(replace(plan, options={"seed": 2, "bits": 8})) != fingerprint(plan)


def with_head(plan: ScalePlan, rhs: Uniform) -> ScalePlan:
    return replace(plan, sites={**plan.sites, "head": replace(plan.sites["head"], rhs=rhs)})


def test_the_fingerprint_covers_the_codes_by_their_digest(plan: ScalePlan) -> None:
    other = Compensated(4, (0.5, 0.25), stored=WeightCodes("0" * 64))
    assert fingerprint(parse_plan(plan_text(plan))) == fingerprint(plan), "whether or not their values were read"
    assert fingerprint(with_head(plan, other)) != fingerprint(plan)


def test_a_site_alone_may_have_no_stored_codes_since_no_file_lies_beside_it(plan: ScalePlan) -> None:
    with pytest.raises(PlanFieldError, match=r"head.rhs.type: expected a quantizer without stored codes, got compens"):
        parse_site(plain(plan.sites["head"]))
    assert parse_site(plain(plan.sites["patch_embed.proj"])) == plan.sites["patch_embed.proj"]


@pytest.mark.parametrize("rounding", ["nearest", "diffused", "compensated"])
def test_a_rounding_that_a_site_contradicts_is_refused(rounding: str, plan: ScalePlan) -> None:
    text = plan_text(replace(plan, options={"rounding": rounding}, sites={"head": plan.sites["head"]}))
    if rounding == "compensated":
        assert parse_plan(text).options == {"rounding": rounding}
        return
    with pytest.raises(PlanFieldError) as caught:
        parse_plan(text)
    said = f"options.rounding: '{rounding}' contradicts head, which has errors compensated; leave rounding out"
    assert str(caught.value).startswith(said)


def test_weights_of_different_widths_are_a_plan_that_names_no_width(plan: ScalePlan) -> None:
    widths = {site.rhs.bits for site in plan.sites.values() if site.kind != "matmul"}
    assert widths == {4, 8} and parse_plan(plan_text(plan)) == plan
    with pytest.raises(PlanFieldError, match=r"options.weight_bits: 8 contradicts patch_embed.proj, which has 4 bits"):
        parse_plan(plan_text(replace(plan, options={"weight_bits": 8})))
