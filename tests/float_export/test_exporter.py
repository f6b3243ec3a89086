"""The float ONNX model: it computes what torch computes, names every product, and tells nothing of its maker."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from torch import nn

from ptq4vit_onnx import __version__
from ptq4vit_onnx.errors import ParityError, UserError
from ptq4vit_onnx.float_export.bind_sites import bind_sites
from ptq4vit_onnx.float_export.exporter import export_float, metadata_of
from ptq4vit_onnx.graph import model_proto
from ptq4vit_onnx.graph.model_proto import save_model
from ptq4vit_onnx.images.builtin import built_in_photos
from ptq4vit_onnx.images.preprocessing import Preprocessing
from ptq4vit_onnx.model_loading.load import LoadedModel, load, resolve
from ptq4vit_onnx.models.specs import PAPER_MODELS
from ptq4vit_onnx.network.discovery import discover
from ptq4vit_onnx.output_kinds.kinds import KINDS
from ptq4vit_onnx.proof.float_parity import FLOAT_TOLERANCE, float_parity
from ptq4vit_onnx.runtime.session import run

NAMES = ["vit_digits", "swin_digits"]
PRODUCTS = ("MatMul", "Gemm", "Conv")


def shape_of(value: Any) -> list[int | str]:
    return [axis.dim_param or axis.dim_value for axis in value.type.tensor_type.shape.dim]


def error(model: LoadedModel, proto: Any, images: Any) -> float:
    expected = model.module(torch.from_numpy(images)).numpy()
    return float(np.abs(run(proto, images) - expected).max() / np.abs(expected).max())


@pytest.mark.parametrize("name", NAMES)
def test_the_file_passes_the_full_check(name: str, float_export: Callable[..., Any], tmp_path: Path) -> None:
    path = save_model(float_export(name).proto, tmp_path / "float.onnx")
    onnx.checker.check_model(str(path), full_check=True)
    assert list(tmp_path.iterdir()) == [path], "a small model is one file"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("count", [1, 3])
def test_a_dynamic_batch_agrees_with_torch(
    name: str, count: int, float_export: Callable[..., Any], digits: Any
) -> None:
    exported = float_export(name)
    assert shape_of(exported.proto.graph.input[0]) == ["batch", 1, 32, 32]
    assert shape_of(exported.proto.graph.output[0]) == ["batch", 10]
    assert error(exported.model, exported.proto, digits[:count]) <= FLOAT_TOLERANCE


@pytest.mark.parametrize("name", NAMES)
def test_a_static_batch_agrees_with_torch(name: str, float_export: Callable[..., Any], digits: Any) -> None:
    exported = float_export(name, 3)
    assert shape_of(exported.proto.graph.input[0]) == [3, 1, 32, 32]
    assert shape_of(exported.proto.graph.output[0]) == [3, 10]
    assert error(exported.model, exported.proto, digits[:3]) <= FLOAT_TOLERANCE


@pytest.mark.parametrize("batch", [None, 3])
@pytest.mark.parametrize("name", NAMES)
def test_every_site_names_exactly_one_product(name: str, batch: int | None, float_export: Callable[..., Any]) -> None:
    exported = float_export(name, batch)
    products = [node.name for node in exported.proto.graph.node if node.op_type in PRODUCTS]
    assert [product.rpartition("/")[0] for product in products] == [site.name for site in exported.sites]
    operations = {"conv": {"Conv"}, "linear": {"MatMul", "Gemm"}, "matmul": {"MatMul"}}
    for product, site in zip(products, exported.sites, strict=True):
        assert product.rpartition("/")[2] in operations[site.kind]


@pytest.mark.parametrize("name", NAMES)
def test_names_belong_to_what_the_node_computes(name: str, float_export: Callable[..., Any]) -> None:
    """qkv multiplies its own weight, qk feeds a softmax, pv reads it, and fc2 reads GELU."""
    exported = float_export(name)
    nodes = {node.name: node for node in exported.proto.graph.node}
    makers = {output: node for node in exported.proto.graph.node for output in node.output}
    assert len(nodes) == len(exported.proto.graph.node), "names are unique"
    values = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in exported.proto.graph.initializer}
    for site in exported.sites:
        node = nodes.get(f"{site.name}/MatMul") or nodes.get(f"{site.name}/Gemm") or nodes[f"{site.name}/Conv"]
        if site.lhs_source != "other":
            assert makers[node.input[0]].op_type.lower() == site.lhs_source
        if site.kind == "linear":
            weight = exported.model.module.get_parameter(f"{site.name}.weight").numpy()
            assert any(np.array_equal(form, values[node.input[1]]) for form in (weight, weight.T))
        if node.op_type == "MatMul" and site.kind == "linear" and "reduction" not in site.name:
            assert nodes[f"{site.name}/Add"].op_type == "Add"


@pytest.mark.parametrize("name", NAMES)
def test_the_metadata_tells_a_deployer_what_to_feed(name: str, float_export: Callable[..., Any]) -> None:
    exported = float_export(name)
    metadata = {entry.key: entry.value for entry in exported.proto.metadata_props}
    assert metadata["ptq4vit_onnx.model"] == name
    assert metadata["ptq4vit_onnx.version"] == __version__
    assert metadata["ptq4vit_onnx.weights"] == "embedded"
    assert metadata["ptq4vit_onnx.weights_sha256"] == exported.model.fingerprint
    told = Preprocessing.from_data(json.loads(metadata["ptq4vit_onnx.preprocessing"]))
    assert told == exported.model.preprocessing
    assert (exported.proto.producer_name, exported.proto.graph.name) == ("ptq4vit-onnx", name)


def test_random_weights_are_marked_in_the_metadata() -> None:
    model = load(resolve("vit_digits"), random_weights=True)
    assert metadata_of(model)["ptq4vit_onnx.weights"] == "RANDOM"


@pytest.mark.parametrize("batch", [None, 3])
@pytest.mark.parametrize("name", NAMES)
def test_no_path_and_no_stack_trace_is_left_in_the_bytes(
    name: str, batch: int | None, float_export: Callable[..., Any]
) -> None:
    proto = onnx.ModelProto()
    proto.CopyFrom(float_export(name, batch).proto)
    for tensor in proto.graph.initializer:
        tensor.ClearField("raw_data")  # weights are arbitrary bytes and hold any short text by chance
    data = proto.SerializeToString()
    root = Path(__file__).resolve().parents[2]
    for trace in (str(root), str(Path.home()), sys.prefix, "site-packages", ".py", "Traceback", "pkg.torch"):
        assert trace.encode() not in data


def test_a_graph_with_more_products_than_torch_computed_is_refused(float_export: Callable[..., Any]) -> None:
    exported = float_export("vit_digits")
    proto = onnx.ModelProto()
    proto.CopyFrom(exported.proto)
    with pytest.raises(UserError, match=r"cannot bind sites in .*: torch computed 1 products .*has 0"):
        bind_sites(proto, exported.sites)


def test_a_float_model_that_differs_from_torch_fails_parity(
    float_export: Callable[..., Any], digits: Any, tmp_path: Path
) -> None:
    exported = float_export("vit_digits")
    path = save_model(exported.proto, tmp_path / "float.onnx")
    parity = float_parity(exported.model, path, digits)
    assert parity.passed and 0 < parity.error < 1e-5 and parity.images == 8
    proto = onnx.load(path)
    bias = next(tensor for tensor in proto.graph.initializer if tensor.name == "head.bias")
    bias.raw_data = (onnx.numpy_helper.to_array(bias) + np.float32(0.01)).tobytes()
    onnx.save(proto, path)
    with pytest.raises(ParityError, match="the float ONNX model differs from torch by"):
        float_parity(exported.model, path, digits)


def test_above_two_gigabytes_the_weights_lie_in_one_file_beside(
    float_export: Callable[..., Any], digits: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_proto, "PROTOBUF_LIMIT", 1000)
    proto = onnx.ModelProto()
    proto.CopyFrom(float_export("vit_digits").proto)
    before = proto.SerializeToString(deterministic=True)
    expected = run(proto, digits)
    path = save_model(proto, tmp_path / "float.onnx")
    assert proto.SerializeToString(deterministic=True) == before
    assert {file.name for file in tmp_path.iterdir()} == {"float.onnx", "float.onnx.data"}
    assert path.stat().st_size < 200_000
    assert np.array_equal(run(path, digits), expected)


class Branching(torch.nn.Module):
    """What it computes depends on its pixels' sum: no graph can hold that."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.flatten(1) if x.sum() > 0 else -x.flatten(1)


@pytest.mark.parametrize("batch", [None, 2])
def test_a_model_that_torch_cannot_export_is_refused_in_one_line(
    batch: int | None, capfd: pytest.CaptureFixture[str]
) -> None:
    advice = "its forward must not branch on the values of tensors; choose between them by torch.where$"
    preprocessing = Preprocessing((1, 4, 4), 1.0, "squash", "bilinear", (0.5,), (0.5,))
    model = LoadedModel("branching", Branching(), preprocessing, "random", "", 16)
    with pytest.raises(UserError, match=f"torch cannot export branching to ONNX: .*; {advice}") as caught:
        export_float(model, [], batch)
    assert "\n" not in str(caught.value)
    assert capfd.readouterr() == ("", "")


def depth_of(name: str) -> int:
    return {"swin_t": 12, "swin_s": 24, "swin_b": 24, "swin_b_384": 24}.get(name, 12)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*PAPER_MODELS, "vit_t", "deit_t"])
def test_every_model_exports_with_random_weights_and_agrees_with_torch(name: str, tmp_path: Path) -> None:
    model = load(resolve(name), random_weights=True)
    images = built_in_photos(model.preprocessing, "calibration", 2, 0).images
    sites = discover(model.module, torch.from_numpy(images[:1]))
    reductions = [site for site in sites if site.name.endswith("reduction")]
    assert len(reductions) == (3 if name.startswith("swin") else 0)
    assert len(sites) - len(reductions) == 6 * depth_of(name) + 2
    path = save_model(export_float(model, sites), tmp_path / "float.onnx")
    parity = float_parity(model, path, images, count=2)
    assert parity.error <= FLOAT_TOLERANCE


class _CountsItsImages(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(256, 3)

    def forward(self, x: Any) -> Any:
        return self.head(x.reshape(len(x), 256))


def test_a_forward_that_fixes_the_number_of_images_is_refused_unless_it_is_fixed_by_batch() -> None:
    rule = Preprocessing((1, 16, 16), 1.0, "squash", "bilinear", (0.5,), (0.5,))
    model = LoadedModel("counting", _CountsItsImages().eval(), rule, "random", "", 3)
    sites = discover(model.module, torch.zeros(1, 1, 16, 16))
    with pytest.raises(UserError, match=r"cannot export counting for any number of images.*write x.shape\[0\] there"):
        export_float(model, sites)
    assert export_float(model, sites, batch=1).graph.output[0].name == "logits"


class _Embeds(nn.Module):
    """A tensor inside it gets the name of its output: torch calls what F.embedding returns "embedding"."""

    def __init__(self) -> None:
        super().__init__()
        self.positions, self.fc = nn.Embedding(4, 4), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows: torch.Tensor = self.fc(x.mean(1) + self.positions(torch.arange(4)) * x.mean())
        return rows.mean(1)


def test_an_output_keeps_its_name_if_a_tensor_inside_is_called_the_same() -> None:
    rule = Preprocessing((1, 4, 4), 1.0, "squash", "bilinear", (0.5,), (0.5,))
    module = _Embeds().eval().requires_grad_(False)
    model = LoadedModel("embeds", module, rule, "random", "", 3, kind=KINDS["embedding"], outputs=("embedding",))
    x = torch.randn(3, 1, 4, 4)
    proto = export_float(model, discover(module, x[:1]))
    onnx.checker.check_model(proto, full_check=True)
    assert [item.name for item in proto.graph.output] == ["embedding"]
    np.testing.assert_allclose(run(proto, x.numpy()), module(x).numpy(), atol=1e-5)
