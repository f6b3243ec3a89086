"""The site builds without a warning, every page has a title, and no page asks another host for anything."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import pytest

if TYPE_CHECKING:
    from tests.docs.conftest import Site

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(page.relative_to(ROOT / "docs") for page in (ROOT / "docs").rglob("*.md"))
# What a browser loads by itself: all but <a href>, and the links that only say something of the page.
LOADS = {"src", "srcset", "data", "poster", "background", "action", "formaction"}
ONLY_SAYS = {"next", "prev", "canonical", "alternate", "edit"}
# Markdown that stays as it is, because a blank line or an indentation is missing: MkDocs is stricter than GitHub.
MARKS = re.compile(r"^\s*(?:[-*+] |\d+\. |\||```|~~~|:::|#{1,6} |!!! )", re.MULTILINE)


class Page(HTMLParser):
    """titles: texts of <h1>. loaded: addresses that a browser loads. prose: texts of paragraphs and of items."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.titles: list[str] = []
        self.loaded: list[str] = []
        self.prose: list[str] = []
        self._open: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attributes: Any) -> None:
        given = {name: value or "" for name, value in attributes}
        self.loaded += [given[name] for name in sorted(LOADS & set(given))]
        if tag == "link" and not ONLY_SAYS & set(given.get("rel", "").split()):
            self.loaded.append(given.get("href", ""))
        self._open.append(tag)
        if tag == "h1":
            self.titles.append("")
        if tag in ("p", "li"):
            self.prose.append("")

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop() != tag:  # tags without an end lie above it
            pass

    def handle_data(self, data: str) -> None:
        if "h1" in self._open:
            self.titles[-1] += data
        if self.prose and not {"pre", "code", "script"} & set(self._open) and {"p", "li"} & set(self._open):
            self.prose[-1] += data


def page_of(site: Site, name: str) -> Page:
    return Page((site.folder / name).read_text(encoding="utf-8"))


def is_elsewhere(address: str) -> bool:
    """Whether an address, or one of a srcset, is on another host."""
    parts = [part.strip().split(" ")[0] for part in address.split(",")]
    return any(part.startswith("//") or urlsplit(part).scheme not in ("", "data") for part in parts)


def test_the_site_builds_without_a_warning(site: Site) -> None:
    assert site.code == 0 and site.said.strip() == "", site.said


def test_every_page_of_docs_is_built_and_has_one_title(site: Site) -> None:
    assert site.pages == sorted(page.with_suffix(".html").as_posix() for page in PAGES if page.parts[0] != "demo")
    for name in site.pages:
        titles = [title.strip(" \n¶") for title in page_of(site, name).titles]
        assert len(titles) == 1 and titles[0], f"{name}: {titles}"


def test_no_page_loads_anything_from_another_host(site: Site) -> None:
    for name in [*site.pages, "404.html"]:
        assert [address for address in page_of(site, name).loaded if is_elsewhere(address)] == [], name
    for style in site.folder.rglob("*.css"):
        found = re.findall(r"(?:url\(|@import)\s*[\"']?([^\"')\s]+)", style.read_text(encoding="utf-8"))
        assert [address for address in found if is_elsewhere(address)] == [], style.name


def test_all_that_pages_load_is_there(site: Site) -> None:
    for name in site.pages:
        for address in page_of(site, name).loaded:
            path = unquote(urlsplit(address).path)
            assert not path or ((site.folder / name).parent / path).exists(), f"{name} loads {address}"


@pytest.mark.parametrize(
    ("html", "elsewhere"),
    [("<script src=https://a.example/x.js></script>", True), ("<img src=//a.example/x.png>", True),
     ("<img srcset='x.png 1x, https://a.example/x.png 2x'>", True), ("<link rel=stylesheet href=http://a/x.css>", True),
     ("<link rel=canonical href=https://a.example>", False), ("<a href=https://a.example>", False),
     ("<img src=../x.png>", False)],
)  # fmt: skip
def test_what_another_host_would_be_asked_for_is_seen(html: str, elsewhere: bool) -> None:
    assert any(is_elsewhere(address) for address in Page(html).loaded) == elsewhere


def test_no_page_shows_marks_of_markdown(site: Site) -> None:
    """GitHub takes a list without a blank line before it, and a block in an item indented by less than four."""
    for name in site.pages:
        shown = [text for text in page_of(site, name).prose if MARKS.search(text)]
        assert shown == [], f"{name}: put a blank line before it, indent it by four, or write it as code"


def test_marks_of_markdown_are_seen() -> None:
    for text in ("Two things:\n- one", "a table\n| a | b |", "1. one\n```sh\nls"):
        assert any(MARKS.search(part) for part in Page(f"<p>{text}</p>").prose)
    assert not any(MARKS.search(part) for part in Page("<p>a - b, 1.5 and <code>- x</code></p>").prose)


def test_files_that_pages_name_for_download_are_copied(site: Site) -> None:
    for name in ("plan.schema.json", "report.schema.json", "github-actions.yml"):
        assert (site.folder / name).read_bytes() == (ROOT / "docs" / name).read_bytes()
    assert not (site.folder / "demo").exists()
