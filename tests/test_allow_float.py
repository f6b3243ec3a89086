"""A ViT with a convolutional stem: integers where they can be, float where they are allowed, and a proof of both."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from torch import Tensor, nn

from ptq4vit_onnx import pipeline
from ptq4vit_onnx.api import check_parity
from ptq4vit_onnx.errors import UserError
from ptq4vit_onnx.pipeline import export
from ptq4vit_onnx.plan.options import Options
from ptq4vit_onnx.plan.plan_json import read_plan, write_plan
from ptq4vit_onnx.report.data import Report
from ptq4vit_onnx.report.terminal import rows
from ptq4vit_onnx.request import ExportRequest

QUICK = Options(images=4, candidates=8, rounds=1, weights="per-tensor", metric="mse")
FLOATS = ("stem.0", "stem.6", "mix")


class Hybrid(nn.Module):
    """An overlapping stem of one colour and a depthwise convolution stay in float; the rest is products."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(1, 24, 3, 2, 1, bias=False), nn.BatchNorm2d(24), nn.ReLU(),
            nn.Conv2d(24, 32, 3, 1, 1, bias=False), nn.BatchNorm2d(32), nn.SiLU(),
            nn.Conv2d(32, 32, 3, 1, 1, groups=32), nn.Hardswish(),
            nn.Conv2d(32, 32, 1, 2), nn.BatchNorm2d(32),
        )  # fmt: skip
        self.qkv, self.mix, self.head = nn.Linear(32, 96), nn.Linear(32, 32), nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.stem(x).flatten(2).transpose(1, 2)
        q, k, v = self.qkv(tokens)[:, None].chunk(3, -1)
        tokens = tokens + ((q @ k.transpose(-2, -1)).softmax(-1) @ v)[:, 0]
        tokens = tokens + self.mix(self.mix(tokens))  # a weight that two products share
        out: Tensor = self.head(tokens.mean(1))
        return out


def _hybrid() -> Hybrid:
    torch.manual_seed(0)
    model = Hybrid().eval()
    for norm in (item for item in model.modules() if isinstance(item, nn.BatchNorm2d)):
        for values in (norm.running_mean, norm.running_var, norm.weight):
            assert values is not None
            values.data.uniform_(0.5, 2.0)
    return model


@pytest.fixture(scope="module")
def hybrid(load_model: Callable[[str], Any]) -> Any:
    return replace(load_model("vit_digits"), module=_hybrid(), origin="random", fingerprint="f" * 64)


@pytest.fixture
def loaded(hybrid: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "load_for", lambda *_: hybrid)


@pytest.fixture(scope="module")
def exported(hybrid: Any, tmp_path_factory: pytest.TempPathFactory) -> Report:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline, "load_for", lambda *_: hybrid)
        folder = tmp_path_factory.mktemp("hybrid") / "out"
        return export(ExportRequest(options=QUICK, output=folder, allow_float=True))


def test_the_table_and_the_report_name_what_stays_in_float(exported: Report) -> None:
    written, table = json.loads((exported.folder / "report.json").read_text()), dict(rows(exported))
    assert str(exported.kernels).startswith("6 of 10 products in integers, 4 stay in float as the plan says")
    assert table["kernels"].startswith(str(exported.kernels))
    assert set(written["float_products"]) == set(FLOATS)
    assert written["float_products"]["mix"] == "its weight is used by more than one product"
    page = (exported.folder / "report.html").read_text()
    assert all(f"<dt>{name}</dt><dd>{reason}</dd>" in page for name, reason in written["float_products"].items())
    assert [text for title, text in rows(exported) if title == "in float"][1].startswith("1 product (stem.6): a conv")


def test_the_file_is_the_simulators_bit_for_bit_though_part_of_it_is_float(exported: Report) -> None:
    assert exported.end_to_end.identical == 100
    assert exported.exact_products == "6 of 6"


def test_the_plan_knows_the_floats_and_applied_again_gives_the_same_file(
    exported: Report, tmp_path: Path, loaded: None
) -> None:
    plan = exported.folder / "plan.json"
    assert set(read_plan(plan).floats) == set(FLOATS)
    export(ExportRequest(plan=plan, output=tmp_path / "again"))
    first, second = ((folder / "model.onnx").read_bytes() for folder in (exported.folder, tmp_path / "again"))
    assert first == second


def test_a_plan_that_lists_other_floats_does_not_fit(exported: Report, tmp_path: Path, loaded: None) -> None:
    plan = read_plan(exported.folder / "plan.json")
    write_plan(replace(plan, floats={"mix": "why not"}), tmp_path / "plan.json")
    with pytest.raises(UserError, match=r"stem\.0 is in only one of them"):
        export(ExportRequest(plan=tmp_path / "plan.json", output=tmp_path / "out"))


def test_without_the_option_the_refusal_names_the_products_and_the_option(tmp_path: Path, loaded: None) -> None:
    with pytest.raises(UserError, match=r"4 of 10 products .*stem\.0: .*; stem\.6: .* 32 groups.*--allow-float"):
        export(ExportRequest(options=QUICK, output=tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_parity_knows_the_listed_floats_and_catches_one_that_is_not(exported: Report, tmp_path: Path) -> None:
    files = exported.folder / "model.onnx", exported.folder / "float.onnx"
    whole = check_parity(*files, images=8, min_agreement=0.0)
    checks = {check.name: check for check in whole.checks}
    assert checks["kernels"].status == checks["sites"].status == checks["graph"].status == "passed"
    assert "4 stay in float as the plan says" in checks["kernels"].sentence
    plan = read_plan(exported.folder / "plan.json")
    fewer = {name: reason for name, reason in plan.floats.items() if name != "stem.6"}
    write_plan(replace(plan, floats=fewer), tmp_path / "plan.json")
    found = check_parity(*files, plan=tmp_path / "plan.json", images=8, min_agreement=0.0)
    kernels = next(check for check in found.checks if check.name == "kernels")
    assert (kernels.status, kernels.site) == ("failed", "stem.6")


def test_parity_catches_an_extra_float_product_that_is_named_like_a_listed_one(
    exported: Report, tmp_path: Path
) -> None:
    model = onnx.load(exported.folder / "model.onnx")
    place, listed = [pair for pair in enumerate(model.graph.node) if pair[1].name.startswith("mix/float_")][-1]
    output, listed.output[0] = listed.output[0], "once"
    extra = onnx.helper.make_node("MatMul", ["once", listed.input[1]], [output], name="mix/float_MatMul_9")
    model.graph.node.insert(place + 1, extra)
    onnx.save(model, tmp_path / "model.onnx")
    for plan in (exported.folder / "plan.json", None):
        files = tmp_path / "model.onnx", exported.folder / "float.onnx"
        found = check_parity(*files, plan=plan, images=8, min_agreement=0.0)
        graph = next(check for check in found.checks if check.name == "graph")
        assert graph.status == "failed"
        assert any("MatMul 'mix/float_MatMul_9'" in detail for detail in graph.details)


def test_the_users_module_is_left_as_it_was(exported: Report, hybrid: Any) -> None:
    fresh = _hybrid()
    for (name, held), (_, wanted) in zip(hybrid.module.state_dict().items(), fresh.state_dict().items(), strict=True):
        assert torch.equal(held, wanted), name
