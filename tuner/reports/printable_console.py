"""A console whose texts are printable (`terminal`), in a file of its own: it imports rich."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.text import Text

from tuner.reports.terminal import printable


class PrintableConsole(Console):
    """Takes texts as they are: no markup, no emoji codes, no controls but its own."""

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(printable(text), **options)
