"""ONNX files and their metadata."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import onnx

from ptq4vit_onnx.graph.model_file import is_float, read_model_file
from ptq4vit_onnx.plan.plan_json import read_plan
from tests.fuzz.mutations import changed_bytes, changed_json
from tests.fuzz.targets.target import Target


class OnnxFiles(Target):
    """A quantised file and its plan and reference: the message changed place by place, and as bytes.

    Only what reads files is called, and what looks into graphs. Engines run graphs in C++, outside of this program.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.model = onnx.load(str(folder / "model.onnx"))

    def attack(self, random: Random, folder: Path) -> None:
        from ptq4vit_onnx.evaluation.evaluate import evaluate_files
        from ptq4vit_onnx.images.stream import ImageSource
        from ptq4vit_onnx.proof.parity_gate import check_files

        model = onnx.ModelProto()
        model.CopyFrom(self.model)
        for _ in range(random.choice((1, 1, 2, 3))):
            random.choice(_GRAPHS)(model, random)
        data = model.SerializeToString()
        path = folder / "model.onnx"
        path.write_bytes(changed_bytes(data, random) if random.random() < 0.3 else data)
        file, reference = read_model_file(path), read_model_file(self.folder / "float.onnx")
        is_float(file)
        source = ImageSource(None, 4)
        evaluate_files([file], source, reference, 1, 4, lambda items, _: items)
        if random.random() < 0.7:
            check_files(file, reference, source, read_plan(self.folder / "plan.json"))


def _metadata(model: onnx.ModelProto, random: Random) -> None:
    entry = random.choice(model.metadata_props)
    if entry.key.endswith("preprocessing") and random.random() < 0.8:
        text = changed_json(json.loads(entry.value), random) if entry.value.startswith("{") else entry.value.encode()
        entry.value = text.decode("utf-8", "replace")
    else:
        entry.value = random.choice(
            ("", "[" * 100000, "logits", "embedding", "vit_digits", "\x00", "x" * 5000, "{}", "7")
        )


def _initializer(model: onnx.ModelProto, random: Random) -> None:
    tensor = random.choice(model.graph.initializer)
    change = random.randrange(8)
    if change == 0:
        tensor.raw_data = changed_bytes(tensor.raw_data, random)
    elif change == 1:
        tensor.dims[:] = random.choice(([], [0], [2**40, 2**40], [-1], [1] * 70, [*tensor.dims, 1]))
    elif change == 2:
        tensor.data_type = random.randrange(30)
    elif change == 3:
        tensor.data_location = onnx.TensorProto.EXTERNAL
        entry = tensor.external_data.add()
        entry.key, entry.value = "location", random.choice(("/dev/zero", "../x", "", "absent", "\x00", "model.onnx"))
    elif change == 4:
        tensor.name = random.choice(("", model.graph.initializer[0].name, "x"))
    elif change == 5:
        model.graph.initializer.remove(tensor)
    elif change == 6:
        tensor.raw_data = bytes(len(tensor.raw_data))
    else:
        tensor.raw_data = bytes([random.choice((0x7F, 0x80, 0xFF))]) * len(tensor.raw_data)


def _node(model: onnx.ModelProto, random: Random) -> None:
    node, other = random.choice(model.graph.node), random.choice(model.graph.node)
    change = random.randrange(7)
    if change == 0:
        node.op_type = random.choice(("", "Identity", "Relu", "Loop", "Foo", other.op_type))
    elif change == 1:
        node.name = random.choice(("", other.name, "x"))
    elif change == 2 and node.input:
        node.input[random.randrange(len(node.input))] = random.choice((*other.output, "", "absent"))
    elif change == 3:
        model.graph.node.remove(node)
    elif change == 4:
        model.graph.node.add().CopyFrom(node)
    elif change == 5 and node.attribute:
        attribute = random.choice(node.attribute)
        attribute.i = random.choice((0, -1, 2**62))
        attribute.ints[:] = random.choice(([], [0], [2**62, -1]))
    elif node.input:
        del node.input[random.randrange(len(node.input))]


def _entry(model: onnx.ModelProto, random: Random) -> None:
    change = random.randrange(6)
    value = random.choice([*model.graph.input, *model.graph.output])
    if change == 0:
        value.name = "x"
    elif change == 1:
        value.type.tensor_type.elem_type = random.randrange(20)
    elif change == 2:
        dims = value.type.tensor_type.shape.dim
        random.choice(dims).dim_value = random.choice((0, -1, 2, 10**9, 2**62))
    elif change == 3:
        model.graph.input.add().CopyFrom(value)
    elif change == 4:
        model.opset_import[0].version = random.choice((0, -1, 7, 10**9))
    else:
        del model.graph.output[:]


_GRAPHS = (_metadata, _metadata, _initializer, _initializer, _node, _node, _entry)
