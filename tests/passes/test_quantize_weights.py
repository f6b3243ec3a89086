"""QuantizeWeights ships pair-safe codes."""

from __future__ import annotations

import numpy as np
import pytest

from ptq4vit_onnx.passes import PassError, quantize
from ptq4vit_onnx.plan.quantizers import Uniform
from ptq4vit_onnx.plan.saturation_safe_weights import saturating_pairs, ship_weight
from ptq4vit_onnx.plan.scale_plan import ScalePlan, SitePlan
from tests.passes.small_models import Small

LHS = Uniform(8, (0.03125,))


def planned(small: Small, rhs: Uniform) -> ScalePlan:
    return small.plan({"fc": SitePlan("linear", "other", LHS, rhs)})


@pytest.mark.parametrize("groups", [1, 2, 8])
def test_the_weights_are_those_of_ship_weight(groups: int, small: Small, random: np.random.Generator) -> None:
    model, x = small.linear(), random.standard_normal((2, 5, 12)).astype(np.float32)
    weight = small.weight(model, "fc.weight")
    rhs = small.covering(weight, 8, groups)
    work = small.run_until(model, planned(small, rhs), "QuantizeWeights")
    codes, moved = ship_weight(weight, LHS, rhs)
    assert np.array_equal(work.constants["fc/weight"].values, codes)
    assert work.moved_weights == {"fc": moved}
    expected = small.fetch(small.export(work), x)[0]
    exact = x @ rhs.decode(codes) + small.weight(model, "fc.bias")
    np.testing.assert_allclose(expected, exact, atol=1e-5)


def test_weights_that_would_saturate_are_moved_and_the_product_is_exact(small: Small) -> None:
    """All weights at the limit, all activations at the top: the worst that u8 x s8 can meet."""
    model = small.linear(bias=False)
    largest = np.full((12, 8), 1.0, np.float32)
    model.graph.initializer[0].raw_data = largest.tobytes()
    rhs = Uniform(8, (2.0**-7,))
    quantized, report = quantize(model, planned(small, rhs))
    assert report.moved_weights["fc"] == 96
    codes = ship_weight(largest, LHS, rhs)[0]
    assert saturating_pairs(codes, 255) == 0 < saturating_pairs(rhs.encode(largest), 255)
    x = np.full((1, 5, 12), 100.0, np.float32)
    expected = LHS.fake_quantize(x) @ rhs.decode(codes)
    np.testing.assert_allclose(small.execute(quantized, x).output, expected, rtol=1e-6)


def test_one_scale_stays_one_scale(small: Small) -> None:
    work = small.run_until(small.linear(), planned(small, Uniform(8, (0.03125,))), "QuantizeWeights")
    assert work.constants["fc/weight/scale"].values.shape == ()


def test_quantize_weights_refuses_scales_that_do_not_divide_the_outputs(small: Small) -> None:
    with pytest.raises(PassError, match="3 weight scales do not divide 8 outputs"):
        quantize(small.linear(), planned(small, Uniform(8, (0.5, 0.5, 0.5))))
