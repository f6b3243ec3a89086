"""SplitOutliers gives outlier channels a product and scales of their own."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ptq4vit_onnx.passes import PassError, quantize
from ptq4vit_onnx.passes.tensors import Array
from ptq4vit_onnx.plan.quantizers import Uniform
from ptq4vit_onnx.plan.scale_plan import Outliers, SitePlan
from tests.passes.small_models import Batch, Small

OUTLIERS = Outliers((3, 7), Uniform(8, (1.0,)), Uniform(8, (0.0078125,)))
PLAN = SitePlan("linear", "other", Uniform(8, (0.03125,)), Uniform(8, (0.015625,)), OUTLIERS)


@pytest.fixture
def x(random: np.random.Generator) -> Array:
    values = random.standard_normal((2, 5, 12)).astype(np.float32)
    values[..., [3, 7]] *= 40
    return values


@pytest.mark.parametrize("batch", ["batch", 2])
def test_both_products_run_in_integers_and_add_up(batch: Batch, small: Small, x: Array) -> None:
    model = small.linear(batch)
    quantized, report = quantize(model, small.plan({"fc": PLAN}))
    executed = small.execute(quantized, x)
    assert executed.by_name["fc/MatMul"] == executed.by_name["fc/MatMul.outliers"] == "MatMulIntegerToFloat"
    assert report.products == {"fc": 2}
    weight, channels = small.weight(model, "fc.weight"), list(OUTLIERS.channels)
    rest = weight.copy()
    rest[channels] = 0
    expected = small.fake_linear(x, rest, PLAN.lhs, PLAN.rhs) + small.weight(model, "fc.bias")
    expected = expected + small.fake_linear(x[..., channels], weight[channels], OUTLIERS.lhs, OUTLIERS.rhs)
    np.testing.assert_allclose(executed.output, expected, rtol=1e-5, atol=1e-5)


def test_the_main_product_has_no_weight_for_the_outliers(small: Small) -> None:
    work = small.run_until(small.linear(), small.plan({"fc": PLAN}), "QuantizeWeights")
    main, extra = (item.codes for item in work.products)
    assert main is not None and extra is not None
    assert not main[[3, 7]].any() and main[[0, 1]].any()
    assert extra.shape == (2, 8)


@pytest.mark.parametrize("channels", [(3, 12), (3, 3), (-1,)])
def test_split_outliers_refuses_channels_that_are_not_there(channels: tuple[int, ...], small: Small) -> None:
    plan = replace(PLAN, outliers=replace(OUTLIERS, channels=channels))
    with pytest.raises(PassError, match=r"outlier channels .* are not channels 0\.\.11"):
        quantize(small.linear(), small.plan({"fc": plan}))
