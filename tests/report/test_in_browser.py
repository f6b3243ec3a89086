"""report.html in a browser: charts are drawn, sites can be chosen, nothing scrolls sideways."""

from __future__ import annotations

import io
import json
import re
import shutil
import subprocess
from dataclasses import replace
from html import escape, unescape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import Image

from ptq4vit_onnx.plan.quantizers import Uniform, as_float32
from ptq4vit_onnx.report.page import render

if TYPE_CHECKING:
    from tests.report.conftest import MadeUp

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
# What must be drawn: in which colour (None: anything but the page's), and on how much of its box at least. The shares
# are far below what is drawn, and far above none.
MARKS: dict[str, tuple[str | None, float]] = {
    ".column.worst .bar": ("warm", 0.5),
    ".column.noisiest .dot": ("warm", 0.25),
    ".site.chosen .r1.area": (None, 0.2),
    ".site.chosen .r2.area": (None, 0.2),
    ".site.chosen .r1.rug": (None, 0.05),
    ".site.chosen .r2.rug": (None, 0.05),
    ".site.chosen .hessian.line": ("blue", 0.001),
    ".site.chosen .mse.line": ("warm", 0.001),
}
CLEARLY = 24  # of 255: more than antialiasing and colour profiles change
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


def drawn_in(part: Any, colour: str | None, page: Any) -> Any:
    """Which pixels [height, width, 3] have the colour: more red than blue, more blue than red, or not the page's."""
    if colour is None:
        return np.abs(part - page).max(-1) > CLEARLY
    redder = part[..., 0] - part[..., 2]
    return redder > CLEARLY if colour == "warm" else -redder > CLEARLY


@pytest.mark.parametrize("scheme", [1, 0], ids=["light", "dark"])
def test_charts_are_drawn_in_both_themes(made_up: MadeUp, folder: Path, scheme: int) -> None:
    theme, path, picture = (
        f"--blink-settings=preferredColorScheme={scheme}",
        write(folder, made_up.page, BOXES),
        folder / "shot.png",
    )
    boxes = found_in(browse(path, theme, "--dump-dom"))
    browse(path, theme, f"--screenshot={picture}")
    image = np.asarray(Image.open(io.BytesIO(picture.read_bytes())).convert("RGB")).astype(int)
    page = image[2, 2]
    assert page.min() > 200 if scheme else page.max() < 55
    for (left, top, right, bottom), (mark, (colour, share)) in zip(boxes, MARKS.items(), strict=True):
        thin = 3 * (bottom - top < 3)  # the box of a straight line has no height
        assert bottom < image.shape[0] and right <= image.shape[1] and right - left > 3
        part = image[top - thin : bottom + thin, left:right]
        assert drawn_in(part, colour, page).mean() > share, f"{mark} is not drawn"


def test_a_site_is_chosen_by_click_key_list_and_button(made_up: MadeUp, folder: Path) -> None:
    names = list(made_up.report.plan.sites)
    order = [names[3], names[0], names[1], names[4], names[0], names[2], names[1]]
    assert found_in(browse(write(folder, made_up.page, CHOICES), "--dump-dom")) == [[name] * 3 for name in order]


@pytest.mark.parametrize("headless", [False, True], ids=["", "the last site is in a block"])
def test_the_page_never_scrolls_sideways(made_up: MadeUp, folder: Path, headless: bool) -> None:
    widths, report = [360, 390, 420, 768, 1000], made_up.report
    sites = {name: site for name, site in report.plan.sites.items() if name.startswith("blocks") or not headless}
    page = render(made_up.report_of(replace(report.plan, sites=sites), {name: report.evidence[name] for name in sites}))
    frames = "".join(
        f'<iframe srcdoc="{escape(page, quote=True)}" style="width:{width}px;height:900px;border:0"></iframe>'
        for width in widths
    )
    script = """onload = () => { document.body.dataset.found = JSON.stringify(
        [...document.querySelectorAll("iframe")].map(one => one.contentDocument.documentElement)
        .map(page => page.scrollWidth - page.clientWidth)); }"""  # the second is without the bar at its side
    found = found_in(browse(write(folder, f"<body>{frames}</body>", script), "--dump-dom"))
    assert found == [0] * len(widths)


def test_the_table_of_sites_fits_a_screen_of_1280_pixels(made_up: MadeUp, folder: Path) -> None:
    """With every column filled, names as long as Swin's and a scale for each of 576 outputs."""
    weight = Uniform(8, tuple(as_float32(0.000596 + 0.000004 * number) for number in range(576)))
    forms = {"TwinGelu": 0.0001, "Affine": 0.00025}
    sites = {
        f"layers.2.{name}" if name.startswith("blocks") else name: replace(site, forms=forms, rhs=weight)
        for name, site in made_up.report.plan.sites.items()
    }
    plan = replace(made_up.report.plan, sites=sites)
    evidence = dict(zip(sites, made_up.report.evidence.values(), strict=True))
    script = """const box = document.querySelector(".scroll");
        document.body.dataset.found = JSON.stringify([innerWidth, box.scrollWidth - box.clientWidth]);"""
    path = write(folder, render(made_up.report_of(plan, evidence)), script)
    width, overflow = found_in(browse(path, "--dump-dom"))
    assert width <= 1280 and overflow <= 0
