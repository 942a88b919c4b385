"""Strings and tables as HTML, for notebooks: whatever names say, it is text.

Colours are the notebook's own, dark or light: there is no style but alignment.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

SHOWN_ROWS = 30
"""Rows of a table that are seen at once; the rest is folded."""


def printable_text(text: str) -> str:
    """The text with controls, also those of the direction of text, as escapes: they are seen."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def html_text(text: object) -> str:
    """A text as HTML, in attributes too."""
    return escape(printable_text(str(text)), quote=True)


def html_lines(lines: Sequence[str]) -> str:
    """Lines of text as they are, each for itself."""
    return "".join(f"<div>{html_text(line)}</div>" for line in lines)


def html_table(columns: Sequence[str], rows: Sequence[Sequence[str]], texts: int = 1) -> str:
    """A table of strings; the first `texts` columns and the last are read from the left.

    Figures are aligned at the right. All rows behind the first `SHOWN_ROWS` are folded.
    """
    if len(rows) > SHOWN_ROWS:
        shown = html_table(columns, rows[:SHOWN_ROWS], texts)
        folded = html_table(columns, rows[SHOWN_ROWS:], texts) if rows else ""
        more = len(rows) - SHOWN_ROWS
        return f"{shown}<details><summary>{more} more</summary>{folded}</details>"
    sides = ["left" if i < texts or i == len(columns) - 1 else "right" for i in range(len(columns))]
    head = _row("th", columns, sides)
    body = "".join(_row("td", row, sides) for row in rows)
    return f"<table><thead>{head}</thead><tbody>{body}</tbody></table>"


def _row(kind: str, cells: Sequence[str], sides: Sequence[str]) -> str:
    texts = (
        f'<{kind} style="text-align:{side}">{html_text(cell)}</{kind}>'
        for cell, side in zip(cells, sides, strict=True)
    )
    return f"<tr>{''.join(texts)}</tr>"


def html_seconds(seconds: float) -> str:
    """A latency with a unit that reads well: `1.234 ms`."""
    for unit, scale in (("s", 1.0), ("ms", 1e3), ("µs", 1e6)):
        if seconds * scale >= 1.0:
            return f"{seconds * scale:.4g} {unit}"
    return f"{seconds * 1e9:.4g} ns"
