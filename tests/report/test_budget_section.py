"""report.html of an export within a budget: what was considered, what was chosen, and the bits of every weight."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from ptq4vit_onnx.plan.budget import Budget, Limited, Point
from ptq4vit_onnx.plan.quantizers import Uniform
from ptq4vit_onnx.report.budget_section import budget_section, fits, strip_of
from ptq4vit_onnx.report.data import weight_bits
from ptq4vit_onnx.report.page import render
from tests.report.budgets import CHOSEN, allocation_of

if TYPE_CHECKING:
    from tests.report.conftest import MadeUp

WEIGHTS = {"patch_embed.proj": 8, "blocks.0.qkv": 3, "blocks.0.fc": 5, "blocks.1.qkv": 3, "blocks.1.fc": 4, "head": 8}


def page_of(made_up: MadeUp, widths: dict[str, int], budget: Budget | None = None) -> str:
    """The page of the made-up export with other bits of its weights, within a budget."""
    plan = made_up.report.plan
    sites = {
        name: replace(site, rhs=Uniform(widths[name], site.rhs.scale)) if name in widths else site
        for name, site in plan.sites.items()
    }
    options = {**plan.options, "budget": (budget or Budget("max_size", 4e6)).to_data()}
    report = made_up.report_of(replace(plan, sites=sites, options=options))
    return render(replace(report, allocation=allocation_of(widths, budget)))


def section(html: str) -> str:
    return html.partition('<section id="budget">')[2].partition("</section>")[0]


@pytest.fixture
def widths(made_up: MadeUp) -> dict[str, int]:
    return dict(zip(weight_bits(made_up.report.plan), (8, 3, 5), strict=True))


def test_without_a_budget_nothing_is_said_of_one(made_up: MadeUp) -> None:
    assert 'id="budget"' not in made_up.page and "<h2>Budget" not in made_up.page


def test_the_section_says_what_was_chosen_and_shows_it_among_the_files(made_up: MadeUp, widths: dict[str, int]) -> None:
    html = section(page_of(made_up, widths))
    sentence = "At most 4 MB: weights have 3 to 8 bits, 4.83 on average; KL 0.029 on the 256 images"
    assert f"<p>{sentence}" in html and html.count("<svg") == 1 and 'class="limit"' in html
    assert html.index("<p>") < html.index("<svg") < html.index("<table>") < html.index('class="widths"')
    assert "Chosen: 4.83 bits on average, 3.95 MB at KL 0.029." in html


def test_the_table_has_all_files_by_size_the_chosen_one_in_bold_and_those_beyond_the_budget_in_grey(
    made_up: MadeUp, widths: dict[str, int]
) -> None:
    html = section(page_of(made_up, widths))
    rows = re.findall(r'<tr(?: class="(\w+)")?><th scope="row">(.*?)</th>(.*?)</tr>', html)
    assert [title for _, title, _ in rows] == [
        "2 bits", "2.4 bits on average", "3 bits", "3.43 bits on average", "4 bits", f"{CHOSEN}, chosen", "5 bits",
        "6 bits", "6.38 bits on average", "7 bits", "8 bits",
    ]  # fmt: skip
    assert [kind for kind, _, _ in rows] == [""] * 5 + ["taken"] + ["dull"] * 5
    assert re.findall(r"<td[^>]*>(.*?)</td>", rows[5][2]) == ["3.95", "4.83", "0.0261", "0.029"]
    assert "Agreement" not in html and "Drop" not in html, "these were measured of no file"


def test_agreement_and_drop_are_shown_where_they_were_measured() -> None:
    allocation = allocation_of(WEIGHTS)
    points = tuple(replace(point, agreement=98.456, drop=0.31, drop_error=0.2) for point in allocation.points)
    table = budget_section(replace(allocation, points=points), WEIGHTS).table
    assert [heading.title for heading in table.headings][-2:] == ["Agreement", "Drop"]
    assert [cell.text for cell in table.lines[0].cells][-2:] == ["98.46", "0.31 ± 0.20"]


def test_a_file_that_was_not_measured_is_in_the_table_alone() -> None:
    allocation = allocation_of(WEIGHTS)
    first, *others = allocation.points
    found = budget_section(replace(allocation, points=(replace(first, measured=None), *others)), WEIGHTS)
    assert len(found.table.lines) == len(allocation.points) and found.table.lines[0].cells[3].text == ""
    assert "Chosen: 4.83 bits on average" in found.chart and "10 files" in found.chart


@pytest.mark.parametrize(
    ("limited", "within", "beyond"),
    [("max_size", 3_000_000, 2_999_999), ("max_kl", 0.05, 0.049), ("max_drop", 1.5, 1.4),
     ("average_weight_bits", 4.5, 4.4)],
)  # fmt: skip
def test_a_file_fits_what_was_limited(limited: Limited, within: float, beyond: float) -> None:
    point = Point("", {}, 3_000_000, 4.5, 0.9, 0.05, drop=1.5)
    assert fits(Budget(limited, within), point) and not fits(Budget(limited, beyond), point)
    unmeasured = replace(point, measured=None, drop=None)
    assert fits(Budget(limited, within), unmeasured) == (limited in ("max_size", "average_weight_bits"))


def test_every_weight_has_a_bar_in_network_order_with_its_bits_and_name(
    made_up: MadeUp, widths: dict[str, int]
) -> None:
    html = section(page_of(made_up, dict(reversed(widths.items()))))
    bars = re.findall(r'<span class="bits-(\d)" title="([^"]*)"><i></i>(\d)</span>', html)
    assert bars == [(str(bits), f"{name}: {bits} bits", str(bits)) for name, bits in widths.items()]
    assert "1 with 3 bits</span>" in html and 'aria-label="bits of every weight: 1 with 3 bits, ' in html


def test_bars_are_grouped_by_block_and_the_order_within_a_block_is_said_once() -> None:
    strip = strip_of(WEIGHTS)
    assert [(block.label, len(block.weights)) for block in strip.blocks] == [("", 1), ("0", 2), ("1", 2), ("", 1)]
    assert strip.order == ("qkv", "fc") and strip.counts == {3: 2, 4: 1, 5: 1, 8: 2}
    assert strip_of({**WEIGHTS, "blocks.2.fc": 4}).order == (), "the blocks are not alike"


def test_one_width_for_all_weights_has_no_strip(made_up: MadeUp, widths: dict[str, int]) -> None:
    html = section(page_of(made_up, dict.fromkeys(widths, 5)))
    assert "<svg" in html and "Bits of every weight" not in html


def test_the_budget_is_a_phrase_among_the_options(made_up: MadeUp, widths: dict[str, int]) -> None:
    html = page_of(made_up, widths, Budget("max_kl", 0.05))
    assert "<dt>budget</dt><dd>a KL of at most 0.05</dd>" in html


def test_names_of_sites_are_escaped(made_up: MadeUp) -> None:
    evil = '<img src=x onerror="alert(1)">'
    strip = {**WEIGHTS, evil: 2}
    plan, head = made_up.report.plan, made_up.report.plan.sites["head"]
    sites = {name: replace(head, rhs=Uniform(bits, head.rhs.scale)) for name, bits in strip.items()}
    report = replace(made_up.report_of(replace(plan, sites=sites), {}), allocation=allocation_of(strip))
    html = section(render(report))
    assert "<img" not in html and "&lt;img" in html
