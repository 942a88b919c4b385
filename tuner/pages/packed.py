"""Strings and values in a page: harmless wherever they come from, and compressed.

Names come from models and from other people's records. What a page shows by its template is
escaped there; what its script shows comes as compressed JSON in base64, which no text can break out
of, and goes into the page as text nodes. Control characters become a mark in both.
"""

from __future__ import annotations

import base64
import json
import math
import zlib
from collections.abc import Callable, Mapping
from typing import Any

from tunefarm.tuner.reports.terminal import printable, readable

MOST_CHARACTERS = 400_000
"""Of one text: longer ones, such as the assembly of a large kernel, end there."""
_DIGITS = 5


def visible(value: Any, clean: Callable[[str], str] = printable) -> Any:
    """A JSON value whose strings are `clean`, without control characters, and whose numbers have
    five digits at most; those that are not finite become null."""
    if isinstance(value, str):
        return clean(shortened(value, MOST_CHARACTERS))
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None
    if isinstance(value, Mapping):
        items = value.items()
        return {clean(str(key)): visible(item, clean) for key, item in items}
    if isinstance(value, list | tuple):
        return [visible(item, clean) for item in value]
    return value


def packed(value: Any) -> str:
    """A JSON value as base64 of its deflated text, made `visible`; the script inflates it."""
    text = json.dumps(visible(value, readable), separators=(",", ":"), allow_nan=False)
    return packed_text(text)


def packed_text(text: str) -> str:
    """A text as base64 of itself deflated."""
    content = text.encode("utf-8", "backslashreplace")
    return base64.b64encode(zlib.compress(content, 9)).decode()


def shortened(text: str, most: int) -> str:
    """The text, or its beginning and an ellipsis."""
    return text if len(text) <= most else f"{text[:most]}…"
