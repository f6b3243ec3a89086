"""A plan that carries codes of weights goes the whole way, as any other: applied, saved, simulated, proven, checked."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper

from ptq4vit_onnx import pipeline
from ptq4vit_onnx.api import check_parity
from ptq4vit_onnx.errors import UserError
from ptq4vit_onnx.files.outputs import EXPORT_FILES
from ptq4vit_onnx.images.embedded import embedded_digits
from ptq4vit_onnx.network.plan_fit import require_plan_fits
from ptq4vit_onnx.plan.code_file import codes_path
from ptq4vit_onnx.plan.plan_json import read_plan, write_plan
from ptq4vit_onnx.plan.saturation_safe_weights import shipped
from ptq4vit_onnx.plan.scale_plan import ScalePlan
from ptq4vit_onnx.report.table import describe
from ptq4vit_onnx.request import ExportRequest
from ptq4vit_onnx.simulation.fake import simulate
from tests.stored_codes import OUTLIER, WIDTHS, plan_with_codes, with_codes

REPRODUCED = ("model.onnx", "plan.json", "plan.safetensors")
SITE = "blocks.1.mlp.fc1"


@pytest.fixture(scope="module")
def plan(exported: Path) -> ScalePlan:
    return plan_with_codes(exported)


def values_of(plan: ScalePlan, site: str = SITE) -> Any:
    codes = plan.sites[site].rhs.carried
    assert codes is not None and codes.values is not None
    return codes.values.copy()


@pytest.fixture(scope="module")
def quantised(exported: Path, plan: ScalePlan, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with float.onnx, model.onnx, plan.json and plan.safetensors, without proof."""
    from ptq4vit_onnx.passes import quantize

    folder = tmp_path_factory.mktemp("quantised")
    proto = onnx.load(exported / "float.onnx")
    onnx.save(proto, folder / "float.onnx")
    onnx.save(quantize(proto, plan)[0], folder / "model.onnx")
    write_plan(plan, folder / "plan.json")
    return folder


@pytest.mark.usefixtures("quick_spine")
def test_an_export_by_a_plan_with_codes_is_proven_and_gives_the_same_bytes_again(
    plan: ScalePlan, tmp_path: Path
) -> None:
    write_plan(plan, tmp_path / "given.json")
    pipeline.export(ExportRequest(plan=tmp_path / "given.json", output=tmp_path / "out"))
    pipeline.export(ExportRequest(plan=tmp_path / "out" / "plan.json", output=tmp_path / "again"))
    assert {file.name for file in (tmp_path / "out").iterdir()} <= set(EXPORT_FILES), "--force may replace it"
    for name in REPRODUCED:
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "again" / name).read_bytes(), name
    assert (tmp_path / "given.safetensors").read_bytes() == (tmp_path / "out" / "plan.safetensors").read_bytes()
    assert read_plan(tmp_path / "out" / "plan.json") == plan
    data = json.loads((tmp_path / "out" / "report.json").read_text())
    assert data["end_to_end"]["identical"] == 100, "file and exact simulator, bit for bit"
    assert all(item["exact"] for item in data["site_parity"])
    assert describe(plan.sites[SITE].rhs).startswith("symmetric, errors compensated, 4 bits, steps ")


def test_the_codes_ship_as_they_are_stored_and_are_not_the_nearest(quantised: Path, exported: Path) -> None:
    plan, before = read_plan(quantised / "plan.json"), onnx.load(exported / "model.onnx")
    after = onnx.load(quantised / "model.onnx")

    def held(model: Any, site: str) -> Any:
        return next(numpy_helper.to_array(i) for i in model.graph.initializer if i.name == f"{site}/weight")

    for site, bits in WIDTHS.items():
        if bits == 8:  # fewer are packed
            assert np.array_equal(held(after, site), values_of(plan, site))
            assert not np.array_equal(held(after, site), held(before, site))


def test_both_simulators_and_numpy_take_the_stored_codes(plan: ScalePlan, load_model: Callable[[str], Any]) -> None:
    site, weight = plan.sites[SITE], np.zeros((64, 256), np.float32)
    expected = values_of(plan) * np.asarray(site.rhs.scale, np.float32)
    assert np.array_equal(shipped(weight, site.lhs, site.rhs), expected)
    assert torch.equal(shipped(torch.from_numpy(weight), site.lhs, site.rhs), torch.from_numpy(expected))
    assert np.array_equal(values_of(plan) * np.asarray(site.rhs.scale, np.float32), expected), "a copy was decoded"
    model = load_model("vit_digits")
    images = embedded_digits(model.preprocessing, "test").images[:4]
    zeros = with_codes(plan, "head", np.zeros_like(values_of(plan, "head")))
    assert not np.array_equal(simulate(model.module, plan, images), simulate(model.module, zeros, images))


def test_parity_passes_where_the_plan_is_required(quantised: Path) -> None:
    found = check_parity(quantised / "model.onnx", quantised / "float.onnx", require_plan=True, images=20,
                         min_agreement=0.5)  # fmt: skip
    assert found.passed, [check for check in found.checks if check.status == "failed"]


def test_parity_fails_where_a_code_and_its_digest_were_changed(
    quantised: Path, plan: ScalePlan, tmp_path: Path
) -> None:
    values = values_of(plan)
    values[5, 7] += 1 if values[5, 7] < 7 else -1
    write_plan(with_codes(plan, SITE, values), tmp_path / "plan.json")
    found = check_parity(quantised / "model.onnx", quantised / "float.onnx", plan=tmp_path / "plan.json", images=4)
    checks = {check.name: check for check in found.checks}
    assert not found.passed
    assert checks["plan"].status == checks["graph"].status == checks["sites"].status == "failed"
    assert checks["graph"].site == checks["sites"].site == SITE
    assert "differs in 1 of" in checks["graph"].sentence


def test_codes_of_another_shape_than_the_models_weight_are_refused(
    plan: ScalePlan, float_export: Callable[..., Any]
) -> None:
    made = float_export("vit_digits")
    require_plan_fits(plan, made.model, made.sites)
    for site, own in ((SITE, [64, 256]), ("patch_embed.proj", list(values_of(plan, "patch_embed.proj").shape))):
        wrong = with_codes(plan, site, values_of(plan, site)[:-2])
        with pytest.raises(UserError) as caught:
            require_plan_fits(wrong, made.model, made.sites)
        said = f"{site} has a weight {own}, the plan codes of {[own[0] - 2, own[1]]}; calibrate again"
        assert str(caught.value) == f"the plan does not fit vit_digits: {said}"


def test_parity_by_codes_of_another_shape_fails_in_words(quantised: Path, plan: ScalePlan, tmp_path: Path) -> None:
    write_plan(with_codes(plan, SITE, values_of(plan)[:-2]), tmp_path / "plan.json")
    found = check_parity(quantised / "model.onnx", quantised / "float.onnx", plan=tmp_path / "plan.json", images=4)
    graph = next(check for check in found.checks if check.name == "graph")
    assert graph.status == "failed"
    assert "the plan's codes are of a weight [62, 256], this one is [64, 256]" in graph.sentence


@pytest.mark.usefixtures("quick_spine")
def test_mistakes_on_the_command_line_are_one_line(
    quantised: Path, plan: ScalePlan, refused: Callable[..., str], tmp_path: Path
) -> None:
    path = tmp_path / "plan.json"
    write_plan(plan, path)
    write_plan(with_codes(plan, SITE, values_of(plan)[:-2]), tmp_path / "small.json")
    assert "the plan codes of [62, 256]" in refused(
        "export", "--plan", tmp_path / "small.json", "--output", tmp_path / "out"
    )
    codes_path(path).unlink()
    files = (quantised / "model.onnx", "--reference", quantised / "float.onnx", "--plan", path)
    for command in (("export", "--plan", path, "--output", tmp_path / "out"), ("parity", *files)):
        said = refused(*command)
        assert f"cannot read the plan's codes (of patch_embed.proj) {codes_path(path)}: No such file" in said
        assert "put the plan.safetensors of the same export there, or calibrate again without --plan" in said
    result = quantised / "plan.safetensors"
    arguments = ("parity", quantised / "model.onnx", "--reference", quantised / "float.onnx", "--json", result)
    assert "is the plan's codes as well" in refused(*arguments)


def test_outliers_are_apart_from_stored_codes(plan: ScalePlan, tmp_path: Path) -> None:
    values = values_of(plan, "head")
    assert not values[OUTLIER].any() and values[OUTLIER + 1].any()
    values[OUTLIER, 0] = 1
    with pytest.raises(ValueError, match=f"zeros at outlier channel {OUTLIER}, got others"):
        write_plan(with_codes(plan, "head", values), tmp_path / "plan.json")
