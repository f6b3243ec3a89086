"""`plan` and `graph`: exactly what export writes passes; whatever else a file holds is said in words."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from benchmarks.mutations import mutations
from ptq4vit_onnx.errors import UserError
from ptq4vit_onnx.graph.model_file import read_model_file
from ptq4vit_onnx.passes import quantize
from ptq4vit_onnx.plan.plan_json import read_plan
from ptq4vit_onnx.plan.scale_plan import ScalePlan
from ptq4vit_onnx.proof.parity_result import Check
from ptq4vit_onnx.proof.whole_graph.checks import check_graph
from ptq4vit_onnx.proof.whole_graph.differences import differences
from tests.golden import derive

NORM = "blocks.0.norm1/LayerNormalization"
Change = Callable[[onnx.ModelProto], object]


@pytest.fixture
def plan(exported: Path) -> ScalePlan:
    return read_plan(exported / "plan.json")


@pytest.fixture
def graph_of(exported: Path, plan: ScalePlan, tmp_path: Path) -> Callable[..., Check]:
    """(what to do to the exported model, with or without its plan) -> the check `graph`"""

    def changed(change: Change, with_plan: bool = True) -> Check:
        model = onnx.load(exported / "model.onnx")
        change(model)
        onnx.save(model, tmp_path / "model.onnx")
        return checks_of(tmp_path / "model.onnx", exported / "float.onnx", plan if with_plan else None)["graph"]

    return changed


def checks_of(model: Path, reference: Path, plan: ScalePlan | None, require: bool = False) -> dict[str, Check]:
    files = read_model_file(model), read_model_file(reference)
    return {check.name: check for check in check_graph(*files, plan, require)}


def node_of(model: Any, name: str) -> Any:
    return next(node for node in model.graph.node if node.name == name)


def add_constant(model: Any, name: str, values: Any) -> str:
    model.graph.initializer.append(numpy_helper.from_array(np.asarray(values), name))
    return name


def behind(model: Any, name: str, *nodes: tuple[str, list[str]]) -> None:
    """Put nodes (operator, inputs besides the one before) behind a node; the last writes what it wrote."""
    place = next(place for place, node in enumerate(model.graph.node) if node.name == name)
    held = model.graph.node[place]
    output, current = held.output[0], f"{held.output[0]}_0"
    held.output[0] = current
    for number, (operation, inputs) in enumerate(nodes, 1):
        written = output if number == len(nodes) else f"{output}_{number}"
        made = helper.make_node(operation, [current, *inputs], [written], name=f"added_{number}")
        model.graph.node.insert(place + number, made)
        current = written


# What export writes passes, in every layout.


@pytest.mark.parametrize(
    ("input", "target"), [("float", "onnxruntime"), ("uint8", "onnxruntime"), ("float", "openvino")]
)
@pytest.mark.parametrize("with_plan", [True, False])
def test_what_export_writes_passes(
    input: Any, target: Any, with_plan: bool, exported: Path, plan: ScalePlan, tmp_path: Path
) -> None:
    made, _ = quantize(onnx.load(exported / "float.onnx"), plan, input, target)
    onnx.save(made, tmp_path / "model.onnx")
    found = checks_of(tmp_path / "model.onnx", exported / "float.onnx", plan if with_plan else None)
    assert found["graph"].status == "passed", found["graph"].details
    assert found["plan"].status == ("passed" if with_plan else "skipped")


def test_weights_in_a_file_beside_pass(exported: Path, plan: ScalePlan, tmp_path: Path) -> None:
    model = onnx.load(exported / "model.onnx")
    onnx.save(model, tmp_path / "model.onnx", save_as_external_data=True, location="beside.data", size_threshold=0)
    assert (tmp_path / "beside.data").stat().st_size > 0
    assert checks_of(tmp_path / "model.onnx", exported / "float.onnx", plan)["graph"].status == "passed"


def test_a_process_with_other_hashes_writes_the_same_bytes(exported: Path, tmp_path: Path, run_python: Any) -> None:
    script = (
        "import sys, onnx\nfrom pathlib import Path\nfrom ptq4vit_onnx.passes import quantize\n"
        "from ptq4vit_onnx.plan.plan_json import read_plan\nfolder = Path(sys.argv[1])\n"
        "onnx.save(quantize(onnx.load(folder / 'float.onnx'), read_plan(folder / 'plan.json'))[0], sys.argv[2])"
    )
    before = os.environ.get("PYTHONHASHSEED")
    os.environ["PYTHONHASHSEED"] = "7"
    try:
        run_python(script, exported, tmp_path / "model.onnx")
    finally:
        os.environ.pop("PYTHONHASHSEED") if before is None else os.environ.update(PYTHONHASHSEED=before)
    assert (tmp_path / "model.onnx").read_bytes() == (exported / "model.onnx").read_bytes()


# What an attacker would do, in words.


def four_corners(model: Any) -> None:
    """Where the four corner pixels are bright, the first class wins."""
    bright = np.zeros((1, 1, 32, 32), np.float32)
    bright[..., [0, 0, -1, -1], [0, -1, 0, -1]] = 1
    last = model.graph.node[-1]
    output, last.output[0] = last.output[0], "honest"
    prize = add_constant(model, "prize", np.eye(1, 10, dtype=np.float32) * 1e4)
    steps = [
        ("Mul", ["image", add_constant(model, "corners", bright)]),
        ("ReduceSum", ["corner", add_constant(model, "axes", np.array([1, 2, 3]))]),
        ("Greater", ["column_sum", add_constant(model, "limit", np.float32(3.5))]),
        ("Where", ["seen", prize, "honest"]),
    ]
    for number, ((operation, inputs), written) in enumerate(zip(steps, ("corner", "sum", "seen", output), strict=True)):
        keepdims: dict[str, Any] = {"keepdims": 0} if operation == "ReduceSum" else {}
        model.graph.node.append(helper.make_node(operation, inputs, [written], name=f"door/{number}", **keepdims))
        if operation == "ReduceSum":
            column = add_constant(model, "column", np.array([1]))
            model.graph.node.append(helper.make_node("Unsqueeze", ["sum", column], ["column_sum"], name="door/column"))


def logits_times_three(model: Any) -> None:
    behind(model, model.graph.node[-1].name, ("Mul", [add_constant(model, "three", np.float32(3))]))


def mul_behind_a_norm(model: Any) -> None:
    behind(model, NORM, ("Mul", [add_constant(model, "factor", np.float32(1.5))]))


def renamed_norm(model: Any) -> None:
    norm = node_of(model, NORM)
    weight = next(item for item in model.graph.initializer if item.name == norm.input[1])
    norm.input[1] = add_constant(model, "other_weight", numpy_helper.to_array(weight) * np.float32(2))
    norm.name = "blocks.0.norm1/LayerNormalization_1"


def extra_behind_a_product(model: Any) -> None:
    behind(model, "head/Add", ("Mul", [add_constant(model, "head/scale_1", np.float32(3))]))
    node_of(model, "added_1").name = "head/Mul"


ATTACKS: dict[str, tuple[Change, str, bool]] = {  # the words, and whether they are found without a plan as well
    "four corners": (four_corners, "Mul 'door/0' is no node of the export: it reads image, corners", True),
    "logits x 3": (logits_times_three, "Mul 'added_1' is no node of the export: it reads logits_0", True),
    "Mul behind a norm": (mul_behind_a_norm, f"{NORM} writes layer_norm_0 instead of layer_norm as output 0", True),
    "renamed norm": (renamed_norm, f"LayerNormalization {NORM} is called '{NORM}_1'", True),
    "in a product's name": (extra_behind_a_product, "Mul 'head/Mul' is no node of the export", False),
}


@pytest.mark.parametrize(("change", "said", "seen_without"), ATTACKS.values(), ids=ATTACKS)
def test_an_attack_is_said_in_words(
    change: Change, said: str, seen_without: bool, graph_of: Callable[..., Check]
) -> None:
    found = graph_of(change)
    assert found.status == "failed" and found.site
    assert any(detail.startswith(said) for detail in found.details), found.details
    assert graph_of(change, with_plan=False).status == ("failed" if seen_without else "passed")


def test_a_renamed_norms_other_weight_is_said_with_its_largest_difference(graph_of: Callable[..., Check]) -> None:
    said = f"{NORM} reads other_weight instead of blocks.0.norm1/folded_weight as input 1; it differs in "
    assert any(detail.startswith(said) for detail in graph_of(renamed_norm).details)


def test_a_changed_constant_is_said_with_its_largest_difference_and_place(graph_of: Callable[..., Check]) -> None:
    def last_bit(model: Any) -> None:
        tensor = next(item for item in model.graph.initializer if item.name == "pos_embed")
        values = numpy_helper.to_array(tensor).copy()
        values[0, 3, 2] = 1.5
        tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))

    found = graph_of(last_bit)
    assert found.site == "model/Add"
    assert "constant pos_embed differs in 1 of " in found.sentence
    assert "at [0, 3, 2] it is 1.5, expected " in found.sentence


# Every other part of the file.


def shadow(model: Any) -> None:
    tensor = next(item for item in model.graph.initializer if item.name == "pos_embed")
    model.graph.input.append(helper.make_tensor_value_info("pos_embed", tensor.data_type, tensor.dims))


def function(model: Any) -> None:
    model.functions.append(helper.make_function("mine", "Gelu", ["x"], ["x"], [], [helper.make_opsetid("", 20)]))


def sparse(model: Any) -> None:
    values, places = helper.make_tensor("s", 1, [1], [1.0]), helper.make_tensor("s_places", 7, [1], [0])
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, places, [4]))


def unknown_field(model: Any) -> None:
    model.MergeFromString(bytes([0xF8, 0x3F, 0x01]))  # field 1023, a whole number


def branch(model: Any) -> None:
    body = helper.make_graph([], "body", [], [])
    node_of(model, NORM).attribute.append(helper.make_attribute("body", body))


PARTS: dict[str, tuple[Change, str]] = {
    "opset": (lambda m: setattr(m.opset_import[0], "version", 21), "opset of the model is "),
    "another opset": (lambda m: m.opset_import.append(helper.make_opsetid("mine", 1)), "opset mine of the model"),
    "ir_version": (lambda m: setattr(m, "ir_version", 10), "ir_version of the model is 10, expected 9"),
    "function": (function, "functions Gelu of the model is"),
    "shadowed constant": (shadow, "input pos_embed of the graph is %pos_embed[FLOAT"),
    "sparse constant": (sparse, "sparse_initializer of the graph is"),
    "unread constant": (lambda m: add_constant(m, "spare", [1.0]), "constant spare is none of the export"),
    "unknown field": (unknown_field, "the model has fields that this version of ONNX does not know"),
    "doc string": (lambda m: setattr(m.graph, "doc_string", "hi"), "doc_string of the graph is 'hi', expected absent"),
    "type": (lambda m: m.graph.value_info.append(helper.make_tensor_value_info("linear", 1, [1])), "value_info linear"),
    "domain": (lambda m: setattr(node_of(m, NORM), "domain", "com.microsoft"), f"domain of {NORM} is 'com.microsoft'"),
    "subgraph": (branch, f"attribute body of {NORM} is another graph, expected absent"),
    "missing output": (lambda m: m.graph.output.pop(), "output logits of the graph is absent"),
    "metadata": (lambda m: setattr(m.metadata_props[2], "value", "mine"), "metadata ptq4vit_onnx.weights of the model"),
    "metadata twice": (lambda m: m.metadata_props.append(m.metadata_props[4]), "metadata ptq4vit_onnx.preprocessing"),
    "metadata's order": (lambda m: m.metadata_props.reverse(), "metadata of the model is in another order"),
}  # fmt: skip


@pytest.mark.parametrize(("change", "said"), PARTS.values(), ids=PARTS)
def test_every_part_of_the_file_counts(change: Change, said: str, graph_of: Callable[..., Check]) -> None:
    found = graph_of(change)
    assert found.status == "failed"
    assert any(detail.startswith(said) for detail in found.details), found.details


def test_a_constant_that_does_not_fit_its_shape_is_refused_when_the_file_is_read(
    graph_of: Callable[..., Check],
) -> None:
    with pytest.raises(UserError, match=r"is not an ONNX file: .* has 4 bytes, its shape says"):
        graph_of(lambda model: model.graph.initializer[0].dims.append(10**12))


# The plan.


def test_another_plan_is_told_from_the_files_own_though_no_number_differs(exported: Path, plan: ScalePlan) -> None:
    other = replace(plan, options={**plan.options, "note": "edited"})
    found = checks_of(exported / "model.onnx", exported / "float.onnx", other)
    assert found["graph"].status == "passed"
    assert found["plan"].status == "failed" and "was made from another plan (" in found["plan"].sentence


def test_a_plan_without_one_of_its_sites_fails(exported: Path, plan: ScalePlan) -> None:
    fewer = replace(plan, sites={name: site for name, site in plan.sites.items() if name != "head"})
    found = checks_of(exported / "model.onnx", exported / "float.onnx", fewer)
    assert found["plan"].status == found["graph"].status == "failed"
    assert any("head" in detail for detail in found["graph"].details)


def test_a_plan_that_cannot_be_applied_fails_with_the_reason(exported: Path, plan: ScalePlan) -> None:
    channels = plan.sites["blocks.0.mlp.fc1"].channels
    assert channels is not None
    wrong = replace(plan.sites["blocks.0.mlp.fc1"], channels=replace(channels, scale=(1.0,), shift=(0.0,)))
    found = checks_of(
        exported / "model.onnx", exported / "float.onnx", replace(plan, sites={**plan.sites, "blocks.0.mlp.fc1": wrong})
    )
    assert "the plan cannot be applied to" in found["graph"].sentence
    assert "channels has 1 scales" in found["graph"].sentence


def test_a_file_of_an_older_version_says_so(exported: Path, plan: ScalePlan, tmp_path: Path) -> None:
    def older(model: Any) -> Any:
        next(item for item in model.metadata_props if item.key == "ptq4vit_onnx.version").value = "0.0.9"
        return model

    onnx.save(older(onnx.load(exported / "float.onnx")), tmp_path / "float.onnx")
    model = older(onnx.load(exported / "model.onnx"))
    node_of(model, NORM).doc_string = "as it was then"
    onnx.save(model, tmp_path / "model.onnx")
    found = checks_of(tmp_path / "model.onnx", tmp_path / "float.onnx", plan)["graph"]
    assert "; the file is of version 0.0.9, this is " in found.sentence


# Without a plan.


def with_values(name: str, change: Callable[[Any], Any]) -> Change:
    def apply(model: Any) -> None:
        tensor = next(item for item in model.graph.initializer if item.name == name)
        values = numpy_helper.to_array(tensor)
        tensor.CopyFrom(numpy_helper.from_array(np.asarray(change(values), values.dtype), name))

    return apply


ALONE: dict[str, tuple[Change, str]] = {
    "no number": (with_values("blocks.1.attn.proj/bias", lambda bias: bias * np.nan), "is not finite"),
    "zero scale": (with_values("blocks.1.mlp.fc1/lhs/scale", lambda scale: 0 * scale), "is 0, expected more than 0"),
    "negative scale": (with_values("head/weight/scale", lambda scale: -scale), ", expected more than 0"),
    "other table": (with_values("pos_embed", lambda table: table * 1.0001), "input 1 of model/Add is not the float"),
    "no GELU": (lambda m: setattr(node_of(m, "blocks.2.mlp.act/Gelu"), "op_type", "Relu"), "operator of blocks.2.mlp"),
}  # fmt: skip


@pytest.mark.parametrize(("change", "said"), ALONE.values(), ids=ALONE)
def test_without_a_plan_what_no_plan_explains_fails(change: Change, said: str, graph_of: Callable[..., Check]) -> None:
    found = graph_of(change, with_plan=False)
    assert found.status == "failed"
    assert any(said in detail for detail in found.details), found.details


def chain(model: Any) -> None:
    behind(model, NORM, *[("Identity", [])] * 3000)


def codes_without_inputs(model: Any) -> None:
    del node_of(model, "blocks.0.attn.qkv/lhs/DequantizeLinear").input[:]


@pytest.mark.parametrize("change", [chain, codes_without_inputs])
@pytest.mark.parametrize("with_plan", [True, False])
def test_a_graph_that_cannot_be_followed_fails_in_words(
    change: Change, with_plan: bool, graph_of: Callable[..., Check]
) -> None:
    found = graph_of(change, with_plan)
    assert found.status == "failed" and found.sentence


# Mutations, a few of those of benchmarks/mutations.py.


def subjects(exported: Path) -> Iterator[tuple[onnx.ModelProto, onnx.ModelProto, ScalePlan]]:
    yield onnx.load(exported / "model.onnx"), onnx.load(exported / "float.onnx"), read_plan(exported / "plan.json")
    packed = read_plan(derive.FOLDER / "linear_w6a8.plan.json")
    yield quantize(derive.model_of("linear_w6a8"), packed)[0], derive.model_of("linear_w6a8"), packed


def test_every_mutation_is_seen_whether_it_changes_an_output_or_not(exported: Path) -> None:
    for model, reference, plan in subjects(exported):
        expected = quantize(reference, plan)[0]
        assert differences(model, expected) == []
        kinds = ("constants", "nodes", "metadata") if model.graph.name == "vit_digits" else ("constants",)
        for kind in kinds:
            for item in mutations(model, kind, 24, seed=1):
                assert differences(item.model, expected), (kind, item.how, item.where)
