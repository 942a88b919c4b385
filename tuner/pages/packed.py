"""Texts and values in a page: harmless wherever they come from, and compressed.

Names come from models and from other people's records. What a page shows by its template is
escaped there; what its script shows comes as compressed JSON in base64, which no text can break out
of, and goes into the page as text nodes. Control characters are made visible in both.
"""

from __future__ import annotations

import base64
import json
import math
import zlib
from collections.abc import Mapping
from typing import Any

from tunefarm.tuner.reports.terminal import printable

MOST_CHARACTERS = 400_000
"""Of one text: longer ones, such as the assembly of a large kernel, end there."""
_DIGITS = 5


def visible(value: Any) -> Any:
    """A JSON value whose texts have no control characters and whose numbers are short.

    Numbers that are not finite become null.
    """
    if isinstance(value, str):
        return printable(shortened(value, MOST_CHARACTERS))
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {visible(str(key)): visible(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [visible(item) for item in value]
    return value


def packed(value: Any) -> str:
    """A JSON value as base64 of its deflated text, made `visible`; the script inflates it."""
    text = json.dumps(visible(value), separators=(",", ":"), allow_nan=False)
    return packed_text(text)


def packed_text(text: str) -> str:
    """A text as base64 of itself deflated."""
    content = text.encode("utf-8", "backslashreplace")
    return base64.b64encode(zlib.compress(content, 9)).decode()


def shortened(text: str, most: int) -> str:
    """The text, or its beginning and an ellipsis."""
    return text if len(text) <= most else f"{text[:most]}…"
