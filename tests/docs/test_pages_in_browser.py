"""The site's pages in a browser: none is wider than the window, and none asks another host for anything."""

from __future__ import annotations

import functools
import json
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from html import unescape
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.docs.conftest import Site

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
# Behind the window's load event: the theme's script wraps tables, and asks for what it needs for the search.
SETTLED = 1000  # milliseconds
SCRIPT = """onload = () => setTimeout(() => { document.body.dataset.found = JSON.stringify(
  [...document.querySelectorAll("iframe")].map(frame => {
    const page = frame.contentDocument.documentElement, asked = frame.contentWindow.performance;
    return [frame.getAttribute("src"), page.scrollWidth - page.clientWidth,
            frame.contentDocument.querySelectorAll("article h1").length,
            asked.getEntriesByType("resource").map(one => one.name).filter(name => !name.startsWith(location.origin))];
  })); }, SETTLED);"""


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *arguments: Any) -> None:
        pass


@pytest.fixture
def address(site: Site) -> Iterator[str]:
    """Where the site is served on this machine: pages in frames may be looked into there, but not as files."""
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine, so the pages cannot be looked at")
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(site.folder)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def look(url: str, profile: Path) -> Any:
    """What the page's script leaves in its body."""
    assert CHROMIUM is not None
    command = [
        CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
        "--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-proxy-server",
        "--window-size=1600,1200",
        f"--user-data-dir={profile}", "--virtual-time-budget=5000", "--dump-dom", url,
    ]  # fmt: skip
    dom = subprocess.run(command, check=True, capture_output=True, timeout=300).stdout.decode()
    found = re.search(r'data-found="([^"]*)"', dom)
    assert found is not None, "the script did not reach its end"
    return json.loads(unescape(found[1]))


@pytest.mark.parametrize("width", [360, 1280])
def test_no_page_is_wider_than_the_window_and_none_asks_another_host(
    site: Site, address: str, tmp_path: Path, width: int
) -> None:
    frames = "".join(
        f'<iframe src="{page}" style="width:{width}px;height:900px;border:0"></iframe>' for page in site.pages
    )
    script = f"<script>{SCRIPT.replace('SETTLED', str(SETTLED))}</script>"
    (site.folder / f"frames-{width}.htm").write_text(f"<!doctype html><body>{frames}{script}</body>", encoding="utf-8")
    found = look(f"{address}/frames-{width}.htm", tmp_path / "profile")
    assert found == [[page, 0, 1, []] for page in site.pages]
