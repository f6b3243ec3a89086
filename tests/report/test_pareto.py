"""The files that `pareto` compared: CSV and table for programs and the terminal, page and picture for people."""

from __future__ import annotations

import csv
import io
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

from ptq4vit_onnx.report.pareto_page import pareto_svg, render_pareto
from ptq4vit_onnx.report.pareto_rows import (
    ParetoRow,
    dominated,
    pareto_csv,
    pareto_sentences,
    pareto_table,
)
from tests.report.budgets import ABOUT, MIXTURES, ROWS, mixture, peer, single

EVIL = '<img src=x onerror="alert(1)">&'


def test_the_csv_gives_every_number_back_with_all_its_digits() -> None:
    rows = [replace(single(4), distance=0.1 + 0.2, title='odd, "name"'), *ROWS]
    read = list(csv.DictReader(io.StringIO(pareto_csv(rows))))
    assert len(read) == len(rows)
    for found, row in zip(read, rows, strict=True):
        expected = {name: "" if value is None else str(value) for name, value in asdict(row).items()}
        assert found == expected
        assert float(found["distance"]) == row.distance


def test_the_csv_begins_with_the_names_that_programs_read() -> None:
    assert pareto_csv([]) == (
        "title,group,file,size,average_bits,distance,predicted,agreement,top1_drop,drop_error,milliseconds,speed\n"
    )


def test_the_table_leaves_out_what_was_measured_of_no_file() -> None:
    assert pareto_table([single(4), mixture(3.43)], "KL") == [
        ("file", "", "MB", "bits", "KL", "predicted", "agreement", "drop", "ms", "speed"),
        ("4 bits", "one width", "3.40", "4.00", "0.07", "0.084", "98.12 %", "0.31 ± 0.20", "14.25", "2.05x"),
        ("3.43 bits on average", "mixture", "3.00", "3.43", "0.16", "", "", "", "", ""),
    ]
    assert pareto_table([peer("NNCF", 6_300_000, 0.052)], "KL") == [
        ("file", "", "MB", "KL"), ("NNCF", "other tool", "6.30", "0.052"),
    ]  # fmt: skip


def test_a_file_is_dominated_by_one_that_is_better_in_one_respect_and_worse_in_none() -> None:
    row = single(4)
    assert not dominated(row, [row, row, replace(row, size=row.size - 1, distance=2 * row.distance)])
    assert dominated(row, [row, replace(row, size=row.size - 1)])
    assert dominated(row, [row, replace(row, distance=row.distance / 2)])


def test_mixtures_are_compared_with_the_best_single_width_that_is_no_larger() -> None:
    rows = [single(2), single(3), replace(mixture(2.4), distance=1.55), replace(mixture(3.43), distance=0.7)]
    (said,) = pareto_sentences(rows, "KL")
    assert said.startswith("1 of 2 mixtures have a smaller KL than the best single width that is no larger: ")
    assert said.endswith("0.50 to 2.00 times its KL, 1.25 in the median.")
    assert pareto_sentences([single(3), mixture(2.4)], "KL") == [], "no single width is as small"


def test_for_another_tools_file_the_files_to_take_instead_are_named() -> None:
    rows = [*map(single, (3, 4, 5, 6, 8)), peer("NNCF", 5_000_000, 0.052), peer("better", 3_000_000, 0.001)]
    worse, better = pareto_sentences(rows, "KL")
    assert worse == (
        "NNCF has 5.00 MB and KL 0.052. Of the files that are no larger, 6 bits is the closest: KL 0.01. "
        "Of those with no larger KL, 5 bits is the smallest: 4.07 MB."
    )
    assert better.endswith("No file here is both no larger and no farther from the float model.")


def test_the_page_has_every_file_by_size_and_those_that_are_dominated_in_grey() -> None:
    html = render_pareto(ROWS, ABOUT)
    rows = re.findall(r'<tr( class="dull")?><th scope="row">(.*?)</th>(.*?)</tr>', html)
    assert [title for _, title, _ in rows] == [row.title for row in sorted(ROWS, key=lambda row: row.size)]
    assert [title for dull, title, _ in rows if dull] == ["MatMulNBits", "quantize_static", "NNCF"]
    cells = {title: re.findall(r"<td[^>]*>(.*?)</td>", line) for _, title, line in rows}
    assert cells["4 bits"] == ["one width", "3.40", "4.00", "0.07", "0.084", "98.12", "0.31 ± 0.20", "14.25", "2.05",
                               "w4/model.onnx"]  # fmt: skip
    assert "deit_t: size against KL" in html and "Times on AVX2, no VNNI." in html and html.count("<svg") == 1
    assert "Every file's KL from the float model, on 256 images of photos, none calibrated on." in html


def test_the_page_says_nothing_of_times_where_none_were_taken() -> None:
    rows = [replace(row, milliseconds=None, speed=None) for row in ROWS]
    html = render_pareto(rows, replace(ABOUT, machine=""))
    assert "Times on" not in html and "times float" not in html and "Path" in html


def test_page_and_picture_load_nothing_and_run_nothing() -> None:
    html, svg = render_pareto(ROWS, ABOUT), pareto_svg(ROWS, ABOUT)
    for text in (html, svg.replace('xmlns="http://www.w3.org/2000/svg"', "")):
        assert not re.search(r"https?://|\bsrc=|url\(|@import|<link|<script", text)
    assert "default-src 'none'" in html and "script-src" not in html


def test_names_are_escaped_wherever_they_are_shown() -> None:
    rows = [*ROWS, replace(peer(EVIL, 5_500_000, 0.04), file=EVIL)]
    about = replace(ABOUT, model=EVIL, distance=EVIL, measured_on=EVIL, machine=EVIL, version=EVIL)
    assert "<img" not in render_pareto(rows, about)
    assert "<img" not in pareto_svg(rows, about)
    ElementTree.fromstring(pareto_svg(rows, about))


def test_the_picture_is_xml_with_colours_of_its_own_on_white() -> None:
    svg = pareto_svg(ROWS, ABOUT)
    root = ElementTree.fromstring(svg)
    space = "{http://www.w3.org/2000/svg}"
    assert [child.tag for child in root][:4] == [space + name for name in ("title", "desc", "style", "rect")]
    assert root.findtext(f"{space}title") == "deit_t: size against KL from the float model"
    assert "var(" not in svg and "svg .single.mark { fill: #0a66b7; }" in svg
    drawn = {name for kinds in re.findall(r'class="([^"]*)"', svg) for name in kinds.split()}
    ruled = set(re.findall(r"\.([a-z]+)", root.findtext(f"{space}style") or ""))
    assert drawn - ruled == {"m"}, "titles of axes, which have a rule on small screens alone"


def test_the_order_of_the_rows_does_not_change_the_page() -> None:
    assert re.findall("<th scope.*", render_pareto(ROWS, ABOUT)) == re.findall(
        "<th scope.*", render_pareto(ROWS[::-1], ABOUT)
    )


def test_a_model_without_labels_and_mixtures_has_a_page_too() -> None:
    rows = [ParetoRow(f"{bits} bits", "single", "a.onnx", bits * 10**6, None, 0.1 / bits) for bits in (4, 8)]
    html = render_pareto(rows, replace(ABOUT, distance="cosine distance"))
    assert "mixture" not in html.partition("</style>")[2] and "cosine distance" in html
    assert len(MIXTURES) == 4 and render_pareto(ROWS, ABOUT).count("mixed mark") == len(MIXTURES) + 1


def test_the_page_is_made_without_torch(run_python: Callable[..., Any]) -> None:
    run_python("import sys, ptq4vit_onnx.report.pareto_page; sys.exit('torch' in sys.modules)")
