"""What `parity` catches of single mutations of an exported file, with its plan and without.

    python benchmarks/mutations.py [--model vit_digits] [--bits 8] [--only constants nodes metadata] [--exports DIR]

200 changes of one constant each, 60 nodes inserted, renamed, rewired or removed, 40 edits of metadata; all drawn from
one seed. A mutation counts as changing the output if any output of any of 100 test images has another bit, if the file
prepares images otherwise or not at all, or if ONNX Runtime refuses it. `parity` is run on 16 images, with its default
limits. Rows go to benchmarks/results/mutations.json. The exit code is 1 where one that changes an output passes with
the plan.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks import results
from ptq4vit_onnx import api
from ptq4vit_onnx.errors import UserError
from ptq4vit_onnx.graph.model_file import read_model_file
from ptq4vit_onnx.images.embedded import embedded_digits
from ptq4vit_onnx.runtime.session import run_all

COUNTS = {"constants": 200, "nodes": 60, "metadata": 40}
IMAGES, PARITY_IMAGES, SEED = 100, 16, 0
Array = np.ndarray[Any, Any]
Draw = np.random.Generator


@dataclass(frozen=True)
class Mutation:
    """how: the kind of change; where: what was changed; model: the result."""

    how: str
    where: str
    model: onnx.ModelProto


def mutations(model: onnx.ModelProto, kind: str, count: int, seed: int = SEED) -> Iterator[Mutation]:
    """`count` mutations of one kind, the same for the same seed. Draws without a place in the model are repeated."""
    draw, made = np.random.default_rng([seed, *kind.encode()]), 0
    ways = _WAYS[kind]
    while made < count:
        how = list(ways)[made % len(ways)]
        changed = onnx.ModelProto()
        changed.CopyFrom(model)
        where = ways[how](changed, draw)
        if where is not None and changed.SerializeToString() != model.SerializeToString():
            made += 1
            yield Mutation(how, where, changed)


# Of constants: one value, or all of one constant.


def _one_value(change: Callable[[Array, int, Draw], None]) -> Callable[[Any, Draw], str | None]:
    def mutate(model: Any, draw: Draw) -> str | None:
        tensor = model.graph.initializer[int(draw.integers(len(model.graph.initializer)))]
        values = numpy_helper.to_array(tensor).copy()
        if not values.size:
            return None
        at = int(draw.integers(values.size))
        with np.errstate(all="ignore"):
            change(values.reshape(-1), at, draw)
        tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
        return f"{tensor.name} at {at}"

    return mutate


def _flip(values: Array, at: int, bit: int) -> None:
    values.view(np.uint8)[at * values.dtype.itemsize + bit // 8] ^= 1 << bit % 8


def _last_bit(values: Array, at: int, _draw: Draw) -> None:
    _flip(values, at, 0)


def _any_bit(values: Array, at: int, draw: Draw) -> None:
    _flip(values, at, int(draw.integers(8 * values.dtype.itemsize)))


def _negated(values: Array, at: int, _draw: Draw) -> None:
    values[at] = -values[at].astype(np.float64).astype(values.dtype)


def _zeroed(values: Array, at: int, _draw: Draw) -> None:
    values[at] = 0


def _exchanged(values: Array, at: int, draw: Draw) -> None:
    other = int(draw.integers(values.size))
    values[[at, other]] = values[[other, at]]


def _all_scaled(values: Array, _at: int, _draw: Draw) -> None:
    values[:] = (values * np.float64(1.001) if values.dtype.kind == "f" else values + 1).astype(values.dtype)


# Of nodes.


def _node(model: Any, draw: Draw) -> Any:
    return model.graph.node[int(draw.integers(len(model.graph.node)))]


def _insert(operation: str, *constants: float) -> Callable[[Any, Draw], str | None]:
    def mutate(model: Any, draw: Draw) -> str | None:
        """Behind one output of a float node, for one or for all of its readers."""
        place = int(draw.integers(len(model.graph.node)))
        node = model.graph.node[place]
        if node.op_type not in ("Add", "MatMul", "LayerNormalization", "Gelu", "Softmax", "Mul", "DequantizeLinear"):
            return None
        name, inner = node.output[0], f"{node.output[0]}_inside"
        tensors = [
            numpy_helper.from_array(np.asarray(value, np.float32), f"inserted_{n}") for n, value in enumerate(constants)
        ]
        model.graph.initializer.extend(tensors)
        inputs = [inner, *(tensor.name for tensor in tensors)]
        model.graph.node.insert(place + 1, helper.make_node(operation, inputs, [name], name=f"{node.name}_1"))
        node.output[0] = inner
        return f"{operation} behind {node.name}"

    return mutate


def _renamed(model: Any, draw: Draw) -> str | None:
    node = _node(model, draw)
    was, node.name = node.name, f"{node.name}_0"
    return str(was)


def _renamed_with_other_numbers(model: Any, draw: Draw) -> str | None:
    node = _node(model, draw)
    floats = {tensor.name: tensor for tensor in model.graph.initializer if tensor.data_type == onnx.TensorProto.FLOAT}
    places = [place for place, name in enumerate(node.input) if name in floats]
    if not places:
        return None
    values = numpy_helper.to_array(floats[node.input[places[0]]]) * np.float32(1.01)
    model.graph.initializer.append(numpy_helper.from_array(values, "other_numbers"))
    node.input[places[0]] = "other_numbers"
    was, node.name = node.name, f"{node.name}_0"
    return str(was)


def _rewired(model: Any, draw: Draw) -> str | None:
    """An input becomes another tensor of the same type and shape that is computed before."""
    shapes = _shapes(model)
    place = int(draw.integers(len(model.graph.node)))
    node = model.graph.node[place]
    at = int(draw.integers(len(node.input)))
    before = {name for other in list(model.graph.node)[:place] for name in other.output}
    before |= {tensor.name for tensor in model.graph.initializer} | {item.name for item in model.graph.input}
    same = sorted(n for n in before if n != node.input[at] and n in shapes and shapes[n] == shapes.get(node.input[at]))
    if not same:
        return None
    node.input[at] = same[int(draw.integers(len(same)))]
    return f"input {at} of {node.name}"


def _shapes(model: Any) -> dict[str, tuple[Any, ...]]:
    found = {tensor.name: (tensor.data_type, *tensor.dims) for tensor in model.graph.initializer}
    inferred = onnx.shape_inference.infer_shapes(model).graph
    for item in (*inferred.value_info, *inferred.input):
        kind = item.type.tensor_type
        found[item.name] = (kind.elem_type, *(dim.dim_param or dim.dim_value for dim in kind.shape.dim))
    return found


def _removed(model: Any, draw: Draw) -> str | None:
    """Its readers read its first input."""
    node = _node(model, draw)
    kinds = _shapes(model)
    if kinds.get(node.input[0]) != kinds.get(node.output[0]) or node.output[0] in {o.name for o in model.graph.output}:
        return None
    for other in model.graph.node:
        other.input[:] = [node.input[0] if name == node.output[0] else name for name in other.input]
    was = node.name
    model.graph.node.remove(node)
    return str(was)


# Of metadata.


def _entry(model: Any, draw: Draw) -> Any:
    return model.metadata_props[int(draw.integers(len(model.metadata_props)))]


def _letter(model: Any, draw: Draw) -> str | None:
    entry = _entry(model, draw)
    at = int(draw.integers(len(entry.value)))
    entry.value = entry.value[:at] + chr(97 + int(draw.integers(26))) + entry.value[at + 1 :]
    return str(entry.key)


def _no_entry(model: Any, draw: Draw) -> str | None:
    entry = _entry(model, draw)
    key = entry.key
    model.metadata_props.remove(entry)
    return str(key)


def _twice(model: Any, draw: Draw) -> str | None:
    entry = _entry(model, draw)
    model.metadata_props.add(key=entry.key, value=f"{entry.value} ")
    return str(entry.key)


def _one_more(model: Any, draw: Draw) -> str | None:
    key = ("ptq4vit_onnx.output_kind", "ptq4vit_onnx.input", "session.disable_prepacking", "note")[draw.integers(4)]
    model.metadata_props.add(key=key, value=("embedding", "uint8", "1", "hello")[draw.integers(4)])
    return key


def _preparation(model: Any, draw: Draw) -> str | None:
    entry = next(item for item in model.metadata_props if item.key == "ptq4vit_onnx.preprocessing")
    rule = json.loads(entry.value)
    changes = {"mean": [0.1], "std": [0.9], "interpolation": "nearest", "crop_pct": 0.8, "size": [1, 16, 16]}
    key = list(changes)[draw.integers(len(changes))]
    entry.value = json.dumps({**rule, key: changes[key]})
    return f"{entry.key}, {key}"


_WAYS: dict[str, dict[str, Callable[[Any, Draw], str | None]]] = {
    "constants": {
        "last bit": _one_value(_last_bit), "any bit": _one_value(_any_bit), "negated": _one_value(_negated),
        "zeroed": _one_value(_zeroed), "exchanged": _one_value(_exchanged), "all scaled": _one_value(_all_scaled),
    },
    "nodes": {
        "inserted Mul": _insert("Mul", 1.02), "inserted Add": _insert("Add", 0.01), "inserted Relu": _insert("Relu"),
        "inserted Identity": _insert("Identity"), "renamed": _renamed,
        "renamed, other numbers": _renamed_with_other_numbers, "rewired": _rewired, "removed": _removed,
    },
    "metadata": {
        "letter": _letter, "removed": _no_entry, "twice": _twice, "added": _one_more, "preparation": _preparation,
    },
}  # fmt: skip


# What becomes of them.


def outputs(path: Path) -> bytes | None:
    """All outputs on the images as the file prepares them, and of what kind they are; None where it has none."""
    try:
        file = read_model_file(path)
        images = embedded_digits(file.preprocessing, "test", IMAGES).images
        found = run_all(path, images, batch=50, threads=1)
    except UserError:
        return None
    return file.kind.name.encode() + b"".join(values.tobytes() for values in found)


def caught_by(path: Path, reference: Path, plan: Path | None, require_plan: bool = False) -> str:
    """The first check that fails, "refused" where parity ends with a UserError; empty where it passes."""
    try:
        result = api.check_parity(
            path, reference, plan=plan, images=PARITY_IMAGES, threads=1, require_plan=require_plan
        )
    except UserError:
        return "refused"
    return next((check.name for check in result.checks if check.status == "failed"), "")


def tried(folder: Path, kind: str, count: int) -> Iterator[dict[str, Any]]:
    """Each mutation: whether it changes an output, and which check fails first."""
    model, reference = onnx.load(folder / "model.onnx"), folder / "float.onnx"
    right = outputs(folder / "model.onnx")
    assert caught_by(folder / "model.onnx", reference, folder / "plan.json") == "", "the file as it is must pass"
    with tempfile.TemporaryDirectory(prefix="ptq4vit_onnx_") as scratch:
        path = Path(scratch) / "model.onnx"
        for item in mutations(model, kind, count):
            onnx.save(item.model, path)
            yield {
                "kind": kind, "how": item.how, "where": item.where, "changes": outputs(path) != right,
                "with plan": caught_by(path, reference, folder / "plan.json"),
                "without plan": caught_by(path, reference, None),
            }  # fmt: skip


def counted(model: str, found: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """A row for each way to mutate. first checks: with the plan, how often each check was the first to fail."""
    for kind, how in dict.fromkeys((item["kind"], item["how"]) for item in found):
        own = [item for item in found if (item["kind"], item["how"]) == (kind, how)]
        changing, others = ([item for item in own if item["changes"] is changes] for changes in (True, False))
        yield {
            "model": model, "kind": kind, "how": how, "number": len(own), "change an output": len(changing),
            "caught with the plan": sum(bool(item["with plan"]) for item in changing),
            "caught without": sum(bool(item["without plan"]) for item in changing),
            "others caught with the plan": sum(bool(item["with plan"]) for item in others),
            "others caught without": sum(bool(item["without plan"]) for item in others),
            "first checks": dict(Counter(item["with plan"] for item in own if item["with plan"])),
        }  # fmt: skip


def table(rows: list[dict[str, Any]]) -> Iterator[str]:
    titles = [title for title in rows[0] if title not in ("model", "first checks")]
    yield f"| {' | '.join(titles)} |\n|{'---|' * len(titles)}"
    yield from (f"| {' | '.join(str(row[title]) for title in titles)} |" for row in rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="vit_digits", help="an embedded model (vit_digits)")
    parser.add_argument("--bits", type=int, default=8)
    parser.add_argument("--only", nargs="+", choices=list(COUNTS), default=list(COUNTS))
    parser.add_argument("--exports", type=Path, metavar="DIR", help="where the export is kept, and taken from")
    parsed = parser.parse_args()
    name = f"{parsed.model} W{parsed.bits}A{parsed.bits}"
    with tempfile.TemporaryDirectory(prefix="ptq4vit_onnx_") as temporary:
        folder = (parsed.exports or Path(temporary)) / name.lower().replace(" ", "_")
        if not folder.is_dir():
            api.export(parsed.model, bits=parsed.bits, output=folder)
        found = [item for kind in parsed.only for item in tried(folder, kind, COUNTS[kind])]
    rows = list(counted(name, found))
    kept = results.read("mutations").get("rows", [])
    kept = [row for row in kept if row["model"] != name or row["kind"] not in parsed.only]
    results.write("mutations", kept + rows, images=IMAGES, parity_images=PARITY_IMAGES, seed=SEED)
    print("\n".join(table(rows)))
    missed = [item for item in found if item["changes"] and not item["with plan"]]
    if missed:
        raise SystemExit(f"{len(missed)} pass with the plan: {missed[:5]}")


if __name__ == "__main__":
    main()
