"""The files that users give, one class each: what it looks like, how it is changed, and what reads it."""

from __future__ import annotations

import copy
import io
import json
import pickle
import struct
import zipfile
from abc import ABC, abstractmethod
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import onnx
from PIL import Image

from ptq4vit_onnx.graph.model_file import is_float, read_model_file
from ptq4vit_onnx.images.loading import ImageSet, count_images, has_labels, load_images
from ptq4vit_onnx.images.preprocessing import Preprocessing
from ptq4vit_onnx.plan.plan_json import read_plan
from tests.fuzz.mutations import HOSTILE, change_value, changed_bytes, changed_json, changed_text
from tests.fuzz.oracle import strike

RULE = Preprocessing((3, 16, 16), 0.9, "center", "bicubic", (0.5,), (0.5,))


class Target(ABC):
    """examples: in the default suite. attack: writes a changed file below `folder` and has it read."""

    examples = 100

    @abstractmethod
    def attack(self, random: Random, folder: Path) -> None: ...


class Plans(Target):
    """plan.json, next to the model it is for: read, held against the model, applied, and proven on a few images."""

    examples = 60

    def __init__(self, model: Any, sites: Any, float_path: Path, plan_path: Path, images: ImageSet) -> None:
        from ptq4vit_onnx.images.choice import ChosenImages

        self.model, self.sites, self.float_path = model, sites, float_path
        self.images = ChosenImages(images, images, None)
        self.text = plan_path.read_text()
        self.proto = onnx.load(str(float_path))

    def attack(self, random: Random, folder: Path) -> None:
        from ptq4vit_onnx.network.plan_fit import request_of, require_channels_fold, require_plan_fits
        from ptq4vit_onnx.passes import quantize
        from ptq4vit_onnx.proof.prove import prove
        from ptq4vit_onnx.request import ExportRequest

        path = folder / "plan.json"
        data = json.loads(self.text)
        sites = data["sites"]
        name = random.choice(list(sites))
        if random.random() < 0.6:  # in types that fit, so that it is for the model to say what does not
            for _ in range(random.choice((1, 1, 2))):
                random.choice(_SITES)(sites[name], sites[random.choice(list(sites))], random)
            path.write_text(json.dumps(data))
        elif random.random() < 0.7:
            sites[name] = change_value(sites[name], random)
            path.write_text(json.dumps(data))
        else:
            path.write_bytes(changed_json(data, random))
        plan = read_plan(path)
        request_of(plan, ExportRequest(self.model.name, plan=path))
        require_plan_fits(plan, self.model, self.sites)
        require_channels_fold(plan, self.model, self.sites, self.images.calibration.images[:1])
        onnx.save(quantize(self.proto, plan)[0], folder / "model.onnx")
        prove(folder / "model.onnx", self.float_path, plan, self.model, self.images, lambda items, _: items)


def _taken_over(site: Any, other: Any, random: Random) -> None:
    """A part of another site."""
    key = random.choice(list(site))
    site[key] = copy.deepcopy(other[key])


def _regrouped(site: Any, other: Any, random: Random) -> None:
    """Another number of scales, each a float32 value."""
    side = random.choice((site["lhs"], site["rhs"], site["channels"] or site["rhs"]))
    count, scale = random.choice((1, 2, 3, 4, 63, 64, 192, 256)), random.choice((0.5, 2.0**-140, 2.0**120, 2.0**-30))
    for key in {"scale", "zero_point", "centre", "shift"} & set(side):
        if isinstance(side[key], list):
            side[key] = [{"scale": scale, "zero_point": 3, "centre": 9.5, "shift": 1e30}[key]] * count
    if "axis" in side:
        side["axis"] = random.choice((-1, -3, -2, -4, side["axis"]))


def _scaled(site: Any, other: Any, random: Random) -> None:
    """All scales of a side, by a power of two."""
    side, factor = random.choice((site["lhs"], site["rhs"])), 2.0 ** random.choice((-100, -20, -1, 1, 20, 100))
    if isinstance(side.get("scale"), list):
        side["scale"] = [value * factor for value in side["scale"]]


def _widened(site: Any, other: Any, random: Random) -> None:
    """Another number of bits, zero point or shift."""
    side = random.choice((site["lhs"], site["rhs"]))
    side["bits"] = random.choice((2, 3, 4, 6, 7, 8))
    if isinstance(side.get("shift"), int):
        side["shift"] = random.choice((0, 1, 8, 15))


def _corrected(site: Any, other: Any, random: Random) -> None:
    site["bias_correction"] = [random.choice((0.0, 1e38, -1e300, 5e-324))] * random.choice((0, 1, 10, 64, 192, 256))


def _split(site: Any, other: Any, random: Random) -> None:
    """Outliers, of which few can be right."""
    channels = random.choice(([0], [3, 5], [63], [64], [2**31 - 1], [10**30], [-1], [0, 0], list(range(64)), []))
    lhs = {"type": "uniform", "bits": random.choice((8, 8, 4)), "scale": [0.5], "axis": random.choice((-1, -3, 10**30))}
    scales = [random.choice((0.5, 2.0**-140, 2.0**120))] * random.choice((1, 1, 2, 3, 64, 192))
    rhs = {"type": "uniform", "bits": 8, "scale": scales, "axis": random.choice((-1, -1, -3, 10**30))}
    site["outliers"] = {"channels": channels, "lhs": lhs, "rhs": rhs}


_SITES = (_taken_over, _regrouped, _scaled, _widened, _corrected, _split, _split)


class Journals(Target):
    """What an interrupted run leaves behind: a line for the run, and one for each site."""

    def __init__(self, plan_path: Path) -> None:
        self.sites = json.loads(plan_path.read_text())["sites"]

    def attack(self, random: Random, folder: Path) -> None:
        from ptq4vit_onnx.calibration.journal import Journal

        journal = Journal(folder / "journal", {"run": 1})
        lines = [
            changed_json([name, copy.deepcopy(self.sites[name])], random) for name in random.sample(list(self.sites), 2)
        ]
        lines.insert(random.randrange(3), b"[" * random.choice((10, 300, 100000)))
        text = b"\n".join([journal.key.encode(), *lines])
        journal.path.write_bytes(changed_text(text, random) if random.random() < 0.3 else text)
        journal.read()


class Checkpoints(Target):
    """.safetensors and .pth of the embedded model: damaged bytes, odd tensors, odd names, wrappers, pickled code."""

    def __init__(self, module: Any, path: Path) -> None:
        from safetensors.torch import load_file

        self.module, self.path, self.state = module, path, load_file(path)

    def attack(self, random: Random, folder: Path) -> None:
        import torch

        from ptq4vit_onnx.model_loading.checkpoints import classes_in, load_state, read_state, resampled_tables

        path = random.choice((self._damaged, self._odd, self._odd, self._pickled))(random, folder)
        state = read_state(path)
        classes_in(state)
        load_state(self.module, state, path, "vit_digits", headless=random.random() < 0.1)
        resampled_tables(self.module, state)
        with torch.no_grad():
            self.module(torch.zeros(1, 1, 32, 32))

    def _damaged(self, random: Random, folder: Path) -> Path:
        if random.random() < 0.5:
            path = folder / "damaged.safetensors"
            data = self.path.read_bytes()
            length = struct.unpack("<Q", data[:8])[0]
            header = changed_json(json.loads(data[8 : 8 + length]), random)
            data = random.choice((data, struct.pack("<Q", len(header)) + header + data[8 + length :]))
            path.write_bytes(changed_bytes(data, random) if random.random() < 0.5 else data)
            return path
        path = self._odd(random, folder)
        path.write_bytes(changed_bytes(path.read_bytes(), random))
        return path

    def _odd(self, random: Random, folder: Path) -> Path:
        import torch

        state: dict[Any, Any] = dict(self.state)
        for _ in range(random.choice((1, 1, 2))):
            named = state.items() if isinstance(state, dict) else ()
            tensors = [key for key, value in named if isinstance(value, torch.Tensor) and value.dtype == torch.float32]
            if tensors:
                state = random.choice(_STATES)(state, random.choice(tensors), random)
        path = folder / "odd.pth"
        torch.save(state, path)
        return path

    def _pickled(self, random: Random, folder: Path) -> Path:
        path = folder / "code.pth"
        if random.random() < 0.5:
            path.write_bytes(pickle.dumps({"state_dict": _Attack(random)}, protocol=random.choice((0, 2, 4))))
        else:
            import torch

            torch.save({**self.state, random.choice(("head.bias", "x")): _Attack(random)}, path)
        return path


class _Attack:
    """An object whose unpickling runs code."""

    def __init__(self, random: Random) -> None:
        self.call: Any = random.choice((
            (strike, ("pickle",)), (eval, ("__import__('tests.fuzz.oracle').fuzz.oracle.strike('eval')",)),
            (exec, ("import tests.fuzz.oracle as o; o.strike('exec')",)), (getattr, (strike, "__call__")),
            (__import__, ("antigravity",)),
        ))  # fmt: skip

    def __reduce__(self) -> Any:
        return self.call


def _typed(state: Any, key: Any, random: Random) -> Any:
    import torch

    kinds = (torch.int8, torch.bool, torch.complex64, torch.float64, torch.float16, torch.bfloat16, torch.int64)
    return {**state, key: state[key].to(random.choice(kinds))}


def _laid_out(state: Any, key: Any, random: Random) -> Any:
    import torch

    value = state[key].float()
    square = value if value.dim() == 2 else value.reshape(1, -1)
    odd = random.choice((
        lambda: value.to_sparse(), lambda: value.to("meta"),
        lambda: torch.quantize_per_tensor(value, 0.1, 0, torch.qint8),
        lambda: torch.zeros(1).expand(value.shape), lambda: torch.zeros(1).expand(2**40), lambda: value.reshape(-1),
        lambda: torch.zeros(()), lambda: torch.zeros(0), lambda: square.t(),
        lambda: torch.nn.Parameter(value), lambda: torch.zeros((0,) * 60), lambda: square.to_sparse_csr(),
    ))()  # fmt: skip
    return {**state, key: odd}


def _valued(state: Any, key: Any, random: Random) -> Any:
    return {**state, key: state[key].float() * random.choice((0.0, float("nan"), float("inf"), 1e38, -1e30, 1e-38))}


def _named(state: Any, key: Any, random: Random) -> Any:
    renamed = random.choice(
        (f"module.{key}", f"module.module.{key}", f"_orig_mod.{key}", "", 7, None, "x" * 5000, key[1:])
    )
    kept = state if random.random() < 0.5 else {name: value for name, value in state.items() if name != key}
    return {**kept, renamed: state[key]}


def _wrapped(state: Any, key: Any, random: Random) -> Any:
    wrapper: dict[str, Any] = {random.choice(("model", "state_dict", "model_ema", "other")): state, "epoch": 3}
    if random.random() < 0.3:
        wrapper["model"] = wrapper
    return random.choice(
        (wrapper, {"model": wrapper}, [state], None, {"state_dict": {"model": []}}, {**state, "model": {}})
    )


def _replaced(state: Any, key: Any, random: Random) -> Any:
    return {**state, key: random.choice(HOSTILE)} if random.random() < 0.5 else {
        name: value for name, value in state.items() if name != key
    }  # fmt: skip


_STATES = (_typed, _laid_out, _laid_out, _valued, _named, _wrapped, _replaced)


class Images(Target):
    """Image files of all formats that are looked for, in a folder or an ImageFolder tree."""

    def __init__(self) -> None:
        pixels = np.random.default_rng(0).integers(0, 256, (24, 20, 3)).astype(np.uint8)
        self.files = {}
        for mode in ("RGB", "L", "P", "RGBA", "CMYK", "I;16", "F", "1", "LA"):
            for form, suffix in (("PNG", "png"), ("JPEG", "jpg"), ("TIFF", "tif"), ("GIF", "gif"), ("BMP", "bmp"),
                                 ("WEBP", "webp"), ("PPM", "ppm")):  # fmt: skip
                written = io.BytesIO()
                try:
                    _in_mode(pixels, mode).save(written, form)
                except (OSError, ValueError, KeyError):
                    continue  # the format has no such mode
                self.files[f"{mode[0]}{mode[-1]}.{suffix}"] = written.getvalue()

    def attack(self, random: Random, folder: Path) -> None:
        name = random.choice(sorted(self.files))
        place = folder / "images" / random.choice(("", "a", ".b"))
        place.mkdir(parents=True, exist_ok=True)
        path = place / name
        try:
            path.write_bytes(changed_bytes(self.files[name], random))
            load_images(folder / "images", RULE)
        finally:
            path.unlink(missing_ok=True)


def _in_mode(pixels: np.ndarray[Any, Any], mode: str) -> Image.Image:
    if mode == "I;16":
        return Image.fromarray(pixels[..., 0].astype(np.uint16) * 257)
    if mode == "F":
        return Image.fromarray(pixels[..., 0].astype(np.float32))
    return Image.fromarray(pixels).convert(mode)


class Arrays(Target):
    """.npy and .npz, with or without labels: odd headers, shapes, types, values and archives."""

    def attack(self, random: Random, folder: Path) -> None:
        path = folder / random.choice(("a.npy", "a.npz"))
        images = _array(random)
        if path.suffix == ".npy":
            path.write_bytes(_npy(images, random))
        else:
            members = {"images.npy": _npy(images, random)}
            if random.random() < 0.6:
                labels = random.choice((np.arange(3), np.arange(2), np.ones(3), np.array(["a"]), np.array(7)))
                members["labels.npy"] = _npy(labels, random)
            if random.random() < 0.1:
                members["images"] = members.pop("images.npy")
            with zipfile.ZipFile(path, "w", random.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))) as archive:
                for name, data in members.items():
                    archive.writestr(name, data)
        if random.random() < 0.3:
            path.write_bytes(changed_bytes(path.read_bytes(), random))
        count_images(path)
        has_labels(path)
        load_images(path, RULE, count=random.choice((None, 1, 5)))


def _array(random: Random) -> np.ndarray[Any, Any]:
    shape = random.choice(((3, 3, 16, 16),) * 9 + ((0, 3, 16, 16), (3, 3, 16), (), (1, 1, 16, 16), (0,)))
    kind = random.choice(("<f4",) * 9 + (">f4", "<f8", "u1", "c8", "?", "O", "M8[s]", "<U3"))
    array = np.zeros(shape, kind)
    if kind == "<f4" and array.size:
        array.reshape(-1)[0] = random.choice((0, 1, np.nan, np.inf, 1e38, -1e38))
    return array


def _npy(array: np.ndarray[Any, Any], random: Random) -> bytes:
    """As numpy writes it; now and then the header is one that only a person could have written."""
    written = io.BytesIO()
    np.save(written, array, allow_pickle=True)
    if random.random() < 0.7:
        return written.getvalue()
    header = random.choice((
        "{'descr': '<f4', 'fortran_order': False, 'shape': (%s,)}" % ("9" * random.choice((1, 5, 12, 30, 4000))),
        "{'descr': '<f4', 'fortran_order': False, 'shape': (-3, 3, 16, 16)}",
        "{'descr': '<f4', 'fortran_order': True, 'shape': (3, 3, 16, 16)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (10**9, 10**9)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (True, 3, 16, 16)}",
        "{'descr': '|V0', 'fortran_order': False, 'shape': (3, 99999999999)}",
        "{'descr': [('a', '<f4', (10000, 10000))], 'fortran_order': False, 'shape': (3,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': " + "(" * 300 + ")" * 300 + "}",
        "{'descr': '|O', 'fortran_order': False, 'shape': (3,)}", "[" * 5000, "__import__('os')", "\x00", "",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (" + "1, " * 200 + ")}",
    ))  # fmt: skip
    version = random.choice(((1, 0), (2, 0), (3, 0), (9, 9)))
    encoded = header.encode()
    length = struct.pack("<H" if version == (1, 0) else "<I", min(len(encoded), 65535))
    return b"\x93NUMPY" + bytes(version) + length + encoded + bytes(3 * 3 * 16 * 16 * 4)


class Labels(Target):
    """labels.csv next to three images: cells, quotes, encodings, columns."""

    def __init__(self) -> None:
        self.image = io.BytesIO()
        Image.new("RGB", (16, 16), (9, 99, 199)).save(self.image, "PNG")

    def attack(self, random: Random, folder: Path) -> None:
        for number in range(3):
            (folder / f"{number}.png").write_bytes(self.image.getvalue())
        rows = [["file", "index", "fold"], *([f"{number}.png", str(number), "0"] for number in range(3))]
        for _ in range(random.choice((0, 1, 1, 2))):
            row = random.choice(rows)
            row[random.randrange(len(row))] = random.choice((
                "", " ", "-1", "1e3", "٣", "2147483648", "nan", "../0.png", "/dev/zero", "\x00", "a\nb", '"',
                "0.png/", ".", "x" * 300, "file", "index", "\ufeff", "\u202e", "1,2,3", "½", "+1", "1_0", "~",
            ))  # fmt: skip
        text = "\n".join(random.choice((",", ",", ",", ";", ", ")).join(row) for row in rows).encode("utf-8", "replace")
        text = changed_text(text, random) if random.random() < 0.4 else text
        (folder / "labels.csv").write_bytes(text)
        where = random.choice((None, lambda row: row.get("fold") == "0"))
        count_images(folder)
        has_labels(folder, where)
        load_images(folder, RULE, where=where)


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
        from ptq4vit_onnx.plan.plan_json import read_plan
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
