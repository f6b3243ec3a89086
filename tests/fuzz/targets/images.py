"""Images, arrays of images and label files."""

from __future__ import annotations

import io
import struct
import zipfile
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from PIL import Image

from ptq4vit_onnx.images.loading import count_images, has_labels, load_images
from ptq4vit_onnx.images.preprocessing import Preprocessing
from tests.fuzz.mutations import changed_bytes, changed_text
from tests.fuzz.targets.target import Target

RULE = Preprocessing((3, 16, 16), 0.9, "center", "bicubic", (0.5,), (0.5,))


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
