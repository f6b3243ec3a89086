"""The chart of files by size: what is drawn lies where sizes and distances say, and names stay readable."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from itertools import combinations

import pytest
from markupsafe import escape

from ptq4vit_onnx.plan.budget import Budget, Limited
from ptq4vit_onnx.report.chart_labels import Box, Label, placed, shortened
from ptq4vit_onnx.report.size_chart import PLOT, Dot, described, log_ticks, size_chart
from tests.report.budgets import ROWS

DOTS = [row.dot for row in ROWS]
NAMED = [replace(dot, predicted=None) for dot in DOTS]


def marks(chart: str, kind: str) -> list[tuple[float, float]]:
    """Where the marks of a kind lie, with those of the legend left out, which lie above the plot."""
    found = re.findall(rf'class="{kind} mark" d="M([\d.]+) ([\d.]+)', chart)
    return [(float(x), float(y)) for x, y in found if float(y) > PLOT.top - 1]


def test_sizes_are_linear_and_distances_logarithmic() -> None:
    chart = size_chart(NAMED, None, "KL")
    (a, b, c), sizes = marks(chart, "single")[:3], [dot.size for dot in DOTS[:3]]
    assert (b[0] - a[0]) / (c[0] - b[0]) == pytest.approx((sizes[1] - sizes[0]) / (sizes[2] - sizes[1]), rel=0.01)
    logs = [math.log10(dot.distance) for dot in DOTS[:3]]
    assert (b[1] - a[1]) / (c[1] - b[1]) == pytest.approx((logs[1] - logs[0]) / (logs[2] - logs[1]), rel=0.01)
    assert a[0] < b[0] and a[1] < b[1], "a larger file lies to the right, a smaller distance lower"


def test_every_file_has_a_mark_of_its_group_within_the_plot() -> None:
    chart = size_chart(DOTS, None, "KL")
    assert [len(marks(chart, kind)) for kind in ("single", "mixed", "peer")] == [7, 4, 3]
    for x, y in (place for kind in ("single", "mixed", "peer", "guess") for place in marks(chart, kind)):
        assert PLOT.covers(x, y)


def test_the_line_goes_through_the_single_widths_by_size() -> None:
    chart = size_chart([*reversed(NAMED)], None, "KL")
    line = re.search(r'class="curve" d="M([^"]*)"', chart)
    assert line is not None
    assert line[1] == "L".join(f"{x:.1f} {y:.1f}" for x, y in sorted(marks(chart, "single")))


def test_the_chosen_file_has_a_ring_and_its_name_in_bold() -> None:
    chart = size_chart(DOTS, 9, "KL")
    assert DOTS[9].title == "4.83 bits on average"
    assert marks(chart, "chosen") == [marks(chart, "mixed")[2]]
    assert re.findall(r'<text class="mixed b[^"]*"[^>]*>([^<]*)', chart) == ["4.83 bits on average"]
    assert "chosen" not in size_chart(DOTS, None, "KL")


@pytest.mark.parametrize(
    ("limited", "limit", "name"), [("max_size", 4e6, "4 MB"), ("max_kl", 0.02, "KL 0.02"), ("max_drop", 0.5, None),
                                   ("average_weight_bits", 5.0, None), ("max_size", 90e6, None)],
)  # fmt: skip
def test_a_budget_is_a_line_where_it_is_a_size_or_a_kl(limited: Limited, limit: float, name: str | None) -> None:
    chart = size_chart(DOTS, 9, "KL", Budget(limited, limit))
    assert re.findall(r'<text class="limit[^>]*>([^<]*)', chart) == ([name] if name else [])
    line = re.search(r'<path class="limit" d="M([\d.]+) ([\d.]+)L([\d.]+) ([\d.]+)"', chart)
    assert (line is not None) == (name is not None)
    if line is None:
        return
    x, y, right, bottom = map(float, line.groups())
    singles, fits = marks(chart, "single"), [dot for dot in DOTS if dot.group == "single"]
    if limited == "max_size":
        assert x == right and [place[0] < x for place in singles] == [dot.size < limit for dot in fits]
    else:
        assert y == bottom and [place[1] > y for place in singles] == [dot.distance < limit for dot in fits]


def test_a_predicted_distance_is_a_bar_over_or_below_the_mark() -> None:
    chart = size_chart([replace(DOTS[2], predicted=2 * DOTS[2].distance), *DOTS[:2]], None, "KL")
    found = re.findall(r'class="guess mark" d="M([\d.]+) ([\d.]+)V([\d.]+)', chart)
    assert len(found) == 3 and float(found[0][2]) < float(found[0][1]), "twice the distance lies higher"
    assert marks(size_chart(NAMED, None, "KL"), "guess") == []


def test_the_legend_names_only_what_is_drawn() -> None:
    singles = [dot for dot in NAMED if dot.group == "single"]
    assert re.findall(r'y="18">([^<]*)', size_chart(singles, None, "KL")) == ["one width"]
    assert re.findall(r'y="18">([^<]*)', size_chart(DOTS, 0, "KL")) == [
        "one width", "mixture", "other tools", "predicted", "chosen",
    ]  # fmt: skip


def test_the_float_model_is_named_and_does_not_stretch_the_axes() -> None:
    with_float, without = size_chart(DOTS, None, "KL"), size_chart(DOTS[:-1], None, "KL")
    assert ">float: 22.9 MB<" in with_float and "float" not in without
    assert marks(with_float, "single") == marks(without, "single") and "float mark" not in with_float


def test_a_distance_without_a_logarithm_lies_at_the_border() -> None:
    chart = size_chart([*DOTS[:3], Dot("same", 5_000_000, 0.0, "mixed"), Dot("lost", 3_000_000, math.inf, "mixed")],
                       None, "KL")  # fmt: skip
    assert [y for _, y in marks(chart, "mixed")] == [PLOT.bottom, PLOT.top]
    assert "lost: 3.00 MB, KL inf" in chart


def test_one_file_alone_is_drawn_in_the_middle() -> None:
    ((x, y),) = marks(size_chart([NAMED[0]], 0, "KL"), "single")
    assert (x, y) == pytest.approx(((PLOT.left + PLOT.right) / 2, (PLOT.top + PLOT.bottom) / 2), abs=0.1)


def test_names_are_escaped_and_the_chart_is_not_escaped_again() -> None:
    chart = size_chart([*DOTS, Dot("<b>&", 3_000_000, 0.1, "peer")], None, "<KL>", title='by "<size>"')
    assert "<b>" not in chart and "<KL>" not in chart and 'aria-label="by &#34;&lt;size&gt;&#34;"' in chart
    assert chart.count("&lt;b&gt;&amp;") == 2, "its label, and the name when pointed at"
    assert escape(chart) == chart


def test_the_chart_is_described_for_those_who_do_not_see_it() -> None:
    said = "14 files, from 2.03 MB at KL 3.1 to 6.30 MB at KL 0.052. Chosen: 4 bits, 3.40 MB at KL 0.07."
    assert described(DOTS, 2, "KL") == said
    assert f"<desc>{said}</desc>" in size_chart(DOTS, 2, "KL")


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [(-4.2, 0.5, [1e-4, 1e-3, 0.01, 0.1, 1]), (-2.4, 0.0, [0.01, 0.03, 0.1, 0.3, 1]),
     (-1.1, -0.2, [0.1, 0.2, 0.5]), (0.0, 0.61, [1, 2, 3, 4])],
)  # fmt: skip
def test_ticks_of_a_logarithmic_axis_are_round_and_at_least_three(low: float, high: float, ticks: list[float]) -> None:
    assert log_ticks(low, high)[: len(ticks)] == pytest.approx(ticks)


def boxes_of(labels: list[Label]) -> list[Box]:
    """Where each of the names was put, found again among the places that it may have."""
    drawn = placed(labels, [(label.x, label.y) for label in labels], [], PLOT)
    texts = re.findall(r'<text class="([^"]*)" x="(-?\d+)" y="(-?\d+)">', drawn)
    found = []
    for label, (kind, x, y) in zip(labels, texts, strict=True):
        places = [box for box, _ in label.boxes() if abs(box.bottom - 3.5 - int(y)) <= 0.51]
        side = "left" if "left" in kind else "right" if "right" in kind else "middle"
        ends = {"left": lambda box: box.left, "right": lambda box: box.right,
                "middle": lambda box: (box.left + box.right) / 2}  # fmt: skip
        found.append(next(box for box in places if abs(ends[side](box) - int(x)) <= 0.51))
    return found


def test_names_of_close_files_do_not_overlap_and_stay_in_the_plot() -> None:
    labels = [Label(f"tool number {number}", 440 + 12 * number, 150 + 3 * number, "peer") for number in range(4)]
    boxes = boxes_of(labels)
    assert all(one.shared(other) == 0 for one, other in combinations(boxes, 2))
    assert all(box.beyond(PLOT) == 0 for box in boxes)
    alone = [boxes_of([label])[0] for label in labels]
    assert any(one.shared(other) for one, other in combinations(alone, 2)), "each alone would hide another"


def test_a_name_far_from_its_mark_is_tied_to_it() -> None:
    label = Label("name", 250, 150, "peer")
    near = [box for box, away in label.boxes() if away < 20]
    assert "leader" not in placed([label], [(250, 150)], [], PLOT)
    assert 'class="leader" d="M250.0 150.0' in placed([label], [(250, 150)], [], PLOT, others=near)


def test_a_long_name_is_cut() -> None:
    assert shortened("x" * 26) == "x" * 26 and shortened("x" * 27) == "x" * 25 + "…"
