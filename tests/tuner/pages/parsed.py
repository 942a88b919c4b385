"""Pages taken apart: their tags and texts, and the values that their script would show."""

from __future__ import annotations

import base64
import json
import re
import zlib
from html.parser import HTMLParser
from typing import Any

EVIL = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>&\x1b\u202e"
_OWN_ATTRIBUTES = {"text/plain"}


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.texts: list[str] = []
        self.scripts = 0
        self._within = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._within = tag
        assert not [name for name, _ in attrs if name.startswith("on")]
        if tag == "script":
            self.scripts += 1
            assert "src" not in dict(attrs)
            assert dict(attrs).get("type") in _OWN_ATTRIBUTES or "nonce" in dict(attrs)
            return
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        self._within = ""

    def handle_data(self, data: str) -> None:
        if self._within not in ("script", "style"):
            self.texts.append(data)


def parsed(page: str) -> _Tags:
    """The page's tags, without those of its own scripts, and what it shows without these."""
    parser = _Tags()
    parser.feed(page)
    return parser


def details(page: str) -> dict[str, Any]:
    """What the script shows of each kernel, by its place in the page."""
    found = re.findall(r'<script type="text/plain" id="data-(k\d+)">([^<]*)</script>', page)
    return {
        anchor: json.loads(zlib.decompress(base64.b64decode(content))) for anchor, content in found
    }
