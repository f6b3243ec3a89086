"""Codes that a plan carries: packed and unpacked exactly; a file that does not hold them is refused in one line."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save

from ptq4vit_onnx.errors import UserError
from ptq4vit_onnx.plan import code_file
from ptq4vit_onnx.plan.code_file import SHAPES, codes_path, pack, packed_length, unpack
from ptq4vit_onnx.plan.plan_json import parse_plan, plan_text, read_plan, write_plan
from ptq4vit_onnx.plan.quantizers import Affine, Compensated, Quantizer, TwinSoftmax, Uniform, WeightCodes
from ptq4vit_onnx.plan.saturation_safe_weights import first_unsafe_pair, make_pairs_safe, pair_limit, ship_weight
from ptq4vit_onnx.plan.scale_plan import Outliers, ScalePlan, SitePlan

Array = np.ndarray[Any, Any]
FC1, HEAD = "blocks.0.mlp.fc1", "head"  # the plan's sites with codes: [6, 4] of 3 bits, [5, 3] of 8


def drawn(shape: tuple[int, int], bits: int, seed: int = 0) -> Array:
    low = -(2 ** (bits - 1))
    return np.random.default_rng(seed).integers(low, -low, shape).astype(np.int8)


def site_of(values: Array, bits: int, lhs: Quantizer | None = None, outliers: Outliers | None = None) -> SitePlan:
    side = Uniform(8, (0.5,)) if lhs is None else lhs
    return SitePlan("linear", "other", side, Compensated(bits, (0.5,), stored=WeightCodes.of(values)), outliers)


@pytest.fixture
def plan() -> ScalePlan:
    sites = {
        HEAD: site_of(drawn((5, 3), 7), 8),
        "norm.proj": SitePlan("linear", "other", Uniform(8, (0.5,)), Uniform(8, (0.5,))),
        FC1: site_of(drawn((6, 4), 3), 3),
    }
    return ScalePlan("m", "w", "i", {}, {}, sites)


@pytest.fixture
def path(plan: ScalePlan, tmp_path: Path) -> Path:
    """A plan.json with its plan.safetensors."""
    write_plan(plan, tmp_path / "plan.json")
    return tmp_path / "plan.json"


def values_of(plan: ScalePlan, site: str) -> Array:
    codes = plan.sites[site].rhs.carried
    assert codes is not None and codes.values is not None
    return codes.values


# Packing.


@settings(max_examples=200, deadline=None)
@given(st.integers(2, 8), st.integers(1, 40), st.integers(1, 40), st.integers(0, 2**32 - 1))
def test_codes_are_unpacked_as_they_were_packed(bits: int, inputs: int, outputs: int, seed: int) -> None:
    values = drawn((inputs, outputs), bits, seed)
    packed = pack(values, bits)
    assert packed.dtype == np.uint8 and len(packed) == packed_length(values.shape, bits)
    assert 8 * len(packed) - 7 <= values.size * bits <= 8 * len(packed), "no byte is wasted"
    found = unpack(packed, values.shape, bits)
    assert found.dtype == np.int8 and np.array_equal(found, values)


@pytest.mark.parametrize("bits", range(2, 9))
def test_blocks_leave_no_seam(bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    values = drawn((37, 11), bits)
    whole = pack(values, bits)
    monkeypatch.setattr(code_file, "BLOCK", 16)
    assert np.array_equal(pack(values, bits), whole)
    assert np.array_equal(unpack(whole, values.shape, bits), values)


def test_the_first_code_lies_in_the_lowest_bits_counted_from_the_lowest_code() -> None:
    values = np.array([[-4, -3, 3]], np.int8)  # counted 0, 1, 7
    assert pack(values, 3).tolist() == [0b11_001_000, 0b1]
    assert pack(np.array([[-128, 127]], np.int8), 8).tolist() == [0, 255]


def test_codes_beyond_their_bits_are_not_packed() -> None:
    for code in (-5, 4):
        with pytest.raises(AssertionError, match="codes beyond 3 bits"):
            pack(np.array([[0, code]], np.int8), 3)


# The file.


def test_a_plan_is_read_with_the_codes_that_lie_beside_it(plan: ScalePlan, path: Path) -> None:
    assert codes_path(path) == path.with_name("plan.safetensors")
    found = read_plan(path)
    assert found == plan
    for site in (FC1, HEAD):
        assert np.array_equal(values_of(found, site), values_of(plan, site)), "values are not part of =="
    only_read = parse_plan(path.read_text()).sites[HEAD].rhs.carried
    assert only_read is not None and only_read.values is None
    stored = json.loads(path.read_text())["sites"][HEAD]["rhs"]["stored"]
    assert stored == WeightCodes.of(values_of(plan, HEAD)).digest and len(stored) == 64


def test_equal_codes_are_equal_bytes_whatever_the_order_of_sites(plan: ScalePlan, path: Path, tmp_path: Path) -> None:
    before = codes_path(path).read_bytes()
    write_plan(read_plan(path), path)
    assert codes_path(path).read_bytes() == before, "a file of an earlier plan is written over"
    write_plan(replace(plan, sites=dict(reversed([*plan.sites.items()]))), tmp_path / "turned.json")
    assert (tmp_path / "turned.safetensors").read_bytes() == before


def without_codes(plan: ScalePlan) -> ScalePlan:
    return replace(plan, sites={"norm.proj": plan.sites["norm.proj"]})


def test_a_plan_without_codes_has_no_file_of_them_and_takes_away_that_of_an_earlier_plan(
    plan: ScalePlan, path: Path
) -> None:
    write_plan(without_codes(plan), path)
    assert list(path.parent.iterdir()) == [path]
    assert read_plan(path) == without_codes(plan)


def test_a_checkpoint_of_the_same_name_is_neither_read_nor_changed(plan: ScalePlan, tmp_path: Path) -> None:
    checkpoint = tmp_path / "plan.safetensors"
    before = save({"head.weight": np.zeros((3, 5), np.float32)})
    checkpoint.write_bytes(before)
    write_plan(without_codes(plan), tmp_path / "plan.json")
    assert read_plan(tmp_path / "plan.json") == without_codes(plan)
    with pytest.raises(UserError, match=f"cannot write the plan's codes {checkpoint}: there is another file"):
        write_plan(plan, tmp_path / "plan.json")
    assert checkpoint.read_bytes() == before
    assert read_plan(tmp_path / "plan.json") == without_codes(plan), "no half of a plan was written"


def test_codes_that_were_not_read_are_not_written(plan: ScalePlan, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="were not read: use read_plan"):
        write_plan(parse_plan(plan_text(plan)), tmp_path / "plan.json")


# Mistakes.


def rewritten(path: Path, change: Callable[[dict[str, Any], dict[str, Any]], object]) -> None:
    """The codes file with other tensors, or shapes of weights in its metadata."""
    plan = read_plan(path)
    widths = {name: plan.sites[name].rhs.bits for name in (FC1, HEAD)}
    tensors: dict[str, Any] = {name: pack(values_of(plan, name), bits) for name, bits in widths.items()}
    shapes: dict[str, Any] = {name: list(values_of(plan, name).shape) for name in widths}
    change(tensors, shapes)
    codes_path(path).write_bytes(save(tensors, {SHAPES: json.dumps(shapes)}))


def padded(tensors: dict[str, Any], shapes: dict[str, Any]) -> None:
    """6 codes of 3 bits end in the third byte."""
    shapes[FC1], tensors[FC1] = [6, 1], np.array([0, 0, 4], np.uint8)


TENSOR, SHAPE = (
    "head: expected a tensor U8 of one axis",
    f"head: expected the weight's shape [inputs, outputs] in {SHAPES}",
)
BYTES = "fc1: expected 9 bytes for codes [6, 4] of 3 bits"
Change = Callable[[dict[str, Any], dict[str, Any]], object]  # of tensors, and of shapes
MISTAKES: dict[str, tuple[Change, str]] = {
    "site missing": (lambda t, s: t.pop(HEAD), "head: expected its codes, got none"),
    "site too many": (lambda t, s: t.update(tail=t[HEAD]), "'tail': expected no codes, since the plan names none"),
    "type": (lambda t, s: t.update({HEAD: t[HEAD].astype(np.float16)}), f"{TENSOR}, got F16 [15]"),
    "signed": (lambda t, s: t.update({HEAD: t[HEAD].view(np.int8)}), f"{TENSOR}, got I8 [15]"),
    "axes": (lambda t, s: t.update({HEAD: t[HEAD].reshape(5, 3)}), f"{TENSOR}, got U8 [5, 3]"),
    "too short": (lambda t, s: t.update({FC1: t[FC1][:-1]}), f"{BYTES}, got 8"),
    "too long": (lambda t, s: t.update({FC1: np.zeros(10, np.uint8)}), f"{BYTES}, got 10"),
    "no bytes": (lambda t, s: t.update({FC1: t[FC1][:0]}), f"{BYTES}, got 0"),
    "shape missing": (lambda t, s: s.pop(HEAD), f"{SHAPE}, got None"),
    "shape of one": (lambda t, s: s.update(head=[15]), f"{SHAPE}, got [15]"),
    "shape of zero": (lambda t, s: s.update(head=[0, 15]), f"{SHAPE}, got [0, 15]"),
    "shape negative": (lambda t, s: s.update(head=[-5, -3]), f"{SHAPE}, got [-5, -3]"),
    "shape in words": (lambda t, s: s.update(head="5x3"), f"{SHAPE}, got '5x3'"),
    "shape of truths": (lambda t, s: s.update(head=[True, 15]), f"{SHAPE}, got [True, 15]"),
    "shape huge": (lambda t, s: s.update(head=[10**4000, 1]), f"{SHAPE}, got [1000000000"),
    "shape large": (lambda t, s: s.update(head=[2**30, 2**30]), "head: expected 1152921504606846976 bytes for codes ["),
    "shape turned": (lambda t, s: s.update(head=[3, 5]), "head: expected codes of the digest "),
    "code": (lambda t, s: t.update({HEAD: t[HEAD] ^ 1}), "head: expected codes of the digest "),
    "padding": (padded, "fc1: expected zeros in the bits behind the last code, got others"),
}  # fmt: skip


@pytest.mark.parametrize(("change", "said"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_one_line_with_the_file_the_site_and_what_to_do(change: Change, said: str, path: Path) -> None:
    rewritten(path, change)
    line = refusal(path)
    assert line.startswith(f"the plan's codes {codes_path(path)}: ") and said in line
    assert line.endswith("; put the plan.safetensors of the same export there, or calibrate again without --plan")


def refusal(path: Path) -> str:
    with pytest.raises(UserError) as caught:
        read_plan(path)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 500
    return str(caught.value)


def with_header(data: bytes, **changes: Any) -> bytes:
    """A safetensors file with other entries in its header."""
    length = struct.unpack("<Q", data[:8])[0]
    header = json.dumps({**json.loads(data[8 : 8 + length]), **changes}).encode()
    return struct.pack("<Q", len(header)) + header + data[8 + length :]


UNREADABLE = "expected a safetensors file, got what cannot be read as one: "
NO_SHAPES, WRONG_SHAPES = (
    f"expected the metadata {SHAPES}, got none",
    f"expected shapes by site in the metadata {SHAPES}, got ",
)
CONTENTS: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "empty": (lambda data: b"", UNREADABLE),
    "cut": (lambda data: data[:-1], UNREADABLE),
    "cut header": (lambda data: data[:20], UNREADABLE),
    "longer": (lambda data: data + b"\0", UNREADABLE),
    "ONNX": (lambda data: b"\x08\x09\x12\x0cptq4vit-onnx" * 9, UNREADABLE),
    "without metadata": (lambda data: save({HEAD: np.zeros(15, np.uint8)}), NO_SHAPES),
    "metadata null": (lambda data: with_header(data, __metadata__=None), NO_SHAPES),
    "other metadata": (lambda data: with_header(data, __metadata__={"a": "b"}), NO_SHAPES),
    "shapes cut": (lambda data: with_header(data, __metadata__={SHAPES: "{"}), WRONG_SHAPES),
    "no shapes": (lambda data: with_header(data, __metadata__={SHAPES: "[]"}), WRONG_SHAPES),
    "deep": (lambda data: with_header(data, __metadata__={SHAPES: "[" * 10**5}), WRONG_SHAPES),
}  # fmt: skip


@pytest.mark.parametrize(("change", "said"), CONTENTS.values(), ids=CONTENTS)
def test_a_file_that_holds_no_codes_is_refused(change: Callable[[bytes], bytes], said: str, path: Path) -> None:
    codes_path(path).write_bytes(change(codes_path(path).read_bytes()))
    line = refusal(path)
    assert line.startswith(f"the plan's codes {codes_path(path)}: ") and said in line


def test_a_file_that_is_not_there_or_none_or_too_large_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    codes = codes_path(path)
    size = codes.stat().st_size
    monkeypatch.setattr(code_file, "MOST_CODES", size)
    read_plan(path)
    monkeypatch.setattr(code_file, "MOST_CODES", size - 1)
    assert f"it has {size} bytes, expected at most {size - 1}" in refusal(path)
    codes.unlink()
    line = (
        f"cannot read the plan's codes (of head) {codes}: No such file or directory; put the plan.safetensors of the "
    )
    assert refusal(path).startswith(line)
    codes.mkdir()
    assert "it is a folder" in refusal(path)


def test_the_file_of_another_plan_is_told_by_its_digests(plan: ScalePlan, path: Path, tmp_path: Path) -> None:
    other = drawn((5, 3), 7, seed=1)
    write_plan(replace(plan, sites={**plan.sites, HEAD: site_of(other, 8)}), tmp_path / "other.json")
    codes_path(path).write_bytes((tmp_path / "other.safetensors").read_bytes())
    wanted, got = (WeightCodes.of(values).digest[:12] for values in (values_of(plan, HEAD), other))
    assert f"head: expected codes of the digest {wanted} in the plan, got {got}; put the" in refusal(path)


# Codes that a product cannot have.


def by_hand(path: Path, plan: ScalePlan, monkeypatch: pytest.MonkeyPatch) -> str:
    """What is said of a plan that export would not write, with digests that are right."""
    with pytest.raises(ValueError, match="expected"):
        write_plan(plan, path)
    with monkeypatch.context() as patch:
        patch.setattr(code_file, "require_sound", lambda *_: None)
        write_plan(plan, path)
    return refusal(path)


@pytest.mark.parametrize(
    ("lhs", "pair", "said"),
    [
        (Uniform(8, (0.5,)), (100, 29), "add up to at most 128, got 129 at inputs 2 and 3 of output 1"),
        (Affine(8, (0.5,), (3,)), (-128, -1), "add up to at most 128, got -129 at inputs 2 and 3 of output 1"),
        (TwinSoftmax(8, 3), (127, 127), None),
        (Uniform(8, (0.5,)), (127, -128), None),
        (Uniform(8, (0.5,)), (100, 28), None),
    ],
)
def test_codes_that_are_not_pair_safe_are_refused(
    lhs: Quantizer, pair: tuple[int, int], said: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = np.zeros((5, 3), np.int8)
    values[2:4, 1] = pair
    site = site_of(values, 8, lhs)
    plan, (codes, moved) = ScalePlan("m", "w", "i", {}, {}, {HEAD: site}), ship_weight(np.zeros((5, 3)), lhs, site.rhs)
    assert (moved > 0) == (said is not None)
    if said is None:
        write_plan(plan, tmp_path / "plan.json")
        assert read_plan(tmp_path / "plan.json") == plan and np.array_equal(codes, values)
    else:
        assert f"head: expected pairs of codes that {said}" in by_hand(tmp_path / "plan.json", plan, monkeypatch)


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 9), st.integers(0, 2**32 - 1), st.sampled_from([127, 128, 200, 255, 300]))
def test_a_pair_is_unsafe_where_pair_safety_would_change_it(inputs: int, seed: int, limit: int) -> None:
    values = drawn((inputs, 3), 8, seed)
    changed = make_pairs_safe(values.astype(np.float32), limit) != values
    found = first_unsafe_pair(values, limit)
    assert (found is not None) == changed.any()
    if found is not None:
        row, column, total = found
        assert row % 2 == 0 and total == values[row : row + 2, column].astype(int).sum()
        assert changed[row : row + 2, column].any() and not changed[:row].any()


def test_codes_of_outliers_are_zero(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.ones((5, 3), np.int8)
    values[2] = 0
    path, side = tmp_path / "plan.json", Uniform(8, (0.5,))
    for channels, said in (((2,), None), ((2, 4), 4), ((5,), 5)):
        site = site_of(values, 8, outliers=Outliers(channels, side, side))
        plan = ScalePlan("m", "w", "i", {}, {}, {HEAD: site})
        if said is None:
            write_plan(plan, path)
            assert read_plan(path) == plan
        else:
            assert f"head: expected 5 inputs with zeros at outlier channel {said}" in by_hand(path, plan, monkeypatch)


def test_scales_that_do_not_divide_the_outputs_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = site_of(np.ones((5, 3), np.int8), 8)
    planned = replace(site, rhs=replace(site.rhs, scale=(0.5, 0.25)))
    said = by_hand(tmp_path / "plan.json", ScalePlan("m", "w", "i", {}, {}, {HEAD: planned}), monkeypatch)
    assert "head: expected a number of scales that divides 3 outputs, got 2" in said


def test_a_quantizer_without_codes_carries_none() -> None:
    quantizers: Mapping[str, Any] = {"uniform": Uniform(8, (0.5,)), "twin": TwinSoftmax(8, 3)}
    assert quantizers["uniform"].carried is None
    with pytest.raises(AssertionError, match="uniform carries no codes"):
        quantizers["uniform"].carrying(WeightCodes("0" * 64))
    assert pair_limit(quantizers["twin"]) > 255
