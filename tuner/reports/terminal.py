"""Where text reaches the terminal: what comes from models and records cannot steer it.

Names are other people's. Escape sequences, carriage returns and controls of the direction of text
within them are shown as `\\x1b`, not sent; a console's own colours and cursor movements are.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO, cast

if TYPE_CHECKING:
    from rich.console import Console

UNTERMINATED_WIDTH = 200  # columns of a table that is not printed to a terminal

# Controls but newline and tab, soft hyphens and zero widths, marks and isolates of direction,
# separators of lines, byte order marks, surrogates that stand for no character, tags.
_UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    "\ud800-\udfff\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"
)
_SEQUENCE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
"""A control sequence as ECMA-48 has it: of colours and cursors, of titles and links, or short."""

_RESET = "\x1b[0m"


def printable(text: str) -> str:
    """The text with all that would control a terminal as an escape of Python: visible, harmless."""
    return _UNPRINTABLE.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text)


def readable(text: str) -> str:
    """The text without escape sequences of terminals; other controls become a mark, �."""
    return _UNPRINTABLE.sub("\ufffd", _SEQUENCE.sub("", text))


def printable_json(text: str) -> str:
    """JSON text that means the same, with what would control a terminal as escapes of JSON."""
    return _UNPRINTABLE.sub(lambda found: json.dumps(found[0])[1:-1], text)


class PrintableStream:
    """A text stream through which only printable text passes; `raw` is the stream itself."""

    def __init__(self, raw: TextIO) -> None:
        self.raw = raw

    def write(self, text: str) -> int:
        """Write the text, with escapes instead of what would control a terminal.

        Resets of the colours are left out: libraries write one as the process ends.
        """
        self.raw.write(printable(text.replace(_RESET, "")))
        return len(text)

    def writelines(self, lines: Iterator[str]) -> None:
        """Write each line so."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.raw, name)


@contextmanager
def printable_streams() -> Iterator[None]:
    """Within it all that is printed to stdout and stderr is printable."""
    streams = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (cast(TextIO, PrintableStream(raw)) for raw in streams)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = streams


def console(stream: TextIO | None = None) -> Console:
    """A console on the stream (stdout if None); tables are wide when it is no terminal.

    It takes strings as they are: no markup, no emoji codes, no controls but its own.
    """
    from rich.console import Console  # --help does without
    from rich.text import Text

    class PrintableConsole(Console):
        def render_str(self, text: str, **options: Any) -> Text:
            return super().render_str(printable(text), **options)

    target = sys.stdout if stream is None else stream
    raw = target.raw if isinstance(target, PrintableStream) else target
    width = None if raw.isatty() else UNTERMINATED_WIDTH
    options: dict[str, Any] = dict.fromkeys(
        ("highlight", "markup", "emoji", "force_jupyter"), False
    )
    return PrintableConsole(file=raw, width=width, **options)
