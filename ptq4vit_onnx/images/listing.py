"""Which files of a folder are images, and what their labels are.

A folder is one of
    images, searched recursively, without labels
    images with labels.csv: columns file,index (others are ignored)
    an ImageFolder tree: one subfolder per class, sorted by name -> 0, 1, 2, ..

What is hidden (.DS_Store, ._photo.jpg, .thumbnails) is neither an image nor a class.
"""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ptq4vit_onnx.errors import UserError
from ptq4vit_onnx.files.inputs import read_text

SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".webp", ".ppm", ".tif", ".tiff", ".gif"}
LARGEST_LABEL = 2**31 - 1  # far more classes than any model has, and safe in every integer type
MOST_ROWS = 2**21  # of a labels.csv; ImageNet has 1.3 million training images
SURPLUS = "\0"  # where csv puts cells beyond the header; no column can be called so


@dataclass(frozen=True)
class Listing:
    """The files of a folder, and one label for each where it has labels."""

    files: list[Path]
    labels: list[int] | None


def list_folder(folder: Path, where: Callable[[dict[str, str]], bool] | None = None) -> Listing:
    if not folder.is_dir():
        raise UserError(f"{folder} is neither a folder nor .npy/.npz; give one of those as --data")
    if (folder / "labels.csv").is_file():
        return _list_csv(folder, where)
    classes = _classes(folder)
    if classes:
        pairs = [(file, index) for index, files in enumerate(classes) for file in files]
        return Listing([file for file, _ in pairs], [index for _, index in pairs])
    files = _image_files(folder)
    if not files:
        raise UserError(f"{folder} holds no image files ({', '.join(sorted(SUFFIXES))}); give a folder of images")
    return Listing(files, None)


def require_same_classes(data: Path, gallery: Path) -> None:
    """Refuse ImageFolder trees of different classes: their numbers would not be of the same ones."""
    names, others = (_class_names(folder) for folder in (data, gallery))
    if names and others and names != others:
        odd = sorted(set(names) ^ set(others))[0]
        raise UserError(
            f"{data} and {gallery} have different classes, {odd} is in one of them only; give trees of the same "
            "classes, or label both by a labels.csv"
        )


def _class_names(folder: Path) -> list[str]:
    """Of an ImageFolder tree; none of other folders and files, whose labels are numbers of the user's."""
    if not folder.is_dir() or (folder / "labels.csv").is_file() or not _classes(folder):
        return []
    return sorted(entry.name for entry in folder.iterdir() if entry.is_dir() and not _hidden(entry))


def _classes(folder: Path) -> list[list[Path]]:
    """The images of every class of an ImageFolder tree, by its number; none where the folder is no such tree.

    A class without images still has a number: leaving it out would give all behind it a wrong label.
    """
    found = {entry: _image_files(entry) for entry in sorted(folder.iterdir()) if entry.is_dir() and not _hidden(entry)}
    filled = [files for files in found.values() if files]
    loose = any(_is_image(entry) for entry in folder.iterdir())
    if not filled or (len(filled) == 1 and (loose or len(found) == 1)):
        return []
    empty = next((entry for entry, files in found.items() if not files), None)
    if empty is not None:
        raise UserError(
            f"{empty} holds no images, but folders beside it do; if it is a class, give it images or label all by a "
            "labels.csv, and if it is none, remove it"
        )
    return filled


def _image_files(folder: Path) -> list[Path]:
    found = (file for file in folder.rglob("*") if _is_image(file))
    return sorted(file for file in found if not any(map(_hidden, file.relative_to(folder).parents[:-1])))


def _is_image(file: Path) -> bool:
    return file.suffix.lower() in SUFFIXES and not _hidden(file) and not file.is_dir()


def _hidden(path: Path) -> bool:
    return path.name.startswith(".")


def _list_csv(folder: Path, where: Callable[[dict[str, str]], bool] | None) -> Listing:
    path = folder / "labels.csv"
    fields, every = _read_csv(path)
    missing = {"file", "index"} - set(fields)
    if missing:
        raise UserError(f"{path} has no column {', '.join(sorted(missing))}; expected a header with file,index")
    rows = [(f"{path}, row {number}", row) for number, row in enumerate(every, 2) if where is None or where(row)]
    if not rows:
        kept = f", and none of its {len(every)} rows is asked for" if every else ""
        raise UserError(f"{path} lists no images{kept}; expected at least one row")
    return Listing([folder / _file(place, row) for place, row in rows], [_label(place, row) for place, row in rows])


def _file(place: str, row: dict[str, str]) -> str:
    if not row["file"]:
        raise UserError(f"{place}: column file is empty; expected the path of an image")
    return row["file"]


def _label(place: str, row: dict[str, str]) -> int:
    try:
        label = int(row["index"])
    except (ValueError, TypeError) as error:
        raise UserError(
            f"{place}: column index holds something that is not a whole number: {row['index']!r:.40}; expected a class "
            "number, 0, 1, 2, .."
        ) from error
    if abs(label) > LARGEST_LABEL:
        raise UserError(f"{place}: column index holds {label}; expected a class number, 0, 1, 2, ..")
    return label


def _read_csv(path: Path) -> tuple[Sequence[str], list[dict[str, str]]]:
    advice = "expected text with a header of file,index"
    text = io.StringIO(read_text(path, "labels", advice), newline="")
    try:
        reader = csv.DictReader(text, restkey=SURPLUS, skipinitialspace=True)
        reader.fieldnames = fields = [name.strip() for name in reader.fieldnames or []]
        rows = list(itertools.islice(reader, MOST_ROWS + 1))
    except (ValueError, csv.Error) as error:
        raise UserError(f"cannot read {path}: {error}; {advice}") from error
    if len(rows) > MOST_ROWS:
        raise UserError(f"{path} has more than {MOST_ROWS} rows; give fewer images")
    for row in rows:
        row.pop(SURPLUS, None)
    return fields, rows
