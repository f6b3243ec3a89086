"""Each invariant, broken on purpose, is reported with its pass, its place and the passes before."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import onnx_graphsurgeon as gs
import pytest

from ptq4vit_onnx.passes import PASSES, InvariantError, quantize
from ptq4vit_onnx.passes.pass_interface import Pass
from ptq4vit_onnx.passes.tensors import maker_of, read_instead, values_of
from ptq4vit_onnx.passes.work import Work
from tests.passes.small_models import Small
from tests.passes.small_transformer import IMAGE, transformer_model, transformer_plan

Break = Callable[[Work], None]
NAMES = [make.__name__ for make in PASSES]


def node(work: Work, name: str) -> gs.Node:
    return next(item for item in work.graph.nodes if item.name == name)


def made(tensor: gs.Tensor) -> gs.Node:
    found = maker_of(tensor)
    assert found is not None
    return found


def forget_a_product(work: Work) -> None:
    work.products.pop()


def unbind_a_product(work: Work) -> None:
    work.product("head").node = gs.Node("MatMul", "head/MatMul")


def add_an_identity(work: Work) -> None:
    target = node(work, "mlp.act/Gelu")
    target.inputs = [work.add("Identity", "mlp/Identity", target.inputs)]


def restore_rows(work: Work) -> None:
    output = node(work, "norm/LayerNormalization").outputs[0]
    assert isinstance(output, gs.Variable)
    output.shape = ["batch", 6, 12]


def restore_the_convolution(work: Work) -> None:
    work.product("patch_embed.proj").node.op = "Conv"


def compute_a_patch_weight(work: Work) -> None:
    product = work.product("patch_embed.proj")
    product.node.inputs[1] = work.add("Neg", "patch_embed.proj/Neg", [product.node.inputs[1]])


def restore_the_gemm(work: Work) -> None:
    work.product("head").node.op = "Gemm"


def flatten_a_left_side(work: Work) -> None:
    node(work, "head/Unsqueeze").outputs[0].shape = ["batch", 12]  # type: ignore[misc]


def fold_a_norm_twice(work: Work) -> None:
    norm = node(work, "norm1/LayerNormalization")
    norm.inputs[1] = gs.Constant("twice", values_of(norm.inputs[1]) / 2)


def shift_a_norm(work: Work) -> None:
    norm = node(work, "norm1/LayerNormalization")
    norm.inputs[2] = gs.Constant("shifted", values_of(norm.inputs[2]) + np.float32(0.01))


def flatten_a_bias(work: Work) -> None:
    add = node(work, "attn.proj/Add")
    add.inputs[1] = gs.Constant("flat", values_of(add.inputs[1]).reshape(-1))


def bypass_a_correction(work: Work) -> None:
    add = node(work, "attn.proj/Add")
    add.inputs[0], (work.product("attn.proj").node.outputs) = gs.Variable("lost"), [add.outputs[0]]
    add.outputs.clear()


def keep_outliers_in_the_main_product(work: Work) -> None:
    work.product("mlp.fc1").node.inputs[1] = gs.Constant("whole", np.ones((12, 24), np.float32))


def forget_the_narrow_product(work: Work) -> None:
    work.products = [item for item in work.products if not item.is_narrow]


def widen_the_narrow_product(work: Work) -> None:
    narrow = next(item for item in work.products if item.is_narrow)
    narrow.node.inputs[1] = gs.Constant("wide", np.ones((12, 24), np.float32))


def restore_a_float_weight(work: Work) -> None:
    product = work.product("mlp.fc2")
    product.rhs_done, product.node.inputs[1] = False, gs.Constant("float", np.ones((24, 12), np.float32))


def replace_codes(work: Work) -> None:
    made(work.product("mlp.fc2").node.inputs[1]).inputs[0] = gs.Constant("other", np.ones((24, 12), np.int8))


def exceed_the_bits(work: Work) -> None:
    codes = work.product("mlp.fc2").codes
    assert codes is not None
    codes[0, 0] = 100


def read_pixels_in_one_scale(work: Work) -> None:
    node(work, "patch_embed.proj/pixels/QuantizeLinear").inputs[1] = gs.Constant("scale", np.ones(1, np.float32))


def mark_a_side_as_done(work: Work) -> None:
    work.product("head").lhs_done = True


def leave_v_in_floats(work: Work) -> None:
    work.product("attn.pv").rhs_done = False


def multiply_codes(work: Work) -> None:
    """Only between the branches of a twin are bytes multiplied."""
    dequantize = made(work.product("head").node.inputs[0])
    dequantize.inputs[0] = work.add("Mul", "head/lhs/Mul", [dequantize.inputs[0], dequantize.inputs[0]])


def quantise_before_softmax(work: Work) -> None:
    """An operation on floats between a DequantizeLinear and what made its codes."""
    dequantize = made(work.product("head").node.inputs[0])
    dequantize.inputs[0] = work.add("Softmax", "head/lhs/Softmax", [dequantize.inputs[0]])


def give_a_side_two_scales(work: Work) -> None:
    made(work.product("head").node.inputs[0]).inputs[1] = gs.Constant("scales", np.ones(2, np.float32))


def make_a_left_side_signed(work: Work) -> None:
    made(work.product("head").node.inputs[0]).inputs[2] = gs.Constant("zero", np.asarray(0, np.int8))


def leave_a_right_side(work: Work) -> None:
    work.product("attn.qk").rhs_done = False


def leave_a_left_side(work: Work) -> None:
    work.product("head").lhs_done = False


def lose_a_multiplication(work: Work) -> None:
    node(work, "attn.qk/Mul").op = "Div"


def multiply_by_others(work: Work) -> None:
    node(work, "attn.qk/Mul").inputs[1] = gs.Constant("ones", np.ones((3, 1, 1), np.float32))


def forget_a_branch(work: Work) -> None:
    for site in work.twin_products:
        work.twin_products[site] = 1


def give_a_branch_another_right_side(work: Work) -> None:
    for item in [item for item in work.graph.nodes if item.name.endswith("MatMul.coarse")]:
        item.inputs[1] = work.add("Neg", f"{item.name}/Neg", [item.inputs[1]])


def feed_a_branch_with_floats(work: Work) -> None:
    for item in [item for item in work.graph.nodes if item.name.endswith("MatMul.coarse")]:
        item.inputs[0] = work.add("Neg", f"{item.name}/Neg", [item.inputs[0]])


def move_floats(work: Work) -> None:
    quantize = node(work, "head/lhs/QuantizeLinear")
    quantize.inputs[0] = work.add("Transpose", "head/Transpose", [quantize.inputs[0]], perm=[0, 1, 2])


def store_bytes(work: Work) -> None:
    product = work.product("mlp.fc2")
    assert product.codes is not None
    made(product.node.inputs[1]).inputs[0] = gs.Constant("bytes", product.codes)


def join_readers(work: Work) -> None:
    output = node(work, "reduction/readers/Add").outputs[0]
    read_instead(output.outputs, output, work.product("reduction").node.outputs[0])


def reverse_nodes(work: Work) -> None:
    work.graph.nodes.reverse()


def remember_a_shape(work: Work) -> None:
    output = node(work, "mlp.act/Gelu").outputs[0]
    assert isinstance(output, gs.Variable)
    output.shape = ["batch", 6, 24]


# (the pass that breaks it, how, what is reported: the claim, the site, the node, what was found there)
BROKEN: list[tuple[str, Break, str]] = [
    ("FindProducts", forget_a_product, "the product of every site.*site head, node none: no product is bound"),
    ("FindProducts", unbind_a_product, "the product of every site.*site head, node head/MatMul: it is not in"),
    ("DropNoOps", add_an_identity, "an Identity, or a Pad by nothing.*node mlp/Identity: the Identity does nothing"),
    ("DropUnreadRows", restore_rows, r"compute one row.*node norm/LayerNormalization: its output has 6 rows"),
    ("EmbedPatches", restore_the_convolution, r"no planned product is a convolution.*site patch_embed\.proj.*a Conv"),
    ("EmbedPatches", compute_a_patch_weight, "every planned conv is a MatMul by a constant matrix.*a MatMul by no"),
    ("UnifyProducts", restore_the_gemm, "every planned linear is a MatMul by a constant matrix.*site head.*a Gemm"),
    ("UnifyProducts", flatten_a_left_side, "the left side of no planned linear has two axes.*site head.*a float Gemm"),
    ("FoldChannels", fold_a_norm_twice, r"takes up channels.*node norm1/LayerNormalization: its weight times"),
    ("FoldChannels", shift_a_norm, r"takes up channels.*site attn\.qkv.*its bias times the scale plus the shift"),
    ("ShapeBiases", flatten_a_bias, r"has two axes.*site attn\.proj, node attn\.proj/MatMul: its bias has one axis"),
    ("ShapeBiases", bypass_a_correction, r"has two axes.*site attn\.proj.*it has no bias, but the plan corrects it"),
    ("SplitOutliers", keep_outliers_in_the_main_product, r"outlier channels.*its rows \[3, 7\] are not zero"),
    ("SplitOutliers", forget_the_narrow_product, r"outlier channels.*site mlp\.fc1.*its outliers have no product"),
    ("SplitOutliers", widen_the_narrow_product, r"outlier channels.*node mlp\.fc1/MatMul\.outliers: it should have 2"),
    ("QuantizeWeights", restore_a_float_weight, r"constant int8 codes.*site mlp\.fc2.*its weight is float, no Dequant"),
    ("QuantizeWeights", replace_codes, "constant int8 codes.*other does not hold the int8 codes"),
    ("QuantizeWeights", exceed_the_bits, r"the plan's bits.*site mlp\.fc2.*codes -3\.\.100 do not fit 4 bits"),
    ("QuantizeWeights", mark_a_side_as_done, "reaches its product as bytes.*site head.*lhs: comes from Unsqueeze"),
    ("QuantizePixels", read_pixels_in_one_scale, r"colour by colour.*site patch_embed\.proj.*Linear has 1 scales"),
    ("FoldHeadScales", leave_v_in_floats, r"Q @ K\^T.*site attn\.qkv.*not all of q, k and v carry codes"),
    ("QuantizeActivations", quantise_before_softmax, "as bytes.*site head.*lhs: its codes come from Softmax head/lhs"),
    ("QuantizeActivations", multiply_codes, "as bytes.*site head.*lhs: its codes come from Mul head/lhs/Mul"),
    ("QuantizeActivations", give_a_side_two_scales, "as bytes.*site head.*lhs: has several scales"),
    ("QuantizeActivations", make_a_left_side_signed, "as bytes.*site head.*lhs: is not unsigned"),
    ("QuantizeActivations", leave_a_left_side, "every right side is quantised.*site head.*the lhs carries floats"),
    ("RestoreHeadScales", lose_a_multiplication, r"its heads' scales.*site attn\.qk.*not read by a Mul alone"),
    ("RestoreHeadScales", multiply_by_others, r"its heads' scales.*site attn\.qk.*multiplied by other factors"),
    ("SplitSoftmax", forget_a_branch, r"every TwinSoftmax.*site attn\.pv.*recorded are 1 products"),
    ("SplitSoftmax", feed_a_branch_with_floats, r"every TwinSoftmax.*the left side of MatMul\.coarse does not come"),
    ("SplitGelu", give_a_branch_another_right_side, r"branches of every Twin.*MatMul\.coarse has another right side"),
    ("CarryBytes", move_floats, "moved for it alone.*node head/lhs/QuantizeLinear: floats are moved.*head/Transpose"),
    ("SeparateReaders", join_readers, "read by nobody else.*site reduction.*ONNX Runtime would compute it in float"),
    ("PackWeights", store_bytes, r"k bits per code.*site mlp\.fc2.*288 codes of 4 bits take 288 bytes"),
    ("Tidy", reverse_nodes, "every node comes behind.*it reads .*, which is computed later"),
    ("Tidy", remember_a_shape, r"says its type or shape.*node mlp\.act/Gelu: .* shape \['batch', 6, 24\]"),
]  # fmt: skip


def breaking(make: type[Pass], breaks: Break) -> type[Pass]:
    """The pass, with a mistake in it."""

    class Broken(make):  # type: ignore[misc, valid-type]
        def apply(self, work: Work) -> int:
            places: int = super().apply(work)
            breaks(work)
            return places

    Broken.__name__ = make.__name__
    return Broken


def run_with(wrong: type[Pass], small: Small) -> None:
    """All passes up to the wrong one."""
    before = NAMES[: NAMES.index(wrong.__name__)]
    model, plan = transformer_model(), transformer_plan()
    wrong()(small.run_until(model, plan, before[-1]) if before else small.start(model, plan))


@pytest.mark.parametrize(("name", "breaks", "message"), BROKEN, ids=[breaks.__name__ for _, breaks, _ in BROKEN])
def test_a_pass_that_does_not_do_its_work_is_reported(name: str, breaks: Break, message: str, small: Small) -> None:
    make = next(item for item in PASSES if item.__name__ == name)
    with pytest.raises(InvariantError, match=f"after {name} it does not hold that .*{message}") as caught:
        run_with(breaking(make, breaks), small)
    before = NAMES[: NAMES.index(name)]
    assert str(caught.value).endswith(f"passes before it: {', '.join(before) or 'none'}")


def test_a_pass_that_breaks_what_an_earlier_one_ensures_is_named_with_it(small: Small) -> None:
    tidy = next(item for item in PASSES if item.__name__ == "Tidy")
    with pytest.raises(InvariantError, match=r"after Tidy it does not hold that every Layer.*which FoldChannels en"):
        run_with(breaking(tidy, fold_a_norm_twice), small)


# FoldHeadScales may leave its work to QuantizeActivations.
@pytest.mark.parametrize("make", [make for make in PASSES if make.__name__ != "FoldHeadScales"])
def test_a_pass_that_does_nothing_is_reported(make: type[Pass], small: Small) -> None:
    idle = type(make.__name__, (make,), {"apply": lambda _self, _work: 0})
    with pytest.raises(InvariantError, match=f"after {make.__name__} it does not hold that .*, which it ensures"):
        run_with(idle, small)


def test_every_pass_ensures_something_and_every_claim_is_broken_once_above() -> None:
    claims = {item.claim for make in PASSES for item in make.ensures}
    assert all(make.ensures for make in PASSES)
    reported = [message.partition(".*")[0] for _, _, message in BROKEN]
    by_tidy = {"every side of every product is quantised"}  # Tidy refuses that before: see test_tidy.py
    assert [claim for claim in claims - by_tidy if not any(_says(claim, part) for part in reported)] == []


def _says(claim: str, part: str) -> bool:
    return part.replace("\\", "") in claim


def test_an_invariant_ends_with_a_later_pass() -> None:
    for place, make in enumerate(PASSES):
        assert all(item.until in ("", *NAMES[place + 1 :]) for item in make.ensures), make.__name__


def test_the_small_transformer_gives_every_pass_something_to_do(small: Small) -> None:
    quantized, report = quantize(transformer_model(), transformer_plan())
    assert {name for name, places in report.places.items() if not places} == set()
    x = np.random.default_rng(0).standard_normal(IMAGE).astype(np.float32)
    kernels = small.execute(quantized, x).operations
    assert kernels["MatMulIntegerToFloat"] + kernels["QLinearMatMul"] == sum(report.products.values()) == 13


def test_what_the_plan_does_not_ask_for_is_not_missed(small: Small) -> None:
    plain = {site: replace(item, channels=None, outliers=None) for site, item in transformer_plan().sites.items()}
    report = quantize(transformer_model(), small.plan(plain))[1]
    assert report.places["FoldChannels"] == report.places["SplitOutliers"] == 0
