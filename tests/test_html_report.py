"""report.html: complete without a network or a script, honest about what it shows, and drawn in a browser."""

from __future__ import annotations

import copy
import io
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from html import escape, unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from ptq4vit_onnx.charts import points_of
from ptq4vit_onnx.html_report import render
from ptq4vit_onnx.plan import Outliers, ScalePlan, SitePlan
from ptq4vit_onnx.quantizers import Affine, Quantizer, TwinGelu, TwinSoftmax, Uniform, as_float32
from ptq4vit_onnx.site_evidence import Histogram, SearchCurve, SiteEvidence

STEP = as_float32(0.02)
QUANTIZERS: dict[str, Quantizer] = {
    "symmetric": Uniform(6, (STEP,)),
    "affine": Affine(6, (STEP,), (20,)),
    "softmax": TwinSoftmax(6, 3),
    "gelu": TwinGelu(6, STEP, 2),
}
WEIGHT = Uniform(8, (STEP, 2 * STEP, 3 * STEP))
NARROW = Outliers((3, 5), Uniform(8, (STEP,)), Uniform(8, (STEP,)))
SITES = {
    "patch_embed.proj": SitePlan("conv", "other", QUANTIZERS["symmetric"], WEIGHT, losses={"hessian": 0.5}),
    "blocks.0.attn.qk": SitePlan("matmul", "other", Uniform(8, (STEP, 2 * STEP), -3), Uniform(8, (STEP,), -3)),
    "blocks.0.attn.pv": SitePlan("matmul", "softmax", QUANTIZERS["softmax"], Uniform(8, (STEP,), -3)),
    "blocks.0.mlp.fc2": SitePlan("linear", "gelu", QUANTIZERS["gelu"], WEIGHT, NARROW, losses={"hessian": 3.0}),
    "head": SitePlan("linear", "other", QUANTIZERS["affine"], WEIGHT),
}
DAMAGE = {"blocks.0.mlp.fc2": 6.0, "head": 2.0}
DECIBELS = {"blocks.0.attn.pv": 20.0, "head": 31.5}


def evidence_of(name: str, plan: SitePlan) -> SiteEvidence:
    twin = isinstance(plan.lhs, (TwinSoftmax, TwinGelu))
    shapes = [(points.first, points.last) for points in points_of(plan.lhs)]
    bins = (40, 56) if twin else (96,)
    histograms = tuple(
        Histogram(low, high, tuple(10 ** (number % 5) for number in range(count)))
        for (low, high), count in zip(shapes, bins, strict=True)
    )
    axis = "shift" if isinstance(plan.lhs, TwinSoftmax) else "scale"
    x = tuple(map(float, range(1, 12))) if axis == "shift" else tuple(0.03 * number for number in range(1, 41))
    best = x[len(x) * 3 // 4]
    losses = {
        metric: tuple(round(1 + 40 * ((value - best) / best) ** 2 * (1 + shift), 4) for value in x)
        for shift, metric in enumerate(("hessian", "mse", "cosine", "pearson"))
    }
    scales = (best, 0.9 * best) if name.endswith("qk") else (best,)
    curve = SearchCurve(axis, x, losses, scales)  # type: ignore[arg-type]
    return SiteEvidence(histograms, 0.001, DECIBELS.get(name, 40.0), DAMAGE.get(name, 1.0), curve)


EVIDENCE = {name: evidence_of(name, plan) for name, plan in SITES.items()}
PLAN = ScalePlan("vit_test", "w" * 64, "i" * 64, {}, {}, SITES)


def report_of(plan: ScalePlan = PLAN, **changes: Any) -> dict[str, Any]:
    products = [
        {"site": name, "product": "MatMul", "kernel": "MatMulIntegerToFloat", "integer": True, "operands": "u8 x s8",
         "unsafe": None} for name in plan.sites
    ]  # fmt: skip
    parity = [{"site": name, "product": "MatMul", "exact": True, "failure": None} for name in plan.sites]
    data: dict[str, Any] = {
        "version": "0.1.0", "model": plan.model, "random_weights": False, "synthetic_images": False,
        "weights_from": "embedded", "bits": {"weights": 8, "activations": 6},
        "options": {"metric": "hessian", "seed": 7, "bias_correction": False}, "versions": {"onnxruntime": "1.31.1"},
        "fingerprints": {"weights": plan.weights, "images": plan.images},
        "calibration_images": {"count": 32, "skipped": ["broken.png"]},
        "float_parity": {"images": 8, "error": 2e-7, "tolerance": 1e-4, "passed": True},
        "kernels": {"summary": f"{len(products)} of {len(products)} products in integers", "fell_back": [],
                    "products": products, "op_counts": {"QuantizeLinear": 4}},
        "site_parity": parity,
        "end_to_end": {"passed": True, "sentence": "99.80 % of 500 predictions equal the simulator's"},
        "against_float": {"agreement": 98.4, "kl": 5.7e-5, "top1_float": 99.2, "top1_quantised": 98.9,
                          "drop": {"points": 0.3, "standard_error": 0.2, "images": 500}},
        "measured_on": "500 of embedded digits (test)",
        "passes": {"moved_weights": {"head": 12, "patch_embed.proj": 30}},
        "bytes": {"float": 1_252_262, "model": 418_535}, "seconds": {"load": 3.2, "calibrate": 4.5},
    }  # fmt: skip
    return {**copy.deepcopy(data), **changes}


def page(**changes: Any) -> str:
    return render(report_of(**changes), PLAN, EVIDENCE)


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


def test_the_page_is_well_formed_and_every_link_leads_to_a_part_of_it() -> None:
    tags = _Tags()
    tags.feed(page())
    assert tags.open == []
    assert len(set(tags.ids)) == len(tags.ids)
    assert set(tags.targets) <= set(tags.ids) and len(tags.targets) == 2 * len(SITES)


def test_nothing_is_loaded_from_anywhere() -> None:
    html = page()
    assert not re.search(r"https?://|\bsrc=|url\(|@import|<link", html)
    assert "default-src 'none'" in html


def test_the_verdict_reads_without_a_script() -> None:
    text = text_of(page())
    for expected in (
        "vit_test, W8A6", "Passed: ", "98.9 %", "float 99.2 %, drop 0.3 ± 0.2 points", "98.4 %", "KL 5.7e-5", "0.42 MB",
        "3.0× smaller", "5 of 5", "42 weights moved", "99.80 % of 500 predictions", "w" * 64, "1.31.1", "1 skipped",
        "seed 7", "calibrate 4.5 s",
    ):  # fmt: skip
        assert expected in text
    assert "RANDOM WEIGHTS" not in text and "SYNTHETIC" not in text and "Latency" not in text


def test_random_weights_and_synthetic_images_are_announced_before_anything_else() -> None:
    text = text_of(page(random_weights=True, synthetic_images=True))
    assert text.index("RANDOM WEIGHTS") < text.index("SYNTHETIC IMAGES") < text.index("Passed")
    assert "says nothing about accuracy" in text


def test_a_failed_check_makes_the_verdict_a_failure_that_names_it() -> None:
    data = report_of()
    data["site_parity"][3] = {"site": "blocks.0.mlp.fc2", "product": "MatMul", "exact": False, "failure": "off by 2"}
    data["end_to_end"]["passed"] = False
    data["kernels"]["fell_back"] = ["head"]
    data["float_parity"]["passed"] = False
    html = render(data, PLAN, EVIDENCE)
    text = text_of(html)
    assert "Passed" not in text and 'class="verdict failed"' in html
    assert "1 products differ from integer arithmetic, first blocks.0.mlp.fc2" in text
    assert "not in integers: head" in text and "differs from torch" in text
    assert '<td class="bad">off by 2</td>' in html


def test_without_labels_there_is_no_accuracy_but_agreement() -> None:
    versus = {"agreement": 90.0, "kl": 0.1, "top1_float": None, "top1_quantised": None, "drop": None}
    text = text_of(page(against_float=versus))
    assert "Top-1" not in text and "90.0 %" in text


def test_latency_is_shown_where_it_was_measured() -> None:
    def timing(model: str, median: float, speed: float) -> dict[str, Any]:
        return {"model": model, "threads": 1, "batch": 1, "median": median, "speed": speed}

    timings = [timing("float", 2.2, 1.0), timing("int8", 1.3, 1.69)]
    text = text_of(page(latency={"timings": timings, "cpu": "AVX2, no VNNI"}))
    assert "Latency 1.30 ms 1.69× as fast as float (2.20 ms); 1 thread, batch 1; AVX2, no VNNI" in text


def test_the_worst_site_is_named_marked_and_shown_first() -> None:
    html = page()
    text = text_of(html)
    # 6 of 6 + 2 + 1 + 1 + 1; the lowest SQNR is that of another site
    assert "comes from blocks.0.mlp.fc2 (55 %); the noisiest output is that of blocks.0.attn.pv (20.0 dB)" in text
    assert re.findall(r'class="column worst" href="#(\S+)"', html) == ["site-3"]
    assert re.findall(r'class="column noisiest" href="#(\S+)"', html) == ["site-2"]
    assert re.findall(r'class="site first" id="(\S+)"', html) == ["site-3"]
    heights = [float(height) for height in re.findall(r'class="bar" style="height:([\d.]+)px', html)]
    assert heights == pytest.approx([25.0, 25.0, 25.0, 150.0, 50.0])


def test_every_site_has_a_column_two_charts_a_row_and_a_place_in_the_list() -> None:
    html = page()
    for index, name in enumerate(SITES):
        assert f'title="{name}, ' in html and f"<option>{name}</option>" in html
        section = html[html.index(f'id="site-{index}"') :].partition("</section>")[0]
        assert section.count('role="img"') == 2
    rows = re.findall(r"<tr><th scope=\"row\">.*?</tr>", html)
    assert len(rows) == len(SITES)
    assert "twin GELU" in rows[3] and "0.02–0.06 (3)" in rows[3] and ">2<" in rows[3]
    assert "input channels with scales of their own, not in the histogram: 3, 5" in text_of(html)


def test_names_are_escaped() -> None:
    evil = '<img src=x onerror="alert(1)">&'
    sites = {evil: SITES["head"]}
    plan = replace(PLAN, model=evil, sites=sites)
    html = render(report_of(plan), plan, {evil: EVIDENCE["head"]})
    assert "<img" not in html and escape(evil) in html


def test_without_evidence_the_losses_of_the_plan_are_shown_and_no_charts() -> None:
    html = render(report_of(), PLAN, {})
    text = text_of(html)
    assert "Calibration was skipped" in text and "One site" not in text and 'class="site' not in html
    assert "largest loss of the search is at blocks.0.mlp.fc2" in text
    assert "loss 3" in html and len(re.findall(r'<tr><th scope="row">', html)) == len(SITES)
    assert "SQNR, dB" not in text
    tags = _Tags()
    tags.feed(html)
    assert tags.open == []


def test_the_page_of_a_large_model_stays_small() -> None:
    names = [f"blocks.{block}.{part}" for block in range(12) for part in ("attn.qkv", "attn.qk", "attn.pv", "mlp.fc2")]
    names += [f"blocks.{block}.{part}" for block in range(12) for part in ("attn.proj", "mlp.fc1")] + ["embed", "head"]
    kinds = list(SITES.values())
    sites = {name: kinds[index % len(kinds)] for index, name in enumerate(names)}
    plan = replace(PLAN, sites=sites)
    html = render(report_of(plan), plan, {name: evidence_of(name, site) for name, site in sites.items()})
    assert len(sites) == 74
    assert len(html.encode()) < 500_000


def test_html_is_made_without_torch() -> None:
    code = "import sys, ptq4vit_onnx.html_report; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
# What must be drawn: its colour (None: anything but the page's), and on how much of its box at least.
MARKS: dict[str, tuple[str | None, float]] = {
    ".column.worst .bar": ("warm", 0.9),
    ".column.noisiest .dot": ("warm", 0.5),
    ".site.chosen .r1.area": (None, 0.4),
    ".site.chosen .r2.area": (None, 0.4),
    ".site.chosen .r1.rug": (None, 0.15),
    ".site.chosen .r2.rug": (None, 0.15),
    ".site.chosen .hessian.line": ("accent", 0.005),
    ".site.chosen .mse.line": ("warm", 0.002),
}
BOXES = """
document.body.dataset.found = JSON.stringify(MARKS.map(where => {
  const box = document.querySelector(where).getBoundingClientRect();
  return [box.left, box.top, box.right, box.bottom].map(Math.round);
}));
""".replace("MARKS", json.dumps(list(MARKS)))
CHOICES = """
const seen = [], list = document.getElementById("pick"), columns = document.querySelectorAll(".column");
const look = () => seen.push([list.value, [...document.querySelectorAll(".site")]
  .filter(site => site.offsetHeight).map(site => site.querySelector("h3").textContent).join(),
  document.getElementById("readout").firstChild.textContent]);
const press = key => document.activeElement.dispatchEvent(new KeyboardEvent("keydown", { key: key }));
look();
columns[0].click(); look();
press("ArrowRight"); look();
press("End"); look();
press("ArrowRight"); look();
list.selectedIndex = 2; list.dispatchEvent(new Event("change")); look();
document.getElementById("previous").click(); look();
document.body.dataset.found = JSON.stringify(seen);
"""


def browse(path: Path, *arguments: str) -> bytes:
    assert CHROMIUM is not None
    command = [
        CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
        "--disable-component-update", "--disable-sync", "--hide-scrollbars", "--window-size=1280,1800",
        f"--user-data-dir={path.parent / 'profile'}", *arguments, path.as_uri(),
    ]  # fmt: skip
    return subprocess.run(command, check=True, capture_output=True, timeout=120).stdout


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine, so the page cannot be looked at")
    return tmp_path


def write(folder: Path, html: str, script: str) -> Path:
    """The page with a script at its end that leaves what it found in the body."""
    path = folder / "report.html"
    path.write_text(html.replace("</body>", f"<script>{script}</script></body>"), encoding="utf-8")
    return path


def found_in(dom: bytes) -> Any:
    found = re.search(r'data-found="([^"]*)"', dom.decode())
    assert found is not None, "the script did not reach its end"
    return json.loads(unescape(found.group(1)))


@pytest.mark.parametrize(("scheme", "colours"), [
    (1, {"page": (255, 255, 255), "accent": (10, 102, 183), "warm": (194, 80, 10)}),
    (0, {"page": (20, 23, 27), "accent": (92, 171, 242), "warm": (240, 140, 74)}),
], ids=["light", "dark"])  # fmt: skip
def test_charts_are_drawn_in_both_themes(
    folder: Path, scheme: int, colours: Mapping[str, tuple[int, int, int]]
) -> None:
    theme, path, picture = (
        f"--blink-settings=preferredColorScheme={scheme}",
        write(folder, page(), BOXES),
        folder / "shot.png",
    )
    boxes = found_in(browse(path, theme, "--dump-dom"))
    browse(path, theme, f"--screenshot={picture}")
    image = np.asarray(Image.open(io.BytesIO(picture.read_bytes())).convert("RGB")).astype(int)
    np.testing.assert_allclose(image[2, 2], colours["page"], atol=2)
    for (left, top, right, bottom), (mark, (colour, share)) in zip(boxes, MARKS.items(), strict=True):
        thin = 3 * (bottom - top < 3)  # the box of a straight line has no height
        assert bottom < image.shape[0] and right <= image.shape[1] and right - left > 3
        part = image[top - thin : bottom + thin, left:right]
        distance = np.abs(part - colours[colour or "page"]).max(-1)
        drawn = distance > 24 if colour is None else distance < 24
        assert drawn.mean() > share, f"{mark} is not drawn"


def test_a_site_is_chosen_by_click_key_list_and_button(folder: Path) -> None:
    names = list(SITES)
    order = [names[3], names[0], names[1], names[4], names[0], names[2], names[1]]
    assert found_in(browse(write(folder, page(), CHOICES), "--dump-dom")) == [[name] * 3 for name in order]


def test_the_page_never_scrolls_sideways(folder: Path) -> None:
    widths = [360, 390, 768, 1000]
    frames = "".join(
        f'<iframe srcdoc="{escape(page(), quote=True)}" style="width:{width}px;height:900px;border:0"></iframe>'
        for width in widths
    )
    script = """onload = () => { document.body.dataset.found = JSON.stringify(
        [...document.querySelectorAll("iframe")].map(one => one.contentDocument.documentElement.scrollWidth)); }"""
    assert found_in(browse(write(folder, f"<body>{frames}</body>", script), "--dump-dom")) == widths
