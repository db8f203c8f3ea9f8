"""The built documentation site: its links, its names, and that it loads nothing from elsewhere.

`tox -e docs` builds it, with warnings as errors, into the folder ENGINE_SITE.
"""

from __future__ import annotations

import os
import re
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import click
import pytest

import engine
from engine import errors, hookspecs, onnxruntime, sharding, types
from engine.cli.app import app

SITE = Path(os.environ.get("ENGINE_SITE", "missing"))
pytestmark = pytest.mark.skipif(not SITE.is_dir(), reason="tox -e docs builds the site")
LOADING = {("script", "src"), ("img", "src"), ("link", "href"), ("iframe", "src"), ("use", "href")}


class Page(HTMLParser):
    """A page's links, what it loads, its anchors, and the beginnings of its paragraphs."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.anchors: set[str] = set()
        self.paragraphs: list[str] = []
        self._opened = ""
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._opened = tag
        for name, value in attrs:
            if name in ("id", "name") and value:
                self.anchors.add(value)
            if (tag, name) == ("a", "href") and value:
                self.links.append(value)
            if (tag, name) in LOADING and value:
                self.loaded.append(value)

    def handle_data(self, data: str) -> None:
        if self._opened == "p":
            self.paragraphs.append(data)
        self._opened = ""


@cache
def page(path: Path) -> Page:
    return Page(path)


def pages() -> list[Path]:
    found = sorted(SITE.rglob("*.html"))
    assert len(found) > 50
    return found


def test_a_page_loads_nothing_from_elsewhere() -> None:
    elsewhere = [
        (path.name, address)
        for path in pages()
        for address in page(path).loaded
        if urlsplit(address).netloc
    ]
    assert elsewhere == []
    for style in SITE.rglob("*.css"):
        assert not re.findall(r"url\(['\"]?(?:https?:)?//", style.read_text()), style


def test_every_link_leads_to_a_page_and_an_anchor_of_it() -> None:
    broken = [
        (path.relative_to(SITE).as_posix(), link)
        for path in pages()
        if path.name != "404.html"  # its links are absolute: a server shows it at any address
        for link in {*page(path).links, *page(path).loaded}
        if not leads_somewhere(path, link)
    ]
    assert broken == []


def leads_somewhere(source: Path, link: str) -> bool:
    """Return whether a link within the site leads to a file, and to an anchor of a page."""
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return True
    target = source.parent / unquote(parts.path) if parts.path else source
    target = Path(os.path.normpath(target))
    if target.suffix == ".html" and parts.fragment and target.exists():
        return unquote(parts.fragment) in page(target).anchors
    return target.exists()


def test_every_link_to_elsewhere_has_the_form_of_one() -> None:
    form = re.compile(r"https://[a-z0-9-]+(\.[a-z0-9-]+)+(/[^\s]*)?")
    outside = {link for path in pages() for link in page(path).links if urlsplit(link).netloc}
    assert outside
    assert [link for link in sorted(outside) if not form.fullmatch(link)] == []
    schemes = {urlsplit(link).scheme for path in pages() for link in page(path).links}
    assert schemes <= {"", "https"}


def test_no_page_shows_the_marks_of_markdown() -> None:
    marks = re.compile(r"\s*(\* |\| |```|~~~|#+ |:::)")
    shown = [
        (path.relative_to(SITE).as_posix(), text[:60])
        for path in pages()
        for text in page(path).paragraphs
        if marks.match(text) or re.search(r"\n(\* |\| |```)", text)
    ]
    assert shown == []


def anchors_of(folder: str) -> set[str]:
    return {anchor for path in (SITE / folder).rglob("*.html") for anchor in page(path).anchors}


@pytest.mark.parametrize(
    "module",
    [engine, errors, hookspecs, onnxruntime, sharding, types],
    ids=lambda one: one.__name__,
)
def test_the_reference_has_every_public_name(module: object) -> None:
    public = getattr(module, "__all__", None) or [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", "") == module.__name__
    ]
    last = {anchor.rpartition(".")[2] for anchor in anchors_of("reference")}
    assert public
    modules = ("capi", "__version__")
    assert [name for name in public if name not in (*last, *modules)] == []


def test_the_reference_has_every_command() -> None:
    found = page(SITE / "reference/commands.html").anchors
    context = click.Context(app, info_name="engine")
    names = app.list_commands(context)
    assert {"run", "serve", "replay"} <= {*names}
    assert [name for name in names if f"engine-{name}" not in found] == []
