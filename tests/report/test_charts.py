"""Charts: what is drawn lies where the quantizer and the losses say."""

from __future__ import annotations

import re

import numpy as np
import pytest
from markupsafe import escape

from ptq4vit_onnx.plan.evidence import Histogram, SearchCurve
from ptq4vit_onnx.plan.quantizers import Affine, Quantizer, TwinGelu, TwinSoftmax, Uniform, as_float32
from ptq4vit_onnx.report.charts import curve_chart, figure, histogram_chart, nice_ticks, points_of

STEP = as_float32(0.02)
QUANTIZERS: dict[str, Quantizer] = {
    "symmetric": Uniform(6, (STEP,)),
    "affine": Affine(6, (STEP,), (20,)),
    "softmax": TwinSoftmax(6, 3),
    "softmax that reaches the end": TwinSoftmax(6, 0),
    "gelu": TwinGelu(6, STEP, 2),
}


@pytest.mark.parametrize("name", QUANTIZERS)
def test_the_points_drawn_are_the_values_the_quantizer_gives(name: str) -> None:
    quantizer = QUANTIZERS[name]
    dense = np.linspace(
        0 if name.startswith("softmax") else -2, 1 if name.startswith("softmax") else 2, 200_001
    ).astype(np.float32)
    drawn = np.concatenate([p.first + p.step * np.arange(p.count) for p in points_of(quantizer)])
    given = np.unique(quantizer.fake_quantize(dense))
    np.testing.assert_allclose(np.unique(np.round(drawn, 6)), np.unique(np.round(given, 6)), atol=2e-6)


def test_of_several_heads_the_points_of_the_largest_step_are_drawn() -> None:
    (points,) = points_of(Uniform(4, (STEP, 3 * STEP, 2 * STEP), -3))
    assert points.step == 3 * STEP and points.first == -8 * 3 * STEP and points.count == 16


def test_a_dash_of_the_strip_lies_on_every_point() -> None:
    quantizer = Uniform(4, (1.0,))  # points -8 .. 7 over values -8 .. 8: sixteen steps across the chart
    chart = histogram_chart([Histogram(-8.0, 8.0, (1, 0, 5))], quantizer, "test")
    line = re.search(r'class="r2 rug".*?x1="([\d.]+)" x2="([\d.]+)" stroke-dasharray="([\d.]+) ([\d.]+)"', chart)
    assert line is not None
    start, end, dash, gap = map(float, line.groups())
    assert end - start == pytest.approx(15 * (dash + gap) + dash, abs=0.02)


def test_a_curve_stops_at_the_top_of_the_chart_and_is_parted_where_there_is_no_loss() -> None:
    curve = SearchCurve("scale", (0.2, 0.4, 0.6, 0.8, 1.0), {"mse": (1e9, 1.0, 4.0, None, 2.0)}, (0.4,))
    path = re.search(r'class="mse line used" d="([^"]*)"', curve_chart(curve, "mse", "test"))
    assert path is not None
    heights = [float(pair.split()[1]) for pair in re.split("[ML]", path.group(1))[1:]]
    assert len(heights) == 3 and min(heights) == 26.0 and max(heights) == 210.0


def test_a_chart_escapes_its_title_and_is_not_escaped_again() -> None:
    chart = histogram_chart([Histogram(-8.0, 8.0, (1, 0, 5))], Uniform(4, (1.0,)), 'values of "<a>"')
    assert 'aria-label="values of &#34;&lt;a&gt;&#34;"' in chart
    assert escape(chart) == chart


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.0123456, "0.0123"), (41.0, "41"), (5.7e-5, "5.7e-5"), (-0.25, "-0.25"), (1e6, "1e6")],
)  # fmt: skip
def test_figures_are_short(value: float, text: str) -> None:
    assert figure(value) == text


def test_ticks_are_round_and_within_the_axis() -> None:
    assert nice_ticks(-0.17, 0.0, 2) == pytest.approx([-0.1, 0.0])
    assert nice_ticks(0.0, 1.2, 6) == pytest.approx([0.0, 0.2, 0.4, 0.6, 0.8, 1.0, 1.2])
