"""The plan in integers on the torch model equals the file in ONNX Runtime, bit for bit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import numpy as np
import onnx
import pytest
import torch
import torch.nn.functional as F
from onnx.reference import ReferenceEvaluator

from ptq4vit_onnx.calibration import channel_scales
from ptq4vit_onnx.calibration.calibrate import calibrate
from ptq4vit_onnx.images.embedded import embedded_digits
from ptq4vit_onnx.network.tape import record
from ptq4vit_onnx.network.tensor_tags import mark_pixels
from ptq4vit_onnx.passes import quantize
from ptq4vit_onnx.plan.exact_product import exact_product
from ptq4vit_onnx.plan.file_layout import FileLayout
from ptq4vit_onnx.plan.options import Options
from ptq4vit_onnx.plan.quantizers import Affine, Uniform, as_float32
from ptq4vit_onnx.plan.scale_plan import ScalePlan, SitePlan
from ptq4vit_onnx.proof.float_sites import FloatSites
from ptq4vit_onnx.proof.layout import layout_of
from ptq4vit_onnx.proof.site_parity import check_sites
from ptq4vit_onnx.runtime.session import run, session
from ptq4vit_onnx.simulation import node_models, ort_kernels
from ptq4vit_onnx.simulation.exact import ExactSimulator, _Weight, kernel
from ptq4vit_onnx.simulation.fake import simulate_exactly
from ptq4vit_onnx.simulation.ort_kernels import RuntimeFloats


def test_sums_beyond_float32_are_exact() -> None:
    generator = torch.Generator().manual_seed(0)
    lhs = torch.randint(0, 256, (7, 3000), generator=generator).float()
    rhs = torch.randint(100, 128, (3000, 5), generator=generator).float()
    exact = lhs.long() @ rhs.long()
    assert int(exact.max()) > 2**24
    assert torch.equal(exact_product(lhs, rhs).long(), exact)


def test_sums_of_activations_are_exact_per_head() -> None:
    generator = torch.Generator().manual_seed(0)
    lhs = torch.randint(-128, 128, (2, 3, 4, 2000), generator=generator).float()
    rhs = torch.randint(-128, 128, (2, 3, 2000, 4), generator=generator).float()
    assert torch.equal(exact_product(lhs, rhs).long(), lhs.long() @ rhs.long())


def test_both_scales_are_multiplied_before_the_sums() -> None:
    weight = _Weight(torch.tensor([[3.0]]), torch.tensor([0.1]))
    expected = np.float32(21) * (np.float32(0.1) * np.float32(0.3))
    out = kernel(torch.tensor([[7.0]]), weight, float(np.float32(0.3)))
    assert out.dtype == torch.float32 and out.item() == expected


def test_units_count_from_the_zero_point() -> None:
    quantizer = Affine(4, (0.5,), (3,))
    assert quantizer.units(torch.tensor([-9.0, 0.0, 1.0, 99.0]))[0].tolist() == [-3, 0, 2, 12]


@pytest.mark.parametrize(
    "compute",
    [
        lambda x: F.layer_norm(x, (12,), torch.linspace(0.5, 2, 12), torch.linspace(-1, 1, 12), 1e-6),
        lambda x: F.layer_norm(x, (12,), torch.linspace(0.5, 2, 12)),
        lambda x: F.layer_norm(x, (5, 12), bias=torch.linspace(-1, 1, 60).reshape(5, 12)),
        lambda x: F.layer_norm(x, normalized_shape=(12,)),
        lambda x: x.softmax(-1),
        lambda x: F.softmax(x, dim=1),
        lambda x: F.gelu(x),
        lambda x: F.gelu(x, approximate="tanh"),
        lambda x: x.mean(dim=(0, 1)),
        lambda x: x.mean(1, keepdim=True),
        lambda x: x.transpose(1, 2).mean(1),
        lambda x: x.transpose(1, 2).contiguous().mean(-1),
        lambda x: x[:, 1:].mean(1),
        lambda x: x.sum(-1, keepdim=True),
        lambda x: F.normalize(x, dim=-1),
        lambda x: torch.linalg.vector_norm(x, dim=-1),
        lambda x: x.norm(dim=-1, keepdim=True),
        lambda x: torch.sigmoid(x),
        lambda x: x.tanh(),
        lambda x: x.exp(),
        lambda x: F.elu(x),
        lambda x: F.hardswish(x),
        lambda x: F.batch_norm(x, torch.zeros(5), torch.ones(5), torch.linspace(0.5, 2, 5), torch.ones(5)),
        lambda x: F.adaptive_avg_pool2d(x, 1),
        lambda x: F.adaptive_avg_pool1d(x, 1),
        lambda x: F.linear(x, torch.eye(12)[:7]),
        lambda x: F.linear(x[0], torch.eye(12)[:7], torch.ones(7)),
        lambda x: x @ x.mT,
    ],
)
def test_the_runtimes_float_kernels_compute_what_torch_does(compute: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(2, 5, 12, generator=torch.Generator().manual_seed(0))
    mark_pixels(x)
    calls: list[str] = []
    original = ort_kernels._run

    def counted(operation: str, *rest: Any, **attributes: Any) -> Any:
        calls.append(operation)
        return original(operation, *rest, **attributes)

    monkeypatch.setattr(ort_kernels, "_run", counted)
    with RuntimeFloats():
        out = compute(x)
    assert len(calls) == 1
    torch.testing.assert_close(out, compute(x), rtol=1e-5, atol=1e-6)


def test_tables_of_positions_are_computed_by_numpy_as_the_exporter_does() -> None:
    angles = torch.linspace(0, 500, 4001)
    with RuntimeFloats():
        found = (angles.sin(), torch.cos(angles), (angles / 500).exp(), 10000 ** (angles / 500))
    part = (angles / 500).numpy()
    expected = (np.sin(angles.numpy()), np.cos(angles.numpy()), np.exp(part), np.power(np.float32(10000), part))
    assert all(np.array_equal(one.numpy(), other) for one, other in zip(found, expected, strict=True))


@pytest.mark.parametrize(
    "compute",
    [
        lambda x: F.silu(x),
        lambda x: F.conv2d(x, torch.linspace(-1, 1, 72).reshape(4, 2, 3, 3), torch.ones(4), 2, 1),
        lambda x: F.conv2d(x, torch.linspace(-1, 1, 18).reshape(2, 1, 3, 3), padding=(1, 0), groups=2),
        lambda x: F.interpolate(x, size=(4, 7), mode="bicubic"),
        lambda x: F.interpolate(x, size=3, mode="bilinear", align_corners=False),
    ],
)
def test_the_runtime_computes_what_several_nodes_or_constants_are_needed_for(
    compute: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.randn(3, 2, 6, 6, generator=torch.Generator().manual_seed(0))
    models: list[Any] = []
    original = node_models.compute

    def counted(model: Any, inputs: Any) -> Any:
        models.append(model)
        return original(model, inputs)

    monkeypatch.setattr(ort_kernels, "compute", counted)
    with RuntimeFloats():
        out = compute(x)
    assert len(models) == 1
    torch.testing.assert_close(out, compute(x), rtol=1e-5, atol=1e-5)


def test_convolutions_of_equal_shapes_keep_their_own_weights() -> None:
    x = torch.ones(1, 1, 3, 3)
    with RuntimeFloats():
        sums = [F.conv2d(x, torch.full((1, 1, 3, 3), value)).item() for value in (1.0, 2.0, 1.0)]
    assert sums == [9, 18, 9]


@pytest.mark.parametrize(
    "compute",
    [
        lambda x: x.mean(),
        lambda x: x.relu() + x * x,
        lambda x: F.normalize(x, p=1.0, dim=-1),
        lambda x: F.interpolate(x[None], scale_factor=2.0, mode="nearest"),
        lambda x: F.batch_norm(x, None, None, training=True),
        lambda x: x.long().sum(-1),
    ],
)
def test_other_operations_stay_in_torch(compute: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(2, 5, 12, generator=torch.Generator().manual_seed(0))
    monkeypatch.setattr(ort_kernels, "compute", lambda *_: pytest.fail("ONNX Runtime was asked"))
    with RuntimeFloats():
        out = compute(x)
    assert torch.equal(out, compute(x))


@pytest.fixture(autouse=True)
def channels_of_few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four images are enough here to scale channels by: what is tested is that file and simulator do the same."""
    monkeypatch.setattr(channel_scales, "LEAST_ROWS", 1)


def _quantised(made: Any, **options: Any) -> tuple[Any, ScalePlan]:
    images = torch.from_numpy(embedded_digits(made.model.preprocessing, "calibration", 4).images)
    tape, choices = record(made.model.module, images), Options(candidates=6, rounds=1, **options)
    found = calibrate(tape, choices, pixels=made.model.pixel_grid)
    plan = ScalePlan("m", "", "", {}, {}, {site.name: found[site.name] for site in made.sites})
    return quantize(made.proto, plan)[0], plan


@pytest.mark.parametrize("name", ["vit_digits", "swin_digits"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"weight_bits": 6, "activation_bits": 6, "twin": "both"},
        {"weight_bits": 4, "activation_bits": 4, "bias_correction": "always"},
        {
            "weight_bits": 5,
            "activation_bits": 7,
            "weights": "per-tensor",
            "activations": "symmetric",
            "twin": "none",
            "pixels": "searched",
        },
    ],
)
@pytest.mark.parametrize("batch", [None, 3])
def test_logits_are_the_files_bit_for_bit(
    name: str, options: dict[str, Any], batch: int | None, float_export: Any, digits: Any
) -> None:
    made = float_export(name, batch)
    quantised, plan = _quantised(made, **options)
    assert sum(site.channels is not None for site in plan.sites.values()) > 3
    assert sum(len(site.lhs.colours) for site in plan.sites.values()) == (options.get("pixels") is None)
    simulated = simulate_exactly(made.model.module, plan, layout_of(quantised, plan), digits, batch=2)
    assert np.array_equal(run(quantised, digits), simulated)


def test_a_last_bit_in_the_plan_shows(float_export: Any, digits: Any) -> None:
    made = float_export("vit_digits", None)
    quantised, plan = _quantised(made)
    site = plan.sites["head"]
    scale = tuple(float(np.nextafter(np.float32(value), np.float32(1))) for value in site.rhs.scale)
    other = replace(plan, sites={**plan.sites, "head": replace(site, rhs=replace(site.rhs, scale=scale))})
    simulated = simulate_exactly(made.model.module, other, layout_of(quantised, other), digits)
    assert not np.array_equal(run(quantised, digits), simulated)


@pytest.mark.parametrize("name", ["vit_digits", "swin_digits"])
def test_onnxs_reference_evaluator_computes_the_same_from_the_whole_file(
    name: str, float_export: Any, digits: Any
) -> None:
    quantised, _ = _quantised(float_export(name, None), weight_bits=6, twin="both")
    onnx.checker.check_model(quantised, full_check=True)
    expected = cast(list[Any], ReferenceEvaluator(quantised).run(None, {"image": digits[:2]}))[0]
    np.testing.assert_allclose(run(quantised, digits[:2]), expected, atol=0.02 * np.abs(expected).max())


@pytest.mark.parametrize("scale", [1 / 63, 1 / 40])  # 1 is the highest code, or a lower one
def test_probabilities_in_one_range_of_six_bits_need_no_clip_and_pass(
    scale: float, float_export: Any, digits: Any
) -> None:
    made = float_export("vit_digits", None)
    _, plan = _quantised(made, activation_bits=6)
    lhs = Affine(6, (as_float32(scale),), (0,))
    sites = {name: replace(site, lhs=lhs) if name.endswith(".pv") else site for name, site in plan.sites.items()}
    plan = replace(plan, sites=sites)
    quantised = quantize(made.proto, plan)[0]
    assert all(result.exact for result in check_sites(quantised, plan, digits[:1], FloatSites(made.proto, plan)))
    assert np.array_equal(
        run(quantised, digits), simulate_exactly(made.model.module, plan, layout_of(quantised, plan), digits)
    )


def _requantising(scales: tuple[float, ...]) -> Any:
    """A @ B of codes in ONNX Runtime, quantised behind: one kernel, QLinearMatMul."""
    helper, constants = onnx.helper, []
    for name, scale in zip("aby", scales, strict=True):
        constants.append(onnx.numpy_helper.from_array(np.asarray(scale, np.float32), f"{name}_scale"))
        constants.append(onnx.numpy_helper.from_array(np.asarray(128, np.uint8), f"{name}_zero"))
    nodes = [
        helper.make_node("DequantizeLinear", [side, f"{side}_scale", f"{side}_zero"], [f"{side}_float"])
        for side in "ab"
    ]
    nodes.append(helper.make_node("MatMul", ["a_float", "b_float"], ["product"], "attn.pv/MatMul"))
    nodes.append(helper.make_node("QuantizeLinear", ["product", "y_scale", "y_zero"], ["y"]))
    kinds = {"a": [1, 400, 8], "b": [1, 8, 500], "y": None}
    values = [helper.make_tensor_value_info(name, onnx.TensorProto.UINT8, shape) for name, shape in kinds.items()]
    graph = helper.make_graph(nodes, "requantising", values[:2], values[2:], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def test_a_kernel_that_returns_codes_rounds_once() -> None:
    random, scales = (
        np.random.default_rng(0),
        tuple(float(np.float32(x)) for x in (0.1, 0.3, 0.02)),
    )  # ratio 1.5: many sums lie halfway
    sides = [random.integers(0, 256, shape, dtype=np.uint8) for shape in ((1, 400, 8), (1, 8, 500))]
    model = _requantising(scales)
    runner = session(model)
    codes = runner.run(None, dict(zip("ab", sides, strict=True)))[0].astype(np.float32) - 128
    left, right = (torch.from_numpy(side.astype(np.float32) - 128) for side in sides)
    layout = FileLayout({}, frozenset(), {"attn.pv": scales[2]})
    exact = ExactSimulator(ScalePlan("m", "", "", {}, {}, {}), layout)
    weight = _Weight(right, torch.tensor(scales[1]))
    out = exact._kernel("attn.pv", left, weight, scales[0])
    again = (out / scales[2]).round().clamp(-128, 127)
    assert np.array_equal(again.numpy(), codes)
    twice = (kernel(left, weight, scales[0]) / scales[2]).round().clamp(-128, 127)
    assert not np.array_equal(twice.numpy(), codes)  # else the difference would not be worth the trouble


def test_the_layout_names_products_that_a_quantizelinear_alone_reads() -> None:
    side = Uniform(8, (0.5,))
    plan = ScalePlan("m", "", "", {}, {}, {"attn.pv": SitePlan("matmul", "softmax", side, side)})
    assert layout_of(_requantising((0.5, 0.5, 0.25)), plan).requantised == {"attn.pv": 0.25}
