"""Checks of a graph against its plan that no small model of the other tests reaches."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from ptq4vit_onnx.graph.code_paths import CodePath
from ptq4vit_onnx.graph.integer_products import GraphIndex
from ptq4vit_onnx.plan.quantizers import Uniform
from ptq4vit_onnx.plan.scale_plan import ScalePlan, SitePlan
from ptq4vit_onnx.proof.plan_checks import are_head_factors, check_channels, check_range

PICKED = """<ir_version: 9, opset_import: ["" : 20]>
picked (float[2, 8] x) => (uint8[2, 2] codes)
<int64[2] channels = {3, 1}, float scale = {0.5}, uint8 zero = {0}>
{
  alone = Gather <axis = 1> (x, channels)
  codes = QuantizeLinear (alone, scale, zero)
}"""


def test_an_outlier_product_that_reads_the_plans_channels_passes() -> None:
    assert check_channels(GraphIndex(onnx.parser.parse_model(PICKED)), "codes", (3, 1)) is None


@pytest.mark.parametrize("planned", [(1, 3), (3,), (3, 2)])
def test_an_outlier_product_that_reads_other_channels_is_named(planned: tuple[int, ...]) -> None:
    found = check_channels(GraphIndex(onnx.parser.parse_model(PICKED)), "codes", planned)
    assert found == f"outlier channels are [3, 1], the plan's are {list(planned)}"


def test_an_outlier_product_that_picks_no_channels_is_named() -> None:
    index = GraphIndex(onnx.parser.parse_model(PICKED))
    assert check_channels(index, "x", (3, 1)) == "outlier channels are None, the plan's are [3, 1]"


def attention(q: tuple[float, ...], k: tuple[float, ...], v: tuple[float, ...]) -> ScalePlan:
    sides = [Uniform(8, scale, -3) for scale in (q, k, v)]
    sites = {
        "attn.qk": SitePlan("matmul", "other", sides[0], sides[1]),
        "attn.pv": SitePlan("matmul", "softmax", Uniform(8, (1 / 128,)), sides[2]),
    }
    return ScalePlan("m", "", "", {}, {}, sites)


Q, K, V = (0.5, 0.25), (0.125, 0.0625), (2.0, 1.0)
DEPTH = 4  # so the attention scale is 1/2


def factors(attention_scale: float = 0.5, second_head: float = 1.0) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    q = attention_scale / np.array(Q) * [1.0, second_head]
    return np.concatenate([np.repeat(part, DEPTH) for part in (q, 1 / np.array(K), 1 / np.array(V))])


def test_the_factors_of_a_qkv_in_units_of_its_heads_are_known() -> None:
    assert are_head_factors("attn.qkv", attention(Q, K, V), factors())


@pytest.mark.parametrize("changes", [{"attention_scale": 0.505}, {"second_head": 1.01}], ids=str)
def test_factors_of_q_that_are_no_attention_scale_over_its_heads_scales_are_a_mistake(
    changes: dict[str, float],
) -> None:
    assert not are_head_factors("attn.qkv", attention(Q, K, V), factors(**changes))


@pytest.mark.parametrize("wrong", [DEPTH * 2, DEPTH * 5])
def test_a_factor_of_k_or_v_that_is_not_one_over_its_heads_scale_is_a_mistake(wrong: int) -> None:
    changed = factors()
    changed[wrong] *= 1 + 2.0**-20
    assert not are_head_factors("attn.qkv", attention(Q, K, V), changed)


def test_a_side_whose_limits_leave_no_code_is_a_mistake() -> None:
    path = CodePath("x", "codes", np.ones(1), np.dtype(np.uint8), (), np.zeros(1, np.uint8), 200, 100)
    said = check_range(Uniform(8, (1.0,)).branches[0], path, np.zeros(1, np.uint8))
    assert said == "no code can arrive: limited to 200..100, the plan's are -128..127"
