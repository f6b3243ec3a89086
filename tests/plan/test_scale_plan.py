"""The scale plan: what is saved is read again exactly; what does not fit is refused by the field's path."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ptq4vit_onnx.errors import UserError
from ptq4vit_onnx.plan.channel_fold import Channels
from ptq4vit_onnx.plan.quantizers import Affine, Diffused, TwinGelu, TwinSoftmax, Uniform, as_float32
from ptq4vit_onnx.plan.scale_plan import Outliers, PlanFieldError, ScalePlan, SitePlan, parse_site, plain

scales = st.floats(min_value=2.0**-100, max_value=2.0**100, width=32)
bits = st.integers(2, 8)
numbers = st.floats(allow_nan=False, allow_infinity=False)
groups = st.lists(scales, min_size=1, max_size=5).map(tuple)
diffused = st.builds(Diffused, bits, groups)
uniforms, per_head = (st.builds(Uniform, bits, groups, st.just(axis)) for axis in (-1, -3))


@st.composite
def affines(draw: st.DrawFn) -> Affine:
    width = draw(bits)
    scale = tuple(draw(st.lists(scales, min_size=1, max_size=4)))
    zeros = st.lists(st.integers(0, 2**width - 1), min_size=len(scale), max_size=len(scale))
    return Affine(width, scale, tuple(draw(zeros)))


twins = st.one_of(
    st.builds(TwinSoftmax, bits, st.integers(0, 15)), st.builds(TwinGelu, bits, scales, st.integers(0, 15))
)
outliers = st.builds(
    Outliers, st.lists(st.integers(0, 4095), min_size=1, max_size=3).map(tuple), uniforms | affines(), uniforms
)
sources = st.sampled_from(["softmax", "gelu", "other"])
losses = st.dictionaries(st.text(), numbers, max_size=2)
corrections = st.none() | st.lists(numbers, max_size=4).map(tuple)
pairs = st.lists(st.tuples(scales, numbers.filter(lambda value: abs(value) < 1e38)), min_size=1, max_size=3)
channels = st.builds(lambda norm, found: Channels(norm, *map(tuple, zip(*found, strict=True))), st.text(), pairs)
weighted = st.builds(
    SitePlan, st.sampled_from(["linear", "conv"]), sources, uniforms | affines() | twins, uniforms,
    st.none() | outliers, corrections, losses,
) | st.builds(
    SitePlan, st.just("linear"), sources, uniforms | affines(), uniforms, channels=st.none() | channels
) | st.builds(SitePlan, st.just("conv"), sources, uniforms | affines(), diffused)  # fmt: skip
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

PLAN = ScalePlan(
    "vit_digits", "w" * 8, "i" * 8, {"weight_bits": 8}, {"torch": "2.13.0"},
    {
        "blocks.0.mlp.fc2": SitePlan(
            "linear", "gelu", TwinGelu(8, 0.25, 3), Uniform(8, (0.5, 0.25)),
            Outliers((3, 7), Affine(8, (0.5,), (128,)), Uniform(8, (0.125,))), (0.1, -0.2), {"hessian": 0.5},
            channels=Channels("blocks.0.norm2", (0.5, 2.0), (0.25, -1.0)),
        ),
        "blocks.0.attn.pv": SitePlan("matmul", "softmax", TwinSoftmax(8, 4), Uniform(8, (0.5,), -3)),
    },
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(plans)
def test_what_is_written_is_read_again_exactly(plan: ScalePlan) -> None:
    assert ScalePlan.from_data(json.loads(plan.to_json())) == plan


def test_a_file_is_read_again_exactly_and_is_plain_json(tmp_path: Path) -> None:
    PLAN.save(tmp_path / "plan.json")
    assert ScalePlan.load(tmp_path / "plan.json") == PLAN
    data = json.loads((tmp_path / "plan.json").read_text())
    assert data["format"] == 4
    assert data["sites"]["blocks.0.attn.pv"]["lhs"] == {"type": "twin_softmax", "bits": 8, "shift": 4}


def test_a_scale_written_by_hand_must_be_a_float32() -> None:
    """0.1 is not; its nearest float32 value is."""
    site: Any = plain(PLAN.sites["blocks.0.attn.pv"])
    site["rhs"]["scale"] = [0.1]
    with pytest.raises(PlanFieldError, match=r"rhs: scale 0.1 is not a positive float32 value"):
        parse_site(site)
    site["rhs"]["scale"] = [as_float32(0.1)]
    assert parse_site(site).rhs.scale == (as_float32(0.1),)


def test_whole_numbers_serve_where_fractions_are_expected() -> None:
    site: Any = plain(PLAN.sites["blocks.0.attn.pv"])
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


FC2, PV = ("sites", "blocks.0.mlp.fc2"), ("sites", "blocks.0.attn.pv")
MISTAKES = [
    (change("format", to=1), "format: expected 4, got 1"),
    (change("format"), "format: expected 4, got None"),
    (change("model", to=3), "model: expected str, got 3"),
    (change(*FC2, "losses", to={"x": float("nan")}), "fc2.losses.x: expected a finite number, got nan"),
    (change(*FC2, "forms", to={"Affine": float("inf")}), "forms.Affine: expected a finite number, got inf"),
    (change(*FC2, "forms", to={"Log": 1.0}), "sites.blocks.0.mlp.fc2.forms.Log: no such quantizer"),
    (change(*FC2, "forms"), "sites.blocks.0.mlp.fc2.forms: missing"),
    (change("weights"), "weights: missing"),
    (change("extra", to=1), "extra: unknown field"),
    (change("sites", to=[]), "sites: expected dict, got []"),
    (change("versions", "torch", to=2.13), "versions.torch: expected str, got 2.13"),
    (change(*FC2, to=None), "sites.blocks.0.mlp.fc2: expected dict, got None"),
    (change(*FC2, "rhs"), "sites.blocks.0.mlp.fc2.rhs: missing"),
    (change(*FC2, "rsh", to={}), "sites.blocks.0.mlp.fc2.rsh: unknown field"),
    (change(*FC2, "kind", to="gemm"), "sites.blocks.0.mlp.fc2.kind: expected one of linear, conv, matmul, got 'gemm'"),
    (change(*FC2, "kind", to=[]), "sites.blocks.0.mlp.fc2.kind: expected one of"),
    (change(*FC2, "lhs", to=None), "sites.blocks.0.mlp.fc2.lhs: expected a value, got null"),
    (change(*FC2, "lhs", "type", to="log2"), "sites.blocks.0.mlp.fc2.lhs.type: expected one of uniform, affine"),
    (change(*FC2, "lhs", "type", to={}), "sites.blocks.0.mlp.fc2.lhs.type: expected one of"),
    (change(*FC2, "lhs", "type"), "sites.blocks.0.mlp.fc2.lhs.type: expected one of"),
    (change(*FC2, "lhs", "shift", to=1.5), "sites.blocks.0.mlp.fc2.lhs.shift: expected int, got 1.5"),
    (change(*FC2, "lhs", "shift", to=99), "sites.blocks.0.mlp.fc2.lhs: shift is 99, expected 0..15"),
    (change(*FC2, "lhs", "bits", to=True), "sites.blocks.0.mlp.fc2.lhs.bits: expected int, got True"),
    (change(*FC2, "lhs", "bits", to=9), "sites.blocks.0.mlp.fc2.lhs: bits is 9, expected 2..8"),
    (change(*FC2, "rhs", "type", to="affine"), "sites.blocks.0.mlp.fc2.rhs.type: expected one of uniform"),
    (change(*FC2, "rhs", "scale", to=0.5), "sites.blocks.0.mlp.fc2.rhs.scale: expected list, got 0.5"),
    (change(*FC2, "rhs", "scale", 1, to="x"), "sites.blocks.0.mlp.fc2.rhs.scale[1]: expected float, got 'x'"),
    (change(*FC2, "rhs", "scale", 1, to=-0.5), "sites.blocks.0.mlp.fc2.rhs: scale -0.5 is not a positive"),
    (change(*FC2, "rhs", "scale", 0, to=float("nan")), "fc2.rhs.scale[0]: expected a finite number"),
    (change(*FC2, "rhs", "scale", 0, to=1e300), "sites.blocks.0.mlp.fc2.rhs: scale 1e+300 is not"),
    (change(*FC2, "rhs", "scale", 0, to=10**400), "sites.blocks.0.mlp.fc2.rhs.scale[0]: "),
    (change(*FC2, "rhs", "scale", to=[]), "sites.blocks.0.mlp.fc2.rhs: scale is empty"),
    (change(*FC2, "outliers", "channels", 0, to="3"), "sites.blocks.0.mlp.fc2.outliers.channels[0]: expected int"),
    (change(*FC2, "outliers", "lhs", "zero_point", 0, to=256), "outliers.lhs: zero_point (256,) is outside 0..255"),
    (change(*FC2, "outliers", "lhs", to={"type": "twin_gelu"}), "outliers.lhs.type: expected one of uniform, affine"),
    (change(*FC2, "bias_correction", 1, to=None), "sites.blocks.0.mlp.fc2.bias_correction[1]: expected float"),
    (change(*FC2, "losses", "hessian", to="low"), "sites.blocks.0.mlp.fc2.losses.hessian: expected float"),
    (change(*FC2, "outliers", "channels", to=[]), "fc2.outliers.channels: expected at least one channel"),
    (change(*FC2, "rhs", "axis", to=-2), "fc2.rhs.axis: expected -1 for the scales of a linear, got -2"),
    (change(*FC2, "rhs", "axis", to=5), "fc2.rhs.axis: expected -1 for the scales of a linear, got 5"),
    (change(*PV, "rhs", to={"type": "uniform", "bits": 8, "scale": [1, 2], "axis": -1}), "pv.rhs.axis: expected -3"),
    (change(*FC2, "channels", "scale", 0, to=0), "fc2.channels: scale 0.0 is not a positive float32"),
    (change(*FC2, "channels", "shift", to=[1.0]), "fc2.channels: shift has 1 values, scale has 2"),
    (change(*FC2, "channels", "norm"), "fc2.channels.norm: missing"),
    (change(*PV, "channels", to={"norm": "n", "scale": [1], "shift": [0]}), "pv.channels: expected null: a matmul"),
    (change(*FC2, "rhs", "type", to="diffused"), "fc2.rhs.type: expected uniform: a linear has no pixels side by side"),
    (change(*PV, "rhs", "type", to="diffused"), "pv.rhs.type: expected uniform: a matmul has no pixels side by side"),
    (change(*PV, "bias_correction", to=[0.5]), "pv.bias_correction: expected null"),
    (change(*PV, "lhs", to="twin_softmax"), "sites.blocks.0.attn.pv.lhs: expected dict, got 'twin_softmax'"),
]  # fmt: skip


@pytest.mark.parametrize(("mistake", "said"), MISTAKES, ids=[said for _, said in MISTAKES])
def test_a_mistake_is_one_line_with_the_file_and_the_fields_path(
    mistake: Callable[[Any], None], said: str, tmp_path: Path
) -> None:
    data = copy.deepcopy(plain(PLAN))
    mistake(data)
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(data))
    with pytest.raises(UserError) as caught:
        ScalePlan.load(path)
    assert str(caught.value).startswith(f"plan {path}: ")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("data", [[], None, 3, "plan"], ids=repr)
def test_a_file_that_is_no_plan_at_all_is_refused(data: Any, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(data))
    with pytest.raises(UserError, match="top level: expected dict"):
        ScalePlan.load(path)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[" * 100_000], ids=["empty", "cut", "binary", "deep"])
def test_a_file_that_is_not_json_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_bytes(content)
    with pytest.raises(UserError, match="is not JSON"):
        ScalePlan.load(path)


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.json", tmp_path):
        with pytest.raises(UserError, match=f"cannot read plan {path}"):
            ScalePlan.load(path)
