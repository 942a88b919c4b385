"""The picture of a terminal: what was printed, and nothing that is loaded from elsewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.tuner.docs.terminal_picture import picture
from tunefarm.tuner.docs.pages import PAGES


def test_the_picture_shows_the_command_and_what_it_printed() -> None:
    svg = picture("Script started on x\n\x1b[?25l\x1b[1mbold\x1b[0m\r\nlast\r\n", "tune --help")
    for text in ("tune&#160;--help", "bold", "last"):
        assert text in svg
    assert "Script" not in svg and "25l" not in svg


@pytest.mark.parametrize("path", [*PAGES.rglob("*.svg")], ids=lambda path: path.name)
def test_pictures_load_nothing_from_elsewhere(path: Path) -> None:
    svg = path.read_text(encoding="utf-8")
    assert not re.search(r"(?:href|src)\s*=(?!\s*['\"]#)|url\(\s*['\"]?(?!#)|@import|<script", svg)
