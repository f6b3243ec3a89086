"""Which files of a folder are listed, what their labels are, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from ptq4vit_onnx.errors import UserError
from ptq4vit_onnx.images.listing import list_folder
from ptq4vit_onnx.images.stream import Where


def touch(folder: Path, *names: str) -> None:
    """Files that nobody opens here."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()


def labelled(folder: Path) -> dict[str, int]:
    """file -> label"""
    listing = list_folder(folder)
    assert listing.labels is not None
    names = [file.relative_to(folder).as_posix() for file in listing.files]
    return dict(zip(names, listing.labels, strict=True))


def refusal(folder: Path) -> str:
    with pytest.raises(UserError) as caught:
        list_folder(folder)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_an_image_folder_tree_labels_by_sorted_class_name(tmp_path: Path) -> None:
    touch(tmp_path, "zebra/x.png", "ant/x.png", "ant/deep/y.png", "cat/x.png")
    assert labelled(tmp_path) == {"ant/x.png": 0, "ant/deep/y.png": 0, "cat/x.png": 1, "zebra/x.png": 2}


@pytest.mark.parametrize("empty", ["bee", "zebu"])
@pytest.mark.parametrize("filled", [("ant/x.png", "cat/x.png"), ("ant/x.png",)], ids=["two", "one"])
def test_a_class_without_images_is_refused_since_the_labels_behind_it_would_shift(
    filled: tuple[str, ...], empty: str, tmp_path: Path
) -> None:
    touch(tmp_path, *filled, f"{empty}/._x.png", f"{empty}/notes.txt")
    assert f"{tmp_path / empty} holds no images, but folders beside it do" in refusal(tmp_path)


def test_hidden_folders_are_no_classes_and_hidden_files_no_images(tmp_path: Path) -> None:
    touch(tmp_path, ".trash/x.png", "ant/x.png", "ant/._x.png", "cat/x.png", "cat/.thumbnails/x.png")
    assert labelled(tmp_path) == {"ant/x.png": 0, "cat/x.png": 1}


def test_loose_images_beside_one_folder_of_images_are_no_tree(tmp_path: Path) -> None:
    touch(tmp_path, "a.png", "more/b.png", "notes/c.txt")
    (tmp_path / "folder.png").mkdir()
    listing = list_folder(tmp_path)
    assert (listing.labels, [file.name for file in listing.files]) == (None, ["a.png", "b.png"])


@pytest.mark.parametrize(
    ("header", "row"), [("file, index", "03.png, 7"), (" file ,index ", "03.png,7 "), ("index , file", "7, 03.png")]
)
def test_spaces_around_the_names_of_columns_are_no_part_of_them(header: str, row: str, tmp_path: Path) -> None:
    (tmp_path / "labels.csv").write_text(f"{header}\n{row}\n")
    assert labelled(tmp_path) == {"03.png": 7}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("file,index\n01.png,cat\n", "column index holds something that is not a whole number"),
        ("file,index\n01.png\n", "column index holds something that is not a whole number"),
        ("file,index\n01.png,1\n02.png,x\n", "labels.csv, row 3: column index"),
        (
            "file,index\n01.png,99999999999999999999\n",
            "row 2: column index holds 99999999999999999999; expected a class",
        ),
        ("index,file\n3\n", "row 2: column file is empty; expected the path of an image"),
        ("index,file\n3,\n", "row 2: column file is empty"),
        ("name,index\n01.png,1\n", "has no column file"),
        ("", "has no column file, index"),
        ("file,index\n", "lists no images"),
    ],
)
def test_a_wrong_labels_table_is_refused(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "labels.csv").write_text(text)
    assert said in refusal(tmp_path)


def test_cells_beyond_the_header_are_no_column(tmp_path: Path) -> None:
    (tmp_path / "labels.csv").write_text("file,index\n03.png,7,extra,more\n")
    assert labelled(tmp_path) == {"03.png": 7}
    with pytest.raises(UserError, match="no column 'fold' for --where; its columns are file, index"):
        list_folder(tmp_path, Where("fold", "7"))


def test_a_labels_table_that_is_not_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "labels.csv").write_bytes(b"file,index\n\xff\xfe\x00,1\n")
    assert "cannot read" in refusal(tmp_path)
