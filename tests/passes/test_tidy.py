"""Tidy leaves nothing unread, and does not end before the plan is applied."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from ptq4vit_onnx.passes import PassError, quantize
from ptq4vit_onnx.passes.tidy import Tidy
from ptq4vit_onnx.plan.scale_plan import ScalePlan
from tests.passes.small_models import Small

Prepared = tuple[onnx.ModelProto, ScalePlan]


@pytest.fixture
def prepared(small: Small, random: np.random.Generator) -> Prepared:
    model = small.attention()
    return model, small.attention_plan(model, random.standard_normal((2, 5, 12)).astype(np.float32))


def test_every_tensor_and_node_is_read(prepared: Prepared) -> None:
    quantized, _ = quantize(*prepared)
    graph = quantized.graph
    read = {name for node in graph.node for name in node.input} | {item.name for item in graph.output}
    assert {item.name for item in graph.initializer} <= read
    assert all(set(node.output) & read for node in graph.node)
    assert not any("float" in item.name for item in graph.initializer)


def test_no_stale_types_are_left_on_tensors_that_became_bytes(prepared: Prepared) -> None:
    quantized, _ = quantize(*prepared)
    assert not quantized.graph.value_info


def test_tidy_refuses_to_end_with_a_side_in_floats(small: Small, prepared: Prepared) -> None:
    work = small.run_until(*prepared, "PackWeights")
    work.product("attn.pv").lhs_done = False
    with pytest.raises(PassError, match=r"site attn\.pv, node attn\.pv/MatMul: a planned side was not quantised"):
        Tidy()(work)
