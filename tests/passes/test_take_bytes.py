"""TakeBytes makes the graph's input what a decoder gives, and changes no output."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest

from ptq4vit_onnx.passes import InvariantError, PassError, quantize
from ptq4vit_onnx.passes.take_bytes import TakeBytes
from ptq4vit_onnx.passes.tensors import Array
from ptq4vit_onnx.plan.quantizers import Pixels, Uniform
from ptq4vit_onnx.plan.scale_plan import ScalePlan, SitePlan
from ptq4vit_onnx.runtime.session import session
from tests.passes.small_models import Batch, Small

PIXELS = Pixels.of((0.485, 0.5), (0.25, 0.5), 2)
PLAN = SitePlan("conv", "other", PIXELS, Uniform(8, (0.0009765625,)))


@pytest.fixture
def plan(small: Small) -> ScalePlan:
    return small.plan({"patch_embed.proj": PLAN})


@pytest.fixture
def codes(random: np.random.Generator) -> Array:
    return random.integers(0, 256, (2, 8, 12, 2), np.uint8)


def normalised(codes: Array) -> Array:
    image = codes.astype(np.float32) - np.asarray(PIXELS.centre, np.float32)
    return np.ascontiguousarray((image * np.asarray(PIXELS.scale, np.float32)).transpose(0, 3, 1, 2))


def output_of(model: onnx.ModelProto, x: Array) -> Array:
    return np.asarray(session(model).run(None, {"x": x})[0])


@pytest.mark.parametrize("batch", ["batch", 2])
def test_bytes_give_the_outputs_of_the_floats_made_of_them(
    batch: Batch, small: Small, plan: ScalePlan, codes: Array
) -> None:
    of_floats, of_bytes = (quantize(small.patches(batch), plan, kind)[0] for kind in ("float", "uint8"))
    np.testing.assert_array_equal(output_of(of_bytes, codes), output_of(of_floats, normalised(codes)))


def test_nothing_is_float_before_the_first_product(small: Small, plan: ScalePlan) -> None:
    taken = quantize(small.patches(), plan, "uint8")[0]
    (entry,) = taken.graph.input
    assert entry.type.tensor_type.elem_type == onnx.TensorProto.UINT8
    assert [item.dim_value for item in entry.type.tensor_type.shape.dim[1:]] == [8, 12, 2]
    operations = [node.op_type for node in taken.graph.node]
    assert "QuantizeLinear" not in operations and operations.count("Add") == 1
    said = {item.key: item.value for item in taken.metadata_props}
    assert said["ptq4vit_onnx.input"] == "uint8 [batch, height, width, colours]"
    floats = quantize(small.patches(), plan)[0].metadata_props
    assert "ptq4vit_onnx.input" not in {item.key for item in floats}


def test_a_shape_of_the_image_stays_what_it_was(small: Small, plan: ScalePlan, codes: Array) -> None:
    model = small.patches()
    model.graph.node.append(onnx.helper.make_node("Shape", ["x"], ["size"], "size/Shape"))
    model.graph.output.append(onnx.helper.make_tensor_value_info("size", onnx.TensorProto.INT64, [4]))
    taken = quantize(model, plan, "uint8")[0]
    assert session(taken).run(["size"], {"x": codes})[0].tolist() == [2, 2, 8, 12]


def test_a_plan_without_pixels_is_refused(small: Small) -> None:
    searched = small.plan({"patch_embed.proj": replace(PLAN, lhs=Uniform(8, (0.03125,)))})
    with pytest.raises(PassError, match=r"TakeBytes.*reads the image as bytes; calibrate on 8-bit images"):
        quantize(small.patches(), searched, "uint8")


def test_an_image_that_is_read_as_floats_is_refused(small: Small, plan: ScalePlan) -> None:
    model = small.patches()
    model.graph.node.append(onnx.helper.make_node("Neg", ["x"], ["negative"], "neg/Neg"))
    model.graph.output.append(onnx.helper.make_tensor_value_info("negative", onnx.TensorProto.FLOAT, None))
    with pytest.raises(PassError, match=r"TakeBytes: site patch_embed\.proj, node x: the image is read as floats, too"):
        quantize(model, plan, "uint8")


def test_it_runs_once_and_says_if_it_does_nothing(small: Small, plan: ScalePlan) -> None:
    work = small.run_until(small.patches(), plan, "PackWeights")
    TakeBytes()(work)
    with pytest.raises(PassError, match="already run"):
        TakeBytes()(work)
    idle = type("TakeBytes", (TakeBytes,), {"apply": lambda _self, _work: 0})
    with pytest.raises(InvariantError, match=r"the graph has one input: bytes.*the input is float32"):
        idle()(small.run_until(small.patches(), plan, "PackWeights"))
