"""FoldChannels hands scales and shifts of channels to the LayerNorm and the linear around them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ptq4vit_onnx.passes import PassError, quantize
from ptq4vit_onnx.passes.fold_channels import FoldChannels
from ptq4vit_onnx.passes.tensors import Array
from ptq4vit_onnx.plan.channel_fold import Channels
from ptq4vit_onnx.plan.quantizers import Uniform
from ptq4vit_onnx.plan.scale_plan import SitePlan
from tests.passes.small_models import Batch, FloatGraph, Small

WIDTH = 12
CHANNELS = Channels("norm", tuple(2.0 ** (n % 5 - 2) for n in range(WIDTH)), tuple(n / 4 - 1 for n in range(WIDTH)))
PLAN = SitePlan("linear", "other", Uniform(8, (0.0625,)), Uniform(8, (0.03125,)), channels=CHANNELS)


@pytest.fixture
def x(random: np.random.Generator) -> Array:
    return random.standard_normal((2, 5, WIDTH)).astype(np.float32)


@pytest.mark.parametrize("moved", [False, True])
@pytest.mark.parametrize("batch", ["batch", 2])
def test_the_product_is_of_the_folded_layers_and_runs_in_integers(
    batch: Batch, moved: bool, small: Small, x: Array
) -> None:
    model = small.normed(batch, moved=moved)
    executed = small.execute(quantize(model, small.plan({"fc": PLAN}))[0], x)
    assert executed.by_name["fc/MatMul"] == "MatMulIntegerToFloat"
    gain, offset, weight, bias = (small.weight(model, name) for name in ("gain", "offset", "fc.weight", "fc.bias"))
    centred = x - x.mean(-1, keepdims=True)
    normed = centred / np.sqrt(x.var(-1, keepdims=True) + np.float32(1e-5))
    new_gain, new_offset = CHANNELS.of_norm(gain, offset)
    expected = small.fake_linear(normed * new_gain + new_offset, CHANNELS.of_weight(weight), PLAN.lhs, PLAN.rhs)
    expected = expected + CHANNELS.of_bias(weight, bias)
    # a LayerNorm's last bits may round another way now and then: one code of 1/16, times a weight of at most 4
    error = np.abs(executed.output - expected)
    assert error.max() <= 0.25 and (error < 1e-4).mean() > 0.95


def test_no_node_is_added_and_the_float_graph_computes_the_same(small: Small, x: Array) -> None:
    model = small.normed()
    work = small.run_until(model, small.plan({"fc": PLAN}), "FoldChannels")
    assert work.counts["FoldChannels"] == 1
    folded = small.export(work)
    assert [node.op_type for node in folded.graph.node] == [node.op_type for node in model.graph.node]
    np.testing.assert_allclose(small.fetch(folded, x)[0], small.fetch(model, x)[0], rtol=1e-4, atol=1e-4)


def test_a_plan_without_channels_changes_nothing(small: Small) -> None:
    work = small.run_until(small.normed(), small.plan({"fc": replace(PLAN, channels=None)}), "FoldChannels")
    assert work.counts["FoldChannels"] == 0


@pytest.mark.parametrize(
    ("channels", "bias", "message"),
    [
        (replace(CHANNELS, norm="other"), True, "expected other/LayerNormalization in front of it, found norm/Layer"),
        (Channels("norm", (1.0,), (0.0,)), True, "channels has 1 scales, the product 12 inputs"),
        (CHANNELS, False, "channels has a shift, but the product no bias"),
    ],
)
def test_what_cannot_be_folded_is_refused(channels: Channels, bias: bool, message: str, small: Small) -> None:
    with pytest.raises(PassError, match=f"FoldChannels: site fc.*{message}"):
        quantize(small.normed(bias=bias), small.plan({"fc": replace(PLAN, channels=channels)}))


def test_a_product_behind_no_norm_is_refused(small: Small) -> None:
    with pytest.raises(PassError, match="expected norm/LayerNormalization in front of it, found no LayerNorm"):
        quantize(small.linear(), small.plan({"fc": PLAN}))


def test_a_norm_without_a_bias_is_refused(small: Small) -> None:
    model = small.normed()
    del model.graph.node[0].input[2]
    with pytest.raises(PassError, match="the LayerNorm must have a constant weight and bias"):
        quantize(model, small.plan({"fc": PLAN}))


def test_a_norm_whose_values_are_changed_on_the_way_is_not_the_one_in_front(small: Small) -> None:
    with pytest.raises(PassError, match="expected norm/LayerNormalization in front of it, found windows/Relu"):
        quantize(small.normed(changed=True), small.plan({"fc": PLAN}))


def test_scales_alone_need_no_bias(small: Small, x: Array) -> None:
    plan = replace(PLAN, channels=replace(CHANNELS, shift=(0.0,) * WIDTH))
    work = small.run_until(small.normed(bias=False), small.plan({"fc": plan}), "FoldChannels")
    np.testing.assert_allclose(
        small.fetch(small.export(work), x)[0], small.fetch(small.normed(bias=False), x)[0], rtol=1e-4, atol=1e-4
    )


def test_a_norm_takes_up_the_channels_of_one_site(small: Small) -> None:
    graph = FloatGraph()
    y = graph.add("norm/LayerNormalization", ["x", graph.draw("gain", WIDTH), graph.draw("offset", WIDTH)], axis=-1)
    y = graph.add("block/Add", [graph.linear(site, y, WIDTH, WIDTH) for site in ("fc", "gate")])
    with pytest.raises(PassError, match=r"site gate.*: the channels of another site are folded into this LayerNorm"):
        quantize(graph.model(y, ("batch", 5, WIDTH)), small.plan({"fc": PLAN, "gate": PLAN}))


def test_folding_twice_raises(small: Small) -> None:
    work = small.run_until(small.normed(), small.plan({"fc": PLAN}), "FoldChannels")
    with pytest.raises(PassError, match="already run"):
        FoldChannels()(work)
