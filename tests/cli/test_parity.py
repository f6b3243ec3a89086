"""`parity`: exit codes, and the site it names."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from ptq4vit_onnx.cli import main as cli
from ptq4vit_onnx.output_kinds.output_kind import Reading
from ptq4vit_onnx.plan.scale_plan import ScalePlan
from ptq4vit_onnx.proof.kernels import KernelAudit, ProductKernel
from ptq4vit_onnx.proof.parity_gate import _judged, _saturation

CHECKS = ["plan", "graph", "kernels", "saturation", "sites", "agreement", "kl", "drop"]
ROOT = Path(__file__).resolve().parents[2]


def lines_of(capsys: pytest.CaptureFixture[str], code: int, *arguments: Any) -> list[str]:
    """What `parity` prints, given that it exits with `code`."""
    assert cli.main(["parity", "--threads", "1", *map(str, arguments)]) == code
    return capsys.readouterr().out.splitlines()


def statuses(lines: list[str]) -> dict[str, str]:
    return {line.split()[1]: line.split()[0] for line in lines if line.startswith(("passed", "failed", "skipped"))}


def with_metadata(path: Path, out: Path, key: str, value: str) -> Path:
    model = onnx.load(path)
    next(entry for entry in model.metadata_props if entry.key == key).value = value
    onnx.save(model, out)
    return out


def with_constant(path: Path, out: Path, node: str, position: int, change: Any) -> Path:
    """A copy of a model in which one constant input of one node is changed."""
    model = onnx.load(path)
    reader = next(item for item in model.graph.node if item.name == node)
    old = next(item for item in model.graph.initializer if item.name == reader.input[position])
    changed = np.asarray(change(numpy_helper.to_array(old)), numpy_helper.to_array(old).dtype)
    model.graph.initializer.append(numpy_helper.from_array(changed, "changed"))
    reader.input[position] = "changed"
    onnx.save(model, out)
    return out


def with_attribute(path: Path, out: Path, node: str, name: str, value: Any) -> Path:
    """A copy of a model in which one attribute of one node, or its operator, is changed; None: is left out."""
    model = onnx.load(path)
    changed = next(item for item in model.graph.node if item.name == node)
    kept = [item for item in changed.attribute if name not in {"op", item.name}]
    del changed.attribute[:]
    if name == "op":
        changed.op_type = value
    elif value is not None:
        kept.append(onnx.helper.make_attribute(name, value))
    changed.attribute.extend(kept)
    onnx.save(model, out)
    return out


@pytest.fixture
def files(exported: Path, digit_files: Path) -> list[Any]:
    """model, its reference, and images with labels"""
    return [exported / "model.onnx", "--reference", exported / "float.onnx", "--data", digit_files]


def test_a_right_model_passes_every_check(files: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    lines = lines_of(capsys, 0, *files, "--max-drop", "0.5", "--max-kl", "0.1")
    assert statuses(lines) == dict.fromkeys(CHECKS, "passed")
    assert "44 of 44 products in integers" in lines[CHECKS.index("kernels")]


def test_without_a_plan_what_needs_one_is_skipped(
    files: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    alone = shutil.copy(files[0], tmp_path)
    lines = lines_of(capsys, 0, alone, *files[1:])
    found = statuses(lines)
    assert lines[-1].startswith("NOT CHECKED, for want of a plan: ")
    assert found["plan"] == found["sites"] == "skipped"
    assert found["kernels"] == found["agreement"] == found["graph"] == found["saturation"] == "passed"
    plan = files[0].with_name("plan.json")
    assert statuses(lines_of(capsys, 0, alone, *files[1:], "--plan", plan))["sites"] == "passed"


@pytest.mark.parametrize(("plan", "status"), [(None, "skipped"), (ScalePlan("m", "", "", {}, {}, {}), "failed")])
def test_a_product_that_the_graph_does_not_bound_fails_only_next_to_a_plan(plan: ScalePlan | None, status: str) -> None:
    product = ProductKernel("blocks.0.attn.pv", "MatMul", "MatMulInteger", True, ("u8", "s8"), "codes up to 255")
    assert _saturation(KernelAudit((product,), {}), plan).status == status


def test_where_no_site_is_wrong_a_limit_that_is_not_reached_names_the_farthest_and_no_first(
    files: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = lines_of(capsys, 1, *files, "--max-kl", "0", "--junit", tmp_path / "parity.xml")
    (failed,) = (line for line in lines if line.startswith("failed"))
    assert failed.split()[1] == "kl"
    assert "no site is far off, the farthest is " in failed
    assert not any("first divergent" in line for line in lines)
    (failure,) = ElementTree.parse(tmp_path / "parity.xml").getroot().iter("failure")
    assert failure.text == "no divergent site was found"


def test_a_required_plan_that_is_not_there_fails_and_every_form_of_output_says_what_was_not_checked(
    files: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    alone, told = shutil.copy(files[0], tmp_path), (tmp_path / "parity.json", tmp_path / "parity.xml")
    lines = lines_of(capsys, 1, alone, *files[1:], "--require-plan", "--json", told[0], "--junit", told[1])
    assert [name for name, status in statuses(lines).items() if status == "failed"] == ["plan"]
    assert "LayerNorms' weights and biases" in lines[-1]
    assert "LayerNorms' weights and biases" in json.loads(told[0].read_text())["not_checked"]
    (written,) = (item.get("value") for item in ElementTree.parse(told[1]).iter("property"))
    assert "LayerNorms' weights and biases" in (written or "")


def test_an_mlp_that_is_passed_by_is_named_where_it_is_missing(
    files: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every product and parameter is still right: only the wiring tells where it went wrong."""
    model = onnx.load(files[0])
    norm, last = (
        next(node for node in model.graph.node if node.name == f"{name}/LayerNormalization")
        for name in ("blocks.3.norm1", "blocks.2.norm2")
    )
    norm.input[0] = last.input[0]  # as if block 2 had no MLP
    onnx.save(model, tmp_path / "m.onnx")
    lines = lines_of(capsys, 1, tmp_path / "m.onnx", *files[1:], "--plan", files[0].with_name("plan.json"))
    assert statuses(lines)["sites"] == "passed"
    assert lines[-1].startswith("first divergent site: blocks.3.norm1/LayerNormalization: ")
    assert "blocks.3.norm1/LayerNormalization reads" in lines[-1]
    lines = lines_of(capsys, 1, tmp_path / "m.onnx", *files[1:])
    assert statuses(lines)["graph"] == "failed"
    assert "reads blocks.2/Add, constants, constants, in the float model blocks.2/Add_1" in "".join(lines)


def test_a_damaged_norm_is_named_with_its_largest_difference(
    files: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    node, junit = "blocks.3.norm1/LayerNormalization", tmp_path / "parity.xml"
    wrong = with_constant(files[0], tmp_path / "m.onnx", node, 1, lambda weight: -3 * weight)
    plan = ("--plan", files[0].with_name("plan.json"))
    lines = lines_of(capsys, 1, wrong, *files[1:], *plan, "--junit", junit)
    assert statuses(lines)["sites"] == "passed"
    assert statuses(lines)["agreement"] == statuses(lines)["graph"] == "failed"
    assert lines[-1].startswith(f"first divergent site: {node}: ")
    failures = [failure.text or "" for failure in ElementTree.parse(junit).getroot().iter("failure")]
    assert len(failures) == 2 and all(f"first divergent site: {node}" in text for text in failures)


@pytest.mark.parametrize(
    ("node", "name", "value", "said"),
    [
        ("blocks.1.norm2/LayerNormalization", "epsilon", 2e-6, "epsilon of {} is 2e-06, expected 1e-06"),
        ("blocks.1.norm2/LayerNormalization", "epsilon", None, "epsilon of {} is absent, expected 1e-06"),
        ("blocks.2.mlp.act/Gelu", "approximate", "tanh", "approximate of {} is 'tanh', expected 'none'"),
        ("blocks.2.mlp.act/Gelu", "op", "Relu", "{} is a Relu, expected Gelu"),
    ],
    ids=["other epsilon", "no epsilon", "other GELU", "no GELU"],
)
def test_an_attribute_that_is_not_the_float_models_is_named(
    node: str, name: str, value: Any, said: str, files: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = with_attribute(files[0], tmp_path / "m.onnx", node, name, value)
    lines = lines_of(capsys, 1, wrong, *files[1:], "--min-agreement", "0", "--plan", files[0].with_name("plan.json"))
    assert [name for name, status in statuses(lines).items() if status == "failed"] == ["graph"]
    assert any(said.format(node) in line for line in lines)
    lines = lines_of(capsys, 1, wrong, *files[1:], "--min-agreement", "0")
    assert [name for name, status in statuses(lines).items() if status == "failed"] == ["graph"]


def test_a_damaged_weight_is_named(files: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def moved(codes: Any) -> Any:
        return np.where(np.arange(codes.size).reshape(codes.shape) == 7, codes // 2 + 1, codes)

    model = onnx.load(files[0])
    product = next(node for node in model.graph.node if node.name == "blocks.2.mlp.fc1/MatMul")
    maker = next(node for node in model.graph.node if product.input[1] in node.output)
    wrong = with_constant(files[0], tmp_path / "m.onnx", maker.name, 0, moved)
    lines = lines_of(capsys, 1, wrong, *files[1:], "--plan", files[0].with_name("plan.json"))
    assert statuses(lines)["sites"] == "failed"
    assert lines[-1].startswith("first divergent site: blocks.2.mlp.fc1: ")


def test_a_wrong_zero_point_is_named_though_no_prediction_changes(
    files: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site = "blocks.1.mlp.fc2"
    model = onnx.load(files[0])
    zero = next(item for item in model.graph.initializer if item.name == f"{site}/lhs/zero_point")
    held = numpy_helper.to_array(zero)
    zero.CopyFrom(numpy_helper.from_array(np.asarray(held + 40, held.dtype), zero.name))
    onnx.save(model, tmp_path / "m.onnx")
    lines = lines_of(capsys, 1, tmp_path / "m.onnx", *files[1:], "--plan", files[0].with_name("plan.json"))
    assert [name for name, status in statuses(lines).items() if status == "failed"] == ["graph", "sites"]
    assert lines[-1].startswith(f"first divergent site: {site}: ")


def test_a_float_model_is_no_integer_model(files: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    lines = lines_of(capsys, 1, files[2], *files[1:])
    assert statuses(lines)["kernels"] == "failed"
    assert lines[-1].startswith("first divergent site: patch_embed.proj: ")


@pytest.mark.parametrize(
    ("position", "bias"), [(0, ("head/Add", 1)), (2, ("head/Gemm", 2))], ids=["model", "reference"]
)
def test_logits_that_are_not_finite_fail_and_leave_no_nan_in_the_json(
    position: int, bias: tuple[str, int], files: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = with_constant(files[position], tmp_path / "wrong.onnx", *bias, lambda values: np.nan * values)
    given = [*files[:position], wrong, *files[position + 1 :]]
    lines = lines_of(capsys, 1, *given, "--json", tmp_path / "parity.json")
    assert f"logits of {wrong} are not finite on 24 of 24 images" in "".join(lines)
    assert [statuses(lines)[name] for name in ("agreement", "kl", "drop")] == ["failed", "skipped", "skipped"]
    assert "NaN" not in (tmp_path / "parity.json").read_text()


@pytest.mark.parametrize("limit", [None, 0.1])
def test_a_value_that_is_no_number_fails_and_is_null(limit: float | None) -> None:
    check = _judged("max_kl", Reading(float("nan"), "KL nan"), limit)
    assert (check.status, check.value) == ("failed", None)


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("ptq4vit_onnx.model", "deit_t", "is deit_t, but"),
        ("ptq4vit_onnx.weights_sha256", "0" * 64, "has other weights of vit_digits (000000000000)"),
    ],
)
def test_a_reference_of_another_model_is_refused(
    key: str, value: str, said: str, files: list[Any], tmp_path: Path, refused: Callable[..., str]
) -> None:
    other = with_metadata(files[2], tmp_path / "float.onnx", key, value)
    assert said in refused("parity", files[0], "--reference", other)


def test_a_reference_that_is_quantised_is_refused(files: list[Any], refused: Callable[..., str]) -> None:
    message = refused("parity", files[0], "--reference", files[0])
    assert f"reference {files[0]} is not a float file: " in message
    assert "give the float.onnx of the same export" in message


def test_a_plan_of_another_model_is_refused(files: list[Any], tmp_path: Path, refused: Callable[..., str]) -> None:
    plan = json.loads(files[0].with_name("plan.json").read_text())
    (tmp_path / "plan.json").write_text(json.dumps({**plan, "weights": "0" * 64}))
    message = refused("parity", *files, "--plan", tmp_path / "plan.json")
    assert "give the plan.json of the same export" in message


def test_a_plan_with_another_number_of_channels_fails(
    files: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = json.loads(files[0].with_name("plan.json").read_text())
    data["sites"]["blocks.0.mlp.fc1"]["channels"].update(scale=[1.0] * 3, shift=[0.0] * 3)
    (tmp_path / "plan.json").write_text(json.dumps(data))
    lines = lines_of(capsys, 1, *files, "--plan", tmp_path / "plan.json")
    assert statuses(lines)["plan"] == statuses(lines)["graph"] == "failed"
    assert any(
        "site blocks.0.mlp.fc1" in line and "channels has 3 scales, the product 64 inputs" in line for line in lines
    )


def test_a_drop_cannot_be_limited_without_labels(
    files: list[Any], tmp_path: Path, refused: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(files[4] / "00.png", tmp_path)
    unlabelled = [*files[:4], tmp_path]
    assert "--max-drop needs labels" in refused("parity", *unlabelled, "--max-drop", "1")
    assert statuses(lines_of(capsys, 0, *unlabelled))["drop"] == "skipped"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--min-agreement", "99"], "expected a share from 0 to 1"),
        (["--min-agreement", "most"], "expected a number of at least 0, got most"),
        (["--max-drop", "-1"], "expected a number of at least 0"),
        (["--plan", "absent.json"], "cannot read plan absent.json"),
        (["--data", "absent"], "does not exist"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_in_the_call_is_one_line(
    arguments: list[str], said: str, files: list[Any], refused: Callable[..., str]
) -> None:
    assert said in refused("parity", *files, *arguments)


def test_the_workflow_in_the_docs_calls_commands_that_exist() -> None:
    yaml = pytest.importorskip("yaml")
    workflow = yaml.safe_load((ROOT / "docs" / "github-actions.yml").read_text())
    steps = workflow["jobs"]["parity"]["steps"]
    text = "\n".join(step.get("run", "").replace("\\\n", " ") for step in steps)
    for name, value in workflow["env"].items():
        text = text.replace(f"${name}", str(value))
    calls = [shlex.split(line.partition(">>")[0])[1:] for line in text.splitlines() if line.startswith("ptq4vit")]
    assert [call[0] for call in calls] == ["export", "parity", "eval"]
    for call in calls:
        assert cli.build_parser().parse_args(call).command
