"""The site: built without a warning, all pages in its navigation, nothing in it from elsewhere."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from mkdocs.commands.build import build
from mkdocs.config import load_config
from mkdocs.exceptions import Abort

from tunefarm.tuner.docs import pages
from tunefarm.tuner.docs.pages import PAGES, Pages

CONFIGURATION = Path(pages.__file__).parent / "mkdocs.yml"
_LOADED = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src"}
_STYLE_URL = re.compile(r"(?:url\(|@import)\s*['\"]?([^'\")\s]+)")
_EXTERNAL = re.compile(r"https?://[a-z0-9.-]+\.[a-z]{2,}(/[^\s<>\"]*)?")


class _Links(HTMLParser):
    """What a page loads, and where its links lead."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.links: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if (name := _LOADED.get(tag)) and (value := values.get(name)):
            self.loaded.append(value)
        if tag == "a" and (value := values.get("href")):
            self.links.append(value)


def build_site(configuration: Path, folder: Path) -> None:
    """As `mkdocs build` does: strict about links, anchors and pages outside of the navigation."""
    build(load_config(str(configuration), site_dir=str(folder.resolve()), strict=True))


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    build_site(CONFIGURATION, folder)
    return folder


def test_every_page_is_in_the_site(built: Path) -> None:
    for name in Pages():
        assert (built / f"{name}.html").is_file(), name


def test_nothing_is_loaded_from_elsewhere(built: Path) -> None:
    for page in built.rglob("*.html"):
        for where in _Links(page.read_text(encoding="utf-8")).loaded:
            assert not urlsplit(where).netloc, f"{page.name} loads {where}"
    for style in built.rglob("*.css"):
        for where in _STYLE_URL.findall(style.read_text(encoding="utf-8")):
            assert where.startswith("data:") or not urlsplit(where).netloc, f"{style}: {where}"


def test_links_to_elsewhere_are_addresses(built: Path) -> None:
    for page in built.rglob("*.html"):
        for where in _Links(page.read_text(encoding="utf-8")).links:
            assert not urlsplit(where).netloc or _EXTERNAL.fullmatch(where), f"{page}: {where}"


@pytest.mark.parametrize("text", ["[gone](gone.md)", "[gone](index.md#gone)", "[gone](/gone)"])
def test_a_broken_link_is_an_error(
    text: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    configuration = _small_site(tmp_path, f"# Index\n\n{text}\n")
    with pytest.raises(Abort, match="warning"):
        build_site(configuration, tmp_path / "built")
    assert "gone" in caplog.text


def test_a_page_that_is_not_in_the_navigation_is_an_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    configuration = _small_site(tmp_path, "# Index\n")
    (tmp_path / "docs/pages/lost.md").write_text("# Lost\n", encoding="utf-8")
    with pytest.raises(Abort, match="warning"):
        build_site(configuration, tmp_path / "built")
    assert "lost.md" in caplog.text


def _small_site(folder: Path, index: str) -> Path:
    """The same configuration with one page, and no reference."""
    pages = folder / "docs/pages"
    pages.mkdir(parents=True)
    (pages / "index.md").write_text(index, encoding="utf-8")
    text = CONFIGURATION.read_text(encoding="utf-8")
    text = re.sub(r"^hooks:.*?(?=^\w)", "", text, flags=re.M | re.S)
    text = re.sub(r"^nav:.*", "nav:\n  - index.md\n", text, flags=re.M | re.S)
    (folder / "docs/mkdocs.yml").write_text(text, encoding="utf-8")
    return folder / "docs/mkdocs.yml"


def test_pages_are_sources_of_the_package() -> None:
    assert all(path.suffix in (".md", ".png", ".svg") for path in PAGES.rglob("*.*"))
