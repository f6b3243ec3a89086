"""report.html: complete without a network or a script, and honest about what it shows."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any

import pytest
from markupsafe import escape

from ptq4vit_onnx.plan.channel_fold import Channels
from ptq4vit_onnx.plan.quantizers import Diffused
from ptq4vit_onnx.proof.float_parity import FloatParity
from ptq4vit_onnx.proof.kernels import ProductKernel
from ptq4vit_onnx.report.data import CalibrationImages
from ptq4vit_onnx.report.page import render
from ptq4vit_onnx.runtime.bench import BenchResult, Timing
from ptq4vit_onnx.runtime.modes import Mode

if TYPE_CHECKING:
    from tests.report.conftest import MadeUp


def text_of(html: str) -> str:
    """What a reader sees where scripts do not run."""
    bare = re.sub(r"<(script|style)\b.*?</\1>", " ", html, flags=re.DOTALL)
    return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]+>", " ", bare)))


class _Tags(HTMLParser):
    """Raises where an element is closed that is not the one opened last."""

    VOID = ("meta", "br", "link", "input")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.targets: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.ids += [value for name, value in attributes if name == "id" and value]
        self.targets += [value[1:] for name, value in attributes if name == "href" and value]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_well_formed_and_every_link_leads_to_a_part_of_it(made_up: MadeUp) -> None:
    tags = _Tags()
    tags.feed(made_up.page)
    assert tags.open == []
    assert len(set(tags.ids)) == len(tags.ids)
    assert set(tags.targets) <= set(tags.ids) and len(tags.targets) == 2 * len(made_up.report.plan.sites)


def test_nothing_is_loaded_from_anywhere(made_up: MadeUp) -> None:
    html = made_up.page
    assert not re.search(r"https?://|\bsrc=|url\(|@import|<link", html)
    assert "default-src 'none'" in html


def test_the_verdict_reads_without_a_script(made_up: MadeUp) -> None:
    text = text_of(made_up.page)
    for expected in (
        "vit_test, W8A6", "Passed: ", "98.9 %", "float 99.2 %, drop 0.3 ± 0.2 points", "98.4 %", "KL 5.7e-5", "0.42 MB",
        "3.0× smaller", "5 of 5", "42 weights moved", "99.80 % of 500 predictions", "w" * 64, "1.31.1", "1 skipped",
        "seed 7", "calibrate 4.5 s",
    ):  # fmt: skip
        assert expected in text
    assert "RANDOM WEIGHTS" not in text and "Latency" not in text


def test_the_page_says_on_what_it_was_calibrated_and_measured(made_up: MadeUp) -> None:
    images = CalibrationImages(32, (), "the built-in photos (coffee)", built_in=True)
    inputs = replace(made_up.report.inputs, calibration_images=images)
    text = text_of(render(replace(made_up.report, inputs=inputs)))
    assert "Calibrated on 32 images of the built-in photos (coffee); give your own by --data if" in text
    assert text.count("on 500 images of embedded digits (test), not calibrated on") == 2, "top-1 and agreement"


def test_random_weights_are_announced_before_anything_else(made_up: MadeUp) -> None:
    inputs = replace(made_up.report.inputs, weights_from="random")
    text = text_of(render(replace(made_up.report, inputs=inputs)))
    assert text.index("RANDOM WEIGHTS") < text.index("Passed")
    assert "says nothing about accuracy" in text


def test_what_is_odd_about_the_inputs_is_a_banner_above_the_verdict(made_up: MadeUp) -> None:
    images = CalibrationImages(32, warnings=("all are <black>; give others", "no blue; why"))
    inputs = replace(made_up.report.inputs, calibration_images=images, resampled="position table resampled",
                     remarks=("no padding",), advice="four bits save nothing")  # fmt: skip
    page = render(replace(made_up.report, inputs=inputs))
    text = text_of(page)
    for said in (
        "All are <black>; give others.",
        "No blue; why.",
        "Position table resampled.",
        "No padding.",
        "Four bits save nothing.",
    ):
        assert text.index(said) < text.index("Passed")
    assert page.count('class="banner" role="alert"') == 5


def test_a_failed_check_makes_the_verdict_a_failure_that_names_it(made_up: MadeUp) -> None:
    report = made_up.report
    sites, products = report.proof.sites, report.kernels.products
    proof = replace(
        report.proof,
        sites=[replace(site, exact=site.site != "blocks.0.mlp.fc2", failure="off by 2") for site in sites],
        kernels=replace(
            report.kernels, products=tuple(replace(item, integer=item.site != "head") for item in products)
        ),
        end_to_end=replace(report.end_to_end, passed=False),
    )
    html = render(replace(report, proof=proof, float_parity=FloatParity(8, 1.0)))
    text = text_of(html)
    assert "Passed" not in text and 'class="verdict failed"' in html
    assert "1 products differ from integer arithmetic, first blocks.0.mlp.fc2" in text
    assert "not in integers: head" in text and "differs from torch" in text
    assert '<td class="bad">off by 2</td>' in html


def test_without_labels_there_is_no_accuracy_but_agreement(made_up: MadeUp) -> None:
    versus: Any = made_up.report.against_float
    versus = replace(versus, agreement=90.0, top1_float=None, top1_quantised=None, drop=None)
    proof = replace(made_up.report.proof, against_float=versus)
    text = text_of(render(replace(made_up.report, proof=proof)))
    assert "Top-1" not in text and "90.0 %" in text


def test_latency_is_shown_where_it_was_measured(made_up: MadeUp) -> None:
    def timing(model: str, median: float, speed: float) -> Timing:
        return Timing(model, 1, 1, median, 0.9 * median, 1.1 * median, 10, speed)

    latency = BenchResult((timing("float", 2.2, 1.0), timing("int8", 1.3, 1.69)), "AVX2, no VNNI")
    text = text_of(render(replace(made_up.report, latency=latency)))
    assert "Latency 1.30 ms 1.69× as fast as float (2.20 ms); 1 thread, batch 1; AVX2, no VNNI" in text


def test_the_slow_mode_is_named_where_there_were_two(made_up: MadeUp) -> None:
    modes = (Mode(1.3, 1.2, 1.4, 6, 0.6, 2.0, 1.69), Mode(2.0, 1.9, 2.1, 4, 0.4, 1.0, 1.5))
    timings = (Timing("float", 1, 1, 2.2, 2.1, 2.3, 6, 1.0), Timing("int8", 1, 1, 1.3, 1.2, 1.4, 6, 1.69, modes))
    text = text_of(render(replace(made_up.report, latency=BenchResult(timings, "AVX2"))))
    assert "AVX2; fast mode, 60% of the runs (slow mode: 2.00 ms, 1.90 .. 2.10, 1.50x)" in text


def test_the_worst_site_is_named_marked_and_shown_first(made_up: MadeUp) -> None:
    html = made_up.page
    text = text_of(html)
    # 6 of 6 + 2 + 1 + 1 + 1; the lowest SQNR is that of another site
    assert "comes from blocks.0.mlp.fc2 (55 %); the noisiest output is that of blocks.0.attn.pv (20.0 dB)" in text
    assert re.findall(r'class="column worst" href="#(\S+)"', html) == ["site-3"]
    assert re.findall(r'class="column noisiest" href="#(\S+)"', html) == ["site-2"]
    assert re.findall(r'class="site first" id="(\S+)"', html) == ["site-3"]
    heights = [float(height) for height in re.findall(r'class="bar" style="height:([\d.]+)px', html)]
    assert heights == pytest.approx([25.0, 25.0, 25.0, 150.0, 50.0])


def test_every_site_has_a_column_two_charts_a_row_and_a_place_in_the_list(made_up: MadeUp) -> None:
    html = made_up.page
    for index, name in enumerate(made_up.report.plan.sites):
        assert f'title="{name}, ' in html and f"<option>{name}</option>" in html
        section = html[html.index(f'id="site-{index}"') :].partition("</section>")[0]
        assert section.count('role="img"') == 2
    rows = re.findall(r"<tr><th scope=\"row\">.*?</tr>", html)
    assert len(rows) == len(made_up.report.plan.sites)
    assert "twin GELU" in rows[3] and "0.02–0.06 (3)" in rows[3] and ">2<" in rows[3]
    assert "input channels with scales of their own, not in the histogram: 3, 5" in text_of(html)


def test_scaled_channels_are_said_where_they_are(made_up: MadeUp) -> None:
    channels = Channels("blocks.0.norm2", (1.0,), (0.0,))
    name, site = next(iter(made_up.report.plan.sites.items()))
    plan = replace(made_up.report.plan, sites={**made_up.report.plan.sites, name: replace(site, channels=channels)})
    said = "input channels centred and scaled one by one, folded into blocks.0.norm2"
    html = text_of(render(made_up.report_of(plan)))
    assert html.count(said) == 1 and " Channels " in html and html.count(" scaled ") == 2  # here, and in the table
    assert said not in text_of(made_up.page) and " Channels " not in text_of(made_up.page)


def test_what_is_done_to_biases_and_patch_weights_is_said_where_it_is(made_up: MadeUp) -> None:
    name, site = next(iter(made_up.report.plan.sites.items()))
    changed = replace(site, rhs=Diffused(8, site.rhs.scale), bias_correction=(0.5, 0.0, -0.25))
    plan = replace(made_up.report.plan, sites={**made_up.report.plan.sites, name: changed})
    html = text_of(render(made_up.report_of(plan)))
    for said in ("mean errors taken off 2 of 3 outputs", "right: symmetric, errors handed on, 8 bits"):
        assert html.count(said) == 1 and said not in text_of(made_up.page)


def test_names_are_escaped(made_up: MadeUp) -> None:
    evil = '<img src=x onerror="alert(1)">&'
    sites = {evil: made_up.report.plan.sites["head"]}
    plan = replace(made_up.report.plan, model=evil, sites=sites)
    html = render(made_up.report_of(plan, {evil: made_up.report.evidence["head"]}))
    assert "<img" not in html and escape(evil) in html


def test_a_name_with_a_comma_stays_whole(made_up: MadeUp) -> None:
    plan = replace(made_up.report.plan, sites={"odd, name": made_up.report.plan.sites["head"]})
    html = render(made_up.report_of(plan, {"odd, name": made_up.report.evidence["head"]}))
    assert "<b>odd, name</b><span>100.0 % of the expected damage</span><span>SQNR 31.5 dB</span>" in html
    assert 'data-name="odd, name" data-damage="100.0 % of the expected damage" data-noise="SQNR 31.5 dB"' in html


def test_without_evidence_nothing_is_said_of_errors_and_a_sentence_says_why(made_up: MadeUp) -> None:
    """The losses of a plan are in each site's own units: the largest of them is not the worst."""
    html = render(made_up.report_of(evidence={}))
    text = text_of(html)
    assert "Not known here. Calibration was skipped because a plan was given" in text
    assert "One site" not in text and 'class="site' not in html and 'class="column' not in html
    assert "largest" not in text and "weakest" not in text and "SQNR, dB" not in text and "Damage" not in text
    assert len(re.findall(r'<tr><th scope="row">', html)) == len(made_up.report.plan.sites)
    tags = _Tags()
    tags.feed(html)
    assert tags.open == []
    assert tags.targets == []


def test_the_table_says_parity_first_and_kernels_in_few_characters(made_up: MadeUp) -> None:
    kernels = made_up.report.kernels
    others = [
        ProductKernel("head", "MatMul.outliers", kernel, kernel in ("MatMulIntegerToFloat", "QLinearMatMul"), operands)
        for kernel, operands in (("MatMulIntegerToFloat", ("u8", "s8")), ("QLinearMatMul", ("u8", "u8")),
                                 ("MatMul", ("float", "float")), ("not found", ()))
    ]  # fmt: skip
    proof = replace(made_up.report.proof, kernels=replace(kernels, products=(*kernels.products, *others)))
    html = render(replace(made_up.report, proof=proof))
    heads = re.findall(r'<th scope="col"[^>]*>(.*?)</th>', html)
    assert (heads[:2], heads[-1]) == (["Site", "Parity"], "Kernel")
    rows = [re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row) for row in re.findall(r'<tr><th scope="row">.*?</tr>', html)]
    assert [row[1] for row in rows] == ["exact"] * len(made_up.report.plan.sites)
    assert rows[0][-1] == "u8 × s8 → float"
    assert rows[-1][-1] == "u8 × s8 → float (2); u8 × u8 → codes; float × float, MatMul; not found"


def test_the_page_of_a_large_model_stays_small(made_up: MadeUp) -> None:
    names = [f"blocks.{block}.{part}" for block in range(12) for part in ("attn.qkv", "attn.qk", "attn.pv", "mlp.fc2")]
    names += [f"blocks.{block}.{part}" for block in range(12) for part in ("attn.proj", "mlp.fc1")] + ["embed", "head"]
    kinds = list(made_up.report.plan.sites.values())
    sites = {name: kinds[index % len(kinds)] for index, name in enumerate(names)}
    plan = replace(made_up.report.plan, sites=sites)
    evidence = {name: made_up.evidence_of(name, site) for name, site in sites.items()}
    html = render(made_up.report_of(plan, evidence))
    assert len(sites) == 74
    assert len(html.encode()) < 500_000


def test_html_is_made_without_torch(run_python: Callable[..., Any]) -> None:
    run_python("import sys, ptq4vit_onnx.report.page; sys.exit('torch' in sys.modules)")
