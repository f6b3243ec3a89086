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
from ptq4vit_onnx.report.data import weight_bits
from ptq4vit_onnx.report.page import render
from ptq4vit_onnx.report.pareto_page import pareto_svg, render_pareto
from tests.report.budgets import ABOUT, ROWS, allocation_of

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
# Of the files by size: on the page of an export within a budget, and on that of `pareto`.
FILE_MARKS: dict[str, tuple[str | None, float]] = {
    "path.curve": ("blue", 0.007),  # the marks on it are 0.0035
    ".single.mark": ("blue", 0.4),
    ".mixed.mark": ("warm", 0.2),
    ".guess.mark": (None, 0.02),
}
BUDGET_MARKS: dict[str, tuple[str | None, float]] = {
    **FILE_MARKS,
    ".chosen.mark": (None, 0.1),
    "path.limit": ("warm", 0.05),
    ".widths .bits-3 i": ("warm", 0.8),
    ".widths .bits-8 i": ("blue", 0.8),
}
PARETO_MARKS: dict[str, tuple[str | None, float]] = {**FILE_MARKS, ".peer.mark": (None, 0.4)}
CLEARLY = 24  # of 255: more than antialiasing and colour profiles change
BOXES = """
document.body.dataset.found = JSON.stringify(MARKS.map(where => {
  const box = document.querySelector(where).getBoundingClientRect();
  return [box.left, box.top, box.right, box.bottom].map(Math.round);
}));
"""
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
    """The page with a script at its end that leaves what it found in the body; scripts are allowed."""
    path, styles = folder / "report.html", "style-src 'unsafe-inline'"
    html = html.replace(f'{styles}">', f"{styles}; script-src 'unsafe-inline'\">")
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


def page_within_budget(made_up: MadeUp) -> str:
    """The made-up export with several widths, within a budget, and with all that is measured of a file."""
    plan = made_up.report.plan
    widths = dict(zip(weight_bits(plan), (8, 3, 5), strict=True))
    sites = {
        name: replace(site, rhs=Uniform(widths[name], site.rhs.scale)) if name in widths else site
        for name, site in plan.sites.items()
    }
    allocation = allocation_of(widths)
    points = tuple(replace(point, agreement=98.45, drop=0.31, drop_error=0.25) for point in allocation.points)
    report = made_up.report_of(replace(plan, sites=sites))
    return render(replace(report, allocation=replace(allocation, points=points)))


def require_drawn(html: str, marks: dict[str, tuple[str | None, float]], folder: Path, scheme: int) -> None:
    """scheme: 1 is light, 0 is dark."""
    script = BOXES.replace("MARKS", json.dumps(list(marks)))
    theme, path, picture = (
        f"--blink-settings=preferredColorScheme={scheme}",
        write(folder, html, script),
        folder / "shot.png",
    )
    boxes = found_in(browse(path, theme, "--dump-dom"))
    browse(path, theme, f"--screenshot={picture}")
    image = np.asarray(Image.open(io.BytesIO(picture.read_bytes())).convert("RGB")).astype(int)
    page = image[2, 2]
    assert page.min() > 200 if scheme else page.max() < 55
    for (left, top, right, bottom), (mark, (colour, share)) in zip(boxes, marks.items(), strict=True):
        flat, upright = 3 * (bottom - top < 3), 3 * (right - left < 3)  # the box of a straight line is empty
        assert bottom < image.shape[0] and right <= image.shape[1] and max(right - left, bottom - top) > 3
        part = image[top - flat : bottom + flat, left - upright : right + upright]
        assert drawn_in(part, colour, page).mean() > share, f"{mark} is not drawn"


@pytest.mark.parametrize("scheme", [1, 0], ids=["light", "dark"])
def test_charts_are_drawn_in_both_themes(made_up: MadeUp, folder: Path, scheme: int) -> None:
    require_drawn(made_up.page, MARKS, folder, scheme)


@pytest.mark.parametrize("scheme", [1, 0], ids=["light", "dark"])
def test_files_by_size_and_the_bits_of_weights_are_drawn_in_both_themes(
    made_up: MadeUp, folder: Path, scheme: int
) -> None:
    require_drawn(page_within_budget(made_up), BUDGET_MARKS, folder, scheme)
    require_drawn(render_pareto(ROWS, ABOUT), PARETO_MARKS, folder, scheme)


def test_the_picture_of_files_by_size_is_drawn_without_the_page(folder: Path) -> None:
    require_drawn(f"<body style='margin:0'>{pareto_svg(ROWS, ABOUT)}</body>", PARETO_MARKS, folder, 1)


@pytest.mark.parametrize("width", [420, 1280])
def test_no_text_of_the_chart_of_files_lies_on_another(made_up: MadeUp, folder: Path, width: int) -> None:
    """The box of a text is taller than its letters: 3 pixels at its top and bottom are not counted."""
    script = """onload = () => { document.body.dataset.found = JSON.stringify(
        [...document.querySelectorAll("iframe")].map(frame => {
          const texts = [...frame.contentDocument.querySelector("svg:has(.curve)").querySelectorAll("text")];
          const boxes = texts.map(text => text.getBoundingClientRect());
          const lower = (a, b) => a.top + 3 >= b.bottom - 3, beside = (a, b) => a.left >= b.right;
          const on = (a, b) => !lower(a, b) && !lower(b, a) && !beside(a, b) && !beside(b, a);
          return texts.flatMap((text, i) => texts.slice(0, i).filter((other, j) => on(boxes[i], boxes[j]))
            .map(other => text.textContent + " on " + other.textContent));
        })); }"""
    frames = "".join(
        f'<iframe srcdoc="{escape(page, quote=True)}" style="width:{width}px;height:1800px;border:0"></iframe>'
        for page in (page_within_budget(made_up), render_pareto(ROWS, ABOUT))
    )
    assert found_in(browse(write(folder, f"<body>{frames}</body>", script), "--dump-dom")) == [[], []]


def test_a_site_is_chosen_by_click_key_list_and_button(made_up: MadeUp, folder: Path) -> None:
    names = list(made_up.report.plan.sites)
    order = [names[3], names[0], names[1], names[4], names[0], names[2], names[1]]
    assert found_in(browse(write(folder, made_up.page, CHOICES), "--dump-dom")) == [[name] * 3 for name in order]


def require_no_sideways_scroll(page: str, folder: Path) -> None:
    widths = [360, 390, 420, 768, 1000]
    frames = "".join(
        f'<iframe srcdoc="{escape(page, quote=True)}" style="width:{width}px;height:900px;border:0"></iframe>'
        for width in widths
    )
    script = """onload = () => { document.body.dataset.found = JSON.stringify(
        [...document.querySelectorAll("iframe")].map(one => one.contentDocument.documentElement)
        .map(page => page.scrollWidth - page.clientWidth)); }"""  # the second is without the bar at its side
    found = found_in(browse(write(folder, f"<body>{frames}</body>", script), "--dump-dom"))
    assert found == [0] * len(widths)


@pytest.mark.parametrize("headless", [False, True], ids=["", "the last site is in a block"])
def test_the_page_never_scrolls_sideways(made_up: MadeUp, folder: Path, headless: bool) -> None:
    report = made_up.report
    sites = {name: site for name, site in report.plan.sites.items() if name.startswith("blocks") or not headless}
    page = render(made_up.report_of(replace(report.plan, sites=sites), {name: report.evidence[name] for name in sites}))
    require_no_sideways_scroll(page, folder)


def test_pages_with_files_by_size_never_scroll_sideways(made_up: MadeUp, folder: Path) -> None:
    require_no_sideways_scroll(page_within_budget(made_up), folder)
    require_no_sideways_scroll(render_pareto(ROWS, ABOUT), folder)


def test_the_tables_of_files_fit_a_screen_of_1280_pixels(made_up: MadeUp, folder: Path) -> None:
    script = """const box = document.querySelector(".scroll");
        document.body.dataset.found = JSON.stringify([innerWidth, box.scrollWidth - box.clientWidth]);"""
    for html in (page_within_budget(made_up), render_pareto(ROWS, ABOUT)):
        width, overflow = found_in(browse(write(folder, html, script), "--dump-dom"))
        assert width <= 1280 and overflow <= 0


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
